"""Twelve data sets of eight formats: recognised without a flag, labelled token by token, trained and evaluated."""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib
import itertools
import json
import lzma
import subprocess
import sys
from datetime import date
from itertools import groupby
from pathlib import Path

import pytest
import yaml
from projects import MODEL

from generator import pipeline
from generator.case.request import Request
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.emit.sources import link_sources, place_sources
from generator.errors import SourceError
from generator.inputs.data_files import read_data
from generator.inputs.data_formats import MEANINGS, Hints
from generator.inputs.leaves import load_make_example

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML as Qwen2 and SmolLM2 have it, without {% generation %}."""
QUESTION, ANSWER = "What is the capital of France?", "Paris is."
PAIR = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
SHARED = [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]
RENDERED = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n»{ANSWER}<|im_end|>«\n"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
SETS = {
    "messages.jsonl": ("messages", {"messages": PAIR}, RENDERED),
    "parts.json": (
        "messages",
        {"chat": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}, PAIR[1]]},
        RENDERED,
    ),
    "sharegpt.json": (
        "sharegpt",
        {"id": "x", "conversations": [{"from": "system", "value": "Be brief."}, *SHARED, *SHARED]},
        "<|im_start|>system\nBe brief.<|im_end|>\n" + RENDERED * 2,
    ),
    "sharegpt.parquet": ("sharegpt", {"conversations": SHARED}, RENDERED),
    "alpaca.json.gz": (
        "alpaca",
        {"instruction": "Translate.", "input": "chat", "output": "cat"},
        "<|im_start|>user\nTranslate.\n\nchat<|im_end|>\n<|im_start|>assistant\n»cat<|im_end|>«\n",
    ),
    "alpaca.csv": (
        "alpaca",
        {"instruction": QUESTION, "context": "", "response": ANSWER, "category": "qa"},
        RENDERED,
    ),
    "completion.jsonl.xz": (
        "prompt-completion",
        {"prompt": "The sky is", "completion": " blue."},
        "The sky is» blue.<|endoftext|>«",
    ),
    "completion_messages.jsonl": (
        "prompt-messages",
        {"prompt": [PAIR[0], PAIR[1], PAIR[0]], "completion": [PAIR[1]]},
        RENDERED.replace("»", "").replace("«", "") + RENDERED,
    ),
    "question.tsv": ("question-answer", {"statement": QUESTION, "reply": ANSWER}, RENDERED),
    "preference.jsonl.bz2": (
        "preference-messages",
        {"prompt": QUESTION, "chosen": PAIR, "rejected": [PAIR[0], {"role": "assistant", "content": "No."}]},
        RENDERED,
    ),
    "text.arrow": ("text", {"text": "a quick fox", "url": "x"}, "a» quick fox<|endoftext|>«"),
    "label.csv": ("classification", {"utterance": "what a day", "mood": "good"}, None),
}
"""File, format, a row, and the first example with what is learned between the marks."""
TASKS = {"classification": "text-classification"}


def write_rows(path: Path, rows: list[dict]) -> None:
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix in (".parquet", ".arrow"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(rows)
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    else:
        lines = ".jsonl" in path.name.lower()
        text = "".join(json.dumps(row) + "\n" for row in rows) if lines else json.dumps(rows)
        openers = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
        with openers.get(path.suffix, open)(path, "wt") as file:
            file.write(text)


def make_rows(name: str) -> list[dict]:
    kind, row, _ = SETS[name]
    if kind != "classification":
        return [row] * 24
    return [{"utterance": f"{row['utterance']} {n}", "mood": ("good", "bad")[n % 2]} for n in range(24)]


def make_tokenizer(folder: Path, template: str | None = CHATML, extra: tuple[str, ...] = ()):
    """Byte-level BPE over the rows, with the marks of ChatML as special tokens."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *extra]
    bpe = Tokenizer(BPE())
    bpe.pre_tokenizer, bpe.decoder = ByteLevel(add_prefix_space=False), Decoder()
    trainer = BpeTrainer(
        vocab_size=MODEL["vocab_size"],
        special_tokens=special,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([QUESTION, ANSWER, "assistant user system\n"] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special[1:],
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    tokenizer = make_tokenizer(folder)
    config = {**MODEL, "vocab_size": len(tokenizer), "max_position_embeddings": 256}
    LlamaForCausalLM(LlamaConfig(**{k: v for k, v in config.items() if k != "architectures"})).save_pretrained(folder)
    return folder


def render_project(folder: Path, model: Path, name: str, **request) -> Path:
    write_rows(folder / name, make_rows(name))
    pins = (("compile", "off"), ("precision", "fp32"))
    asked = {"seq_len": 128, "global_batch": 4, "max_steps": 3, "pins": pins, "task": TASKS.get(SETS[name][0], "sft")}
    places = {"model": str(model), "data": str(folder / name), "hardware": "cpu:1", "offline": True}
    planned = pipeline.plan_request(Request(**places | asked | request))
    document = to_json(build_document(planned, name="p"))
    document["config"]["machine"]["memory_gib"] = document["config"]["machine"]["needs_gib"]
    render.render(document, folder / "p")
    link_sources(place_sources(planned.work, folder / "p"), folder / "p")
    return folder / "p"


@pytest.fixture
def load_data(monkeypatch):
    """Import data.py of a project; its own modules are gone afterwards."""

    def load(project: Path):
        monkeypatch.syspath_prepend(str(project))
        names = [path.stem for path in project.glob("*.py")]
        for name in names:
            monkeypatch.delitem(sys.modules, name, raising=False)
        loaded.extend(names)
        return importlib.import_module("data")

    loaded: list[str] = []
    yield load
    for name in loaded:
        sys.modules.pop(name, None)


def draw_labels(example: dict, tokenizer) -> str:
    """The text of an example, what is learned between marks: from the tokens and labels alone."""
    pairs = list(zip(example["input_ids"], example["labels"], strict=True))
    assert all(label in (-100, token) for token, label in pairs)
    runs = [(on, [t for t, _ in run]) for on, run in groupby(pairs, key=lambda pair: pair[1] != -100)]
    return "".join(f"»{tokenizer.decode(tokens)}«" if on else tokenizer.decode(tokens) for on, tokens in runs)


@pytest.mark.parametrize("name", SETS)
def test_every_format_is_recognised_without_a_flag(tmp_path, name):
    kind = SETS[name][0]
    write_rows(tmp_path / name, make_rows(name))
    data = read_data(str(tmp_path / name), task=TASKS.get(kind, "sft"))
    assert data.recognised.kind == kind and data.rows == 24 and len(data.token_quantiles) == 101
    assert f"the data is read as {data.recognised.describe()}" in data.notes


@pytest.mark.parametrize("name", [name for name in SETS if name != "label.csv"])
def test_the_first_example_learns_what_the_assistant_says(tmp_path, model, load_data, name):
    from transformers import AutoTokenizer

    project = render_project(tmp_path, model, name)
    data = load_data(project)
    config = yaml.safe_load((project / "config.yaml").read_text())
    tokenizer = AutoTokenizer.from_pretrained(model)
    examples = data.load_examples(config)
    dataset = data.tokenize_examples(examples, tokenizer, 128, config["loss_on"])
    assert len(examples) == len(dataset) == 24
    assert draw_labels(dataset[0], tokenizer) == SETS[name][2]


def run(project: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=project, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "name", ["sharegpt.json", *(pytest.param(name, marks=pytest.mark.slow) for name in SETS if name != "sharegpt.json")]
)
def test_every_format_is_shown_trained_and_evaluated(tmp_path, model, load_data, name):
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    project = render_project(tmp_path, model, name)
    shown = run(project, "data.py")
    drawn = SETS[name][2]
    assert (drawn or "what a day") in shown and "24 " in shown and not (project / "runs" / "run.json").exists()
    first = json.loads(run(project, "data.py", "--json"))
    printed = run(project, "train.py")
    assert (drawn or "what a day") in printed
    assert (drawn or "what a day") in (project / "runs" / "first_example.txt").read_text()
    report = json.loads((project / "runs" / "run.json").read_text())
    assert len(report["losses"]) == 3 and report["finished_step"] == 3
    before, *_, after = report["evaluations"]
    assert report["kept_step"] == after["step"] == 3 and before["step"] == 0, "each step of so few lowers the loss"
    assert report["eval"] == {"before": before, "after": after, "rows": report["eval_rows"]}
    tokenizer = AutoTokenizer.from_pretrained(project / "runs")
    assert tokenizer.chat_template == CHATML
    data, config = load_data(project), yaml.safe_load((project / "config.yaml").read_text())
    examples = data.load_examples(config)
    if drawn is None:
        trained = AutoModelForSequenceClassification.from_pretrained(project / "runs")
        tokenizer.pad_token = tokenizer.eos_token
        dataset = data.tokenize(examples, data.list_labels(examples), tokenizer, 128)
        assert trained.config.id2label == {0: "bad", 1: "good"}
        inputs = {"input_ids": torch.tensor([dataset[0]["input_ids"]]), "labels": torch.tensor([dataset[0]["labels"]])}
    else:
        trained = AutoModelForCausalLM.from_pretrained(project / "runs")
        dataset = data.tokenize_examples(examples, tokenizer, 128, config["loss_on"])
        inputs = {key: torch.tensor([dataset[0][key]]) for key in ("input_ids", "labels")}
    same = {key: dataset[0][key] for key in ("input_ids", "labels")}
    assert first == {"text": tokenizer.decode(first["input_ids"]), **same}
    with torch.no_grad():
        assert 0 < trained(**inputs).loss.item() < 10


def test_a_token_without_an_embedding_is_refused(tmp_path, model, load_data):
    """A GPU fails in an assertion of the device, a CPU in an IndexError of PyTorch."""
    from transformers import AutoTokenizer, LlamaConfig

    data = load_data(render_project(tmp_path, model, "sharegpt.json"))
    assert (
        "check_tokens(tokenizer, model.config, train_dataset, eval_dataset)"
        in (tmp_path / "p" / "train.py").read_text()
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = LlamaConfig(vocab_size=len(tokenizer))
    tokenizer.add_tokens(["<extra>"])
    rows, wrong = [{"input_ids": [1, 2]}], [{"input_ids": [len(tokenizer) - 1]}]
    data.check_tokens(tokenizer, config, rows, None)  # no row has it
    with pytest.raises(SystemExit, match=f"'<extra>' as token {config.vocab_size}, and the model has embeddings for"):
        data.check_tokens(tokenizer, config, rows, wrong)
    tokenizer.pad_token = "<extra>"
    with pytest.raises(SystemExit, match="'<extra>' as token"):
        data.check_tokens(tokenizer, config, rows)


def test_a_model_of_characters_has_no_number_of_embeddings(tmp_path, model, load_data):
    """CANINE hashes them: its config has no vocab_size, and the run ended in an AttributeError."""
    from transformers import AutoTokenizer, CanineConfig

    data = load_data(render_project(tmp_path, model, "question.tsv"))
    data.check_tokens(AutoTokenizer.from_pretrained(model), CanineConfig(), [{"input_ids": [1, 2]}])


def test_an_edit_of_the_code_that_makes_examples_makes_them_again(tmp_path, model, load_data):
    """`datasets` looks at no code outside of a script: its cache would train on what the code made before."""
    project = render_project(tmp_path, model, "question.tsv")
    config = yaml.safe_load((project / "config.yaml").read_text())
    assert load_data(project).load_examples(config)[0]["messages"][0]["content"] == QUESTION
    code = (project / "examples.py").read_text()
    edited = code.replace('read_text(row, columns["prompt"])', '"Say: " + read_text(row, columns["prompt"])')
    (project / "examples.py").write_text(edited)
    assert edited != code
    assert load_data(project).load_examples(config)[0]["messages"][0]["content"] == f"Say: {QUESTION}"


@pytest.mark.parametrize("task", ["causal-lm", "sft"])
def test_empty_texts_of_a_corpus_are_neither_bad_rows_nor_trained_on(tmp_path, model, load_data, task):
    """The first row of WikiText is one, and a third of the others: training ended at it."""
    name = "text.arrow"
    rows = [{"text": ("", " = Title = \n", " \n", "a quick fox\n")[n % 4]} for n in range(400)]
    (tmp_path / "held").mkdir()
    write_rows(tmp_path / "held" / name, rows)
    assert read_data(str(tmp_path / "held" / name), task=task).rows == 200
    project = render_project(tmp_path, model, name, task=task, seq_len=16)
    (tmp_path / name).write_bytes((tmp_path / "held" / name).read_bytes())
    data, config = load_data(project), yaml.safe_load((project / "config.yaml").read_text())
    read = data.load_texts(config) if task == "causal-lm" else data.load_examples(config)
    assert read["text"] == [" = Title = \n", "a quick fox\n"] * 100


@pytest.mark.parametrize("task", ["causal-lm", "sft"])
def test_texts_without_an_end_token_are_refused_in_a_line(tmp_path, model, load_data, task):
    """None stood among the tokens: a traceback at the first example."""
    project = render_project(tmp_path, model, "text.arrow", task=task, seq_len=16)
    data, config = load_data(project), yaml.safe_load((project / "config.yaml").read_text())
    tokenizer = make_tokenizer(tmp_path / "endless")
    tokenizer.eos_token = None
    with pytest.raises(SystemExit, match=r"The tokenizer has no end token \(eos_token\)"):
        if task == "causal-lm":
            data.cut_blocks(data.load_texts(config), tokenizer, 16)
        else:
            data.tokenize_examples(data.load_examples(config), tokenizer, 16, "assistant")


def test_labels_of_the_hub_are_called_by_their_names(tmp_path, model, load_data, monkeypatch):
    """IMDb's are 0 and 1, SNLI's -1 where nobody agreed: infer.py answered "1", and -1 was a class."""
    from datasets import ClassLabel, Dataset, Features, Value

    places = {"model": str(model), "data": "owner/films", "hardware": "cpu:1", "offline": True, "split": "train"}
    asked = {"task": "text-classification", "text_column": "text", "label_column": "label", "labels": 2}
    document = to_json(build_document(pipeline.plan_request(Request(**places | asked, seq_len=16)), name="p"))
    render.render(document, tmp_path / "p")
    data, config = load_data(tmp_path / "p"), yaml.safe_load((tmp_path / "p" / "config.yaml").read_text())
    for labels in ([1, 0, 0], [1, 0, -1]):
        columns = {"text": [f"film {n} {labels}" for n in range(3)], "label": labels}
        features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
        rows = Dataset.from_dict(columns, features=features)
        monkeypatch.setattr(data, "load_dataset", lambda *_, rows=rows, **__: rows)
        if -1 in labels:
            with pytest.raises(SystemExit, match="owner/films, row 3: no label in column 'label'"):
                data.load_examples(config)
            config["skip_bad"] = True
        assert data.load_examples(config)["label"] == (["pos", "neg"] if -1 in labels else ["pos", "neg", "neg"])
    assert data.list_labels(data.load_examples(config)) == ["neg", "pos"]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_labels_of_a_table_are_called_by_their_names(tmp_path, model, load_data, ending):
    """`datasets` writes 0 and 1, and the names into the schema: the model answered "1"."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets import ClassLabel, Dataset, Features, Value

    columns = {"text": [f"film {n}" for n in range(40)], "label": [1, 0] * 20}
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    rows = Dataset.from_dict(columns, features=features)
    if ending == "parquet":
        rows.to_parquet(tmp_path / "films.parquet")
    else:
        rows.save_to_disk(tmp_path / "saved")
        next((tmp_path / "saved").glob("*.arrow")).rename(tmp_path / "films.arrow")
    path = str(tmp_path / "films") + f".{ending}"
    read = read_data(path, task="text-classification")
    assert (read.labels, read.label_names, read.label_column) == (2, ("neg", "pos"), "label")
    assert "label" not in (read_data(path, task="causal-lm").recognised.column_of or {})

    asked = {"model": str(model), "data": path, "hardware": "cpu:1", "offline": True, "task": "text-classification"}
    document = to_json(build_document(pipeline.plan_request(Request(**asked, seq_len=16)), name="p"))
    render.render(document, tmp_path / "p")
    data, config = load_data(tmp_path / "p"), yaml.safe_load((tmp_path / "p" / "config.yaml").read_text())
    config["data"] = path
    examples = data.load_examples(config)
    assert examples["label"][:3] == ["pos", "neg", "pos"] and data.list_labels(examples) == ["neg", "pos"]

    other = Features({"text": Value("string"), "label": ClassLabel(names=["pos", "neg"])})
    Dataset.from_dict({"text": ["a film"] * 4, "label": [1] * 4}, features=other).to_parquet(tmp_path / "zz.parquet")
    if ending == "parquet":  # each file by its own names, and not by the first one's
        (tmp_path / "films.parquet").rename(tmp_path / "aa.parquet")
        config["data"] = str(tmp_path / "*.parquet")
        assert data.load_examples(config)["label"][-4:] == ["neg"] * 4
        unnamed = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
        Dataset.from_dict(columns, features=unnamed).to_parquet(tmp_path / "aa.parquet")
        several = read_data(str(tmp_path / "*.parquet"), task="text-classification")
        assert several.label_names == ("bad", "good", "neg")
    beyond = pa.table({"text": ["a film"] * 3, "label": [0, 1, 7]}).replace_schema_metadata(
        Dataset.from_dict(columns, features=features).data.schema.metadata or features.arrow_schema.metadata
    )
    pq.write_table(beyond, tmp_path / "beyond.parquet")
    with pytest.raises(SourceError, match="row 3: the label 7 has no name: there are those of 0 to 1"):
        read_data(str(tmp_path / "beyond.parquet"), task="text-classification")

    unlabelled = Dataset.from_dict(columns | {"label": [1, 0] * 19 + [1, -1]}, features=features)
    unlabelled.to_parquet(tmp_path / "part.parquet")
    with pytest.raises(SourceError, match="row 40: no label in column 'label'"):
        read_data(str(tmp_path / "part.parquet"), task="text-classification")


def test_a_conversation_that_the_template_refuses_ends_the_run_or_is_left_out(tmp_path, model, load_data, capsys):
    from transformers import AutoTokenizer

    project = render_project(tmp_path, model, "messages.jsonl")
    data, config = load_data(project), yaml.safe_load((project / "config.yaml").read_text())
    rows = [{"messages": [{**PAIR[0], "content": f"{QUESTION} {n}"}, PAIR[1]]} for n in range(5)]
    write_rows(tmp_path / "messages.jsonl", rows)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% if ' 3' in messages[0]['content'] %}{{ raise_exception('no 3') }}{% endif %}" + CHATML
    examples = data.load_examples(config)
    with pytest.raises(
        SystemExit, match=r"example 4: the chat template refuses user assistant: .*no 3.*\(user: '.* 3'\)"
    ):
        data.tokenize_examples(examples, tokenizer, 128, "assistant")
    assert len(data.tokenize_examples(examples, tokenizer, 128, "assistant", skip_bad=True)) == 4
    assert "1 examples cannot be written as the model reads them" in capsys.readouterr().out


def test_what_leaves_no_trainable_token_is_said(tmp_path, model, load_data):
    """Rows whose every turn has weight 0 were told that no answer begins within the length."""
    from transformers import AutoTokenizer

    project = render_project(tmp_path, model, "messages.jsonl")
    data, config = load_data(project), yaml.safe_load((project / "config.yaml").read_text())
    write_rows(tmp_path / "messages.jsonl", [{"messages": [PAIR[0], {**PAIR[1], "weight": 0}]}] * 5)
    examples, tokenizer = data.load_examples(config), AutoTokenizer.from_pretrained(model)
    with pytest.raises(SystemExit, match="the rows, or the chat template, leave every turn of the assistant out"):
        data.tokenize_examples(examples, tokenizer, 128, "assistant")
    with pytest.raises(SystemExit, match="in no example does the answer begin within 4 tokens"):
        data.tokenize_examples(examples, tokenizer, 4, "assistant")


FOLDERS = {
    "names of files": (["train.jsonl", "validation.jsonl", "test.jsonl"], "train.jsonl", 1),
    "names of folders": (["train/a.jsonl", "train/b.jsonl", "dev/a.jsonl"], "train", 2),
    "shards": (["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/test-00000-of-00001.jsonl"],
               "data/train-0000*.jsonl", 2),
    "hidden copies": (["a.jsonl", "B.JSONL", ".ipynb_checkpoints/a-checkpoint.jsonl"], "", 2),
    "tests alone": (["test.jsonl"], "", 1),
    "tests beside others": (["chats.jsonl", "test.jsonl"], "the splits test, and beside them chats.jsonl", 0),
    "no train": (["test.jsonl", "dev.jsonl"], "the splits validation, test", 0),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_s_rows_for_tests_are_not_trained_on(tmp_path, model, load_data, case):
    names, expected, parts = FOLDERS[case]
    folder = tmp_path / "folder"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_rows(folder / name, [{"messages": PAIR}] * 24)
    if not parts:
        with pytest.raises(SourceError, match=expected):
            read_data(str(folder), task="sft")
        return
    data = read_data(str(folder), task="sft")
    assert (data.path, data.rows) == (str(folder / expected), parts * 24)
    assert bool(expected) == any("left aside" in note for note in data.notes)
    project = render_project(tmp_path, model, "messages.jsonl", data=str(folder))
    config = yaml.safe_load((project / "config.yaml").read_text())
    assert len(load_data(project).load_examples(config)) == parts * 24


# ---- what must not be trained on silently


ALPACA = {"instruction": "Add.", "input": "1 1", "output": "2"}


def refuse(tmp_path, rows: list[dict], words: str, task: str = "sft", **hints) -> SourceError:
    write_rows(tmp_path / "d.jsonl", rows)
    with pytest.raises(SourceError, match=words) as raised:
        read_data(str(tmp_path / "d.jsonl"), task=task, hints=Hints(**hints))
    return raised.value


def test_a_hint_that_would_train_answers_without_questions_is_refused(tmp_path):
    error = refuse(tmp_path, [ALPACA] * 4, "alone would be trained on.*Alpaca", text_column="output")
    assert "--format text" in str(error.hint)
    data = read_data(str(tmp_path / "d.jsonl"), task="sft", hints=Hints(text_column="output", format="text"))
    assert data.recognised.form == "text"
    assert "--text-column" not in str(refuse(tmp_path, [ALPACA] * 4, "Alpaca", task="causal-lm").hint)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"problem": "a", "solution": "b", "answer": "c"}, "the answer could be 'answer' or 'solution'"),
        ({"english": "a", "french": "b"}, "no text among 'english', 'french': 'english' or 'french' could be"),
        ({"article": "a", "summary": "b"}, "no column that is known to ask; it could be 'article'"),
        ({"chosen": "Human: a", "rejected": "Human: b"}, "'chosen'"),
        ({"first": PAIR, "second": PAIR}, "conversations in 'first' and 'second'"),
        ({"rejected": PAIR}, "what was rejected is not to be learned"),
    ],
)
def test_what_could_be_read_in_two_ways_is_an_error_with_its_candidates(tmp_path, row, words):
    refuse(tmp_path, [row] * 4, words)


def test_columns_can_be_named(tmp_path):
    write_rows(tmp_path / "d.jsonl", [{"english": "a", "french": "b"}] * 4)
    path = str(tmp_path / "d.jsonl")
    data = read_data(path, task="sft", hints=Hints(columns={"prompt": "english", "answer": "french"}))
    assert data.recognised.column_of == {"prompt": "english", "answer": "french"}
    write_rows(tmp_path / "d.jsonl", [{"prompt": "a", "completion": "b"}] * 4)
    assert read_data(path, task="sft").sft_format == "prompt_completion"
    assert read_data(path, task="sft", hints=Hints(format="question-answer")).sft_format == "messages"


def test_a_label_is_seen_by_its_few_values(tmp_path):
    rows = [{"id": n, "remark": f"remark number {n}", "mood": n % 3} for n in range(30)]
    write_rows(tmp_path / "d.jsonl", rows)
    data = read_data(str(tmp_path / "d.jsonl"), task="text-classification")
    assert (data.text_column, data.label_column, data.labels) == ("remark", "mood", 3)
    assert "3 distinct values" in data.recognised.evidence
    refuse(
        tmp_path, [row | {"other": row["mood"]} for row in rows], "'mood' or 'other' could be", "text-classification"
    )


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_a_table_that_is_read_whole_is_called_so(tmp_path, mark):
    """A spreadsheet's mark of its encoding was not counted: "looked at 6,170 of 6,172 bytes"."""
    (tmp_path / "d.csv").write_bytes(mark + b"text,label\n" + b"some words,0\nother words,1\n" * 20)
    data = read_data(str(tmp_path / "d.csv"), task="text-classification")
    assert (data.text_column, data.label_column) == ("text", "label")
    assert not any("looked at" in note for note in data.notes)


def test_saved_data_sets_and_json_of_other_shapes(tmp_path):
    from datasets import Dataset, DatasetDict

    rows = [{"question": "a", "answer": "b"}] * 6
    DatasetDict({"train": Dataset.from_list(rows), "test": Dataset.from_list(rows[:2])}).save_to_disk(
        tmp_path / "saved"
    )
    data = read_data(str(tmp_path / "saved"), task="sft")
    assert (data.format, data.rows, data.path) == ("arrow", 6, str(tmp_path / "saved" / "train"))
    shapes = {
        "rows": {"version": 1, "data": rows},
        "columns": {"question": ["a"] * 6, "answer": ["b"] * 6},
    }
    for name, content in shapes.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        assert read_data(str(tmp_path / f"{name}.json"), task="sft").rows == 6, name
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, rows)))
    data = read_data(str(tmp_path / "lines.json"), task="sft")
    assert (data.format, data.rows, data.endings) == ("jsonl", 6, (".json",))
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    shared = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    for content in (
        {"messages": turns, "tools": [{"name": "f"}]},
        {"conversations": shared},
        {"id": 1, "messages": turns},
    ):
        (tmp_path / "one.json").write_text(json.dumps(content))
        data = read_data(str(tmp_path / "one.json"), task="sft")
        assert data.rows == 1 and data.recognised.form == "messages"
    (tmp_path / "two.json").write_text(json.dumps({"a": rows, "b": rows}))
    with pytest.raises(SourceError, match="rows stand under 'a' and 'b'"):
        read_data(str(tmp_path / "two.json"), task="sft")


def test_a_damaged_archive_is_refused(tmp_path):
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n' * 1000)[:-20])
    with pytest.raises(SourceError, match="cannot be decompressed"):
        read_data(str(tmp_path / "d.jsonl.gz"), task="causal-lm")


ODD = [
    None,
    True,
    7,
    1.5,
    "\ud800",
    b"x",
    [],
    {},
    [["a"]],
    {"a": 1},
    [None],
    [{}],
    date(2024, 1, 1),
    [{"function": {"name": b"x"}}],
]
"""What JSON and Parquet can hold where a text or a list of messages should be."""


@pytest.mark.parametrize("leaf", ["messages", "sharegpt", "message_pairs", "question_answer", "label", "text"])
def test_any_value_makes_an_example_or_says_what_is_wrong(leaf):
    """A traceback in `init` and in train.py before; examples are written as UTF-8 and JSON."""
    role, content, *names = (
        ("from", "value", "human", "gpt") if leaf == "sharegpt" else ("role", "content", "user", "assistant")
    )
    columns = {meaning: meaning for meaning in MEANINGS if meaning != "input"}
    if leaf == "message_pairs":
        del columns["system"]
    make_example, refused = load_make_example(leaf), 0
    for value, key in itertools.product(ODD, (role, content, "tool_calls", "name", "weight", "train", "column")):
        for turn in (0, 1):
            turns = [{role: name, content: "words"} for name in names]
            row = {"messages": turns, "prompt": turns[:1], "answer": turns[1:], "text": "words", "label": "a"}
            if leaf == "question_answer":
                row |= {"prompt": "words", "answer": "words"}
            if key == "column":
                row |= dict.fromkeys(("system", "tools", "chat_template_kwargs") if turn else columns, value)
            turns[turn][key] = value
            try:
                json.dumps(make_example(row, columns), ensure_ascii=False).encode()
            except ValueError as error:
                assert str(error)
                refused += 1
    assert refused


@pytest.mark.parametrize("key", ["weight", "train", "training", "loss"])
def test_a_turn_that_its_own_key_leaves_out_is_not_learned(key):
    """OpenAI's, Axolotl's and ms-swift's: all but the first were passed over, and what was to be left out was learned."""

    def read_answers(*marks) -> list[str | None]:
        turns = [{"role": role, "content": "words", key: mark} for mark in marks for role in ("user", "assistant")]
        return [turn["further"] for turn in load_make_example("messages")({"m": turns}, {"messages": "m"})["messages"]][
            1::2
        ]

    assert read_answers(0, 1, None) == read_answers(False, True, None) == ['{"weight": 0}', None, None]
    with pytest.raises(ValueError, match=f"'{key}' 0.5: 0 and false leave it out"):
        read_answers(0.5)


def test_parts_of_a_turn_that_are_to_be_learned_are_refused():
    marked = [{"begin_offset": 0, "end_offset": 2, "train": False}]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "words", "train_detail": marked}]
    with pytest.raises(ValueError, match="'train_detail' marks parts of a turn"):
        load_make_example("messages")({"m": turns}, {"messages": "m"})


def read_turns(*turns: dict) -> list[dict]:
    return load_make_example("messages")({"m": list(turns)}, {"messages": "m"})["messages"]


def test_a_call_is_read_in_each_way_that_people_write_it():
    """function_call beside words was left out in silence: the result of a call that nobody made was learned from."""
    function = {"name": "add", "arguments": '{"a": 1}'}
    ways = [
        {"tool_calls": [{"type": "function", "function": function}]},
        {"tool_calls": json.dumps([{"type": "function", "function": function}])},
        {"function_call": function, "tool_calls": None},
        {"tool_calls": [function], "function_call": {"name": None, "arguments": None}},  # a row of Parquet
    ]
    made = [read_turns({"role": "assistant", "content": "See.", **way})[0] for way in ways]
    assert made == made[:1] * 4 and '"name": "add", "arguments": {"a": 1}' in made[0]["further"]
    assert read_turns({"role": "assistant", "content": "See.", "function_call": {"name": None}})[0]["further"] is None


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"content": None}, "turn 2 of 'm': no usable text in column 'content' of role, content: it is empty"),
        ({"content": {"a": 1}}, "turn 2 of 'm': .*: it is dict"),
        ({"content": "", "tool_calls": '{"a": 1}'}, "turn 2 of 'm': tool calls that are no list but dict"),
        ({"content": "", "tool_calls": "[add"}, "turn 2 of 'm': tool calls: not JSON"),
        ({"content": "see", "images": ["a.png"]}, "turn 2 of 'm': a turn with 'images', and texts alone are read"),
    ],
)
def test_a_turn_that_cannot_be_read_is_named(turn, words):
    with pytest.raises(ValueError, match=words):
        read_turns({"role": "user", "content": "Q?", "images": []}, {"role": "assistant", **turn})


def test_the_columns_that_a_message_names_have_no_power_over_a_terminal():
    row = {"\x1b]0;x\x07": 1} | {f"c{n}": 1 for n in range(200)}
    with pytest.raises(ValueError, match="and 181 more") as refused:
        load_make_example("text")(row, {"text": "text"})
    assert str(refused.value).isprintable() and len(str(refused.value)) < 300
