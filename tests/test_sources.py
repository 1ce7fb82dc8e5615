"""Reading model and data files: every format, what is taken for text and label, what a checkpoint is made of."""

from __future__ import annotations

import csv
import importlib.util
import json
import struct
import sys

import pytest

from generator import pipeline
from generator.case.request import Request
from generator.decide.unemitted import check_emittable
from generator.emit import render
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.emit.sources import link_sources, place_sources
from generator.errors import SourceError, UsageError
from generator.inputs.data_files import BYTES_PER_TOKEN, TOKENS_PER_CONVERSATION, TOKENS_PER_TURN, read_data
from generator.inputs.data_formats import Hints
from generator.inputs.hub_files import find_cached_file
from generator.inputs.hub_ids import is_hub_id
from generator.inputs.leaves import load_make_example
from generator.inputs.model_files import read_model, read_tokenizer
from generator.inputs.model_sizes import read_spec

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


def shard(size: int) -> bytes:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


@pytest.fixture
def folder(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    return model


def write(path, rows: list[dict]):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    else:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


# ---- models


def test_a_folder_without_weights_starts_from_random_ones(folder):
    source = read_model(str(folder), offline=True)
    assert (source.kind, source.name, source.has_weights, source.has_tokenizer) == ("folder", "model", False, False)
    assert "random" in source.notes[0]


def test_one_file_of_weights(folder):
    (folder / "model.safetensors").write_bytes(shard(100))
    (folder / "tokenizer.json").write_text("{}")
    source = read_model(str(folder), offline=True)
    assert source.has_weights and source.has_tokenizer and source.weight_bytes == len(shard(100))


def test_shards_are_added_up_each_once(folder):
    for name in ("a.safetensors", "b.safetensors", "other.safetensors"):
        (folder / name).write_bytes(shard(100))
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model(str(folder), offline=True).weight_bytes == 2 * len(shard(100))


def test_a_config_file_takes_the_tokenizer_beside_it_but_no_weights(folder):
    (folder / "model.safetensors").write_bytes(b"broken")
    (folder / "tokenizer.json").write_text("{}")
    source = read_model(str(folder / "config.json"), offline=True)
    assert (source.kind, source.has_weights, source.tokenizer) == ("config", False, str(folder))


def test_training_arguments_are_no_weights(folder):
    for name in ("training_args.bin", "optimizer.pt", "rng_state.pth"):
        (folder / name).write_bytes(b"x")
    assert not read_model(str(folder), offline=True).has_weights


@pytest.mark.parametrize(("config", "expected"), [({"chat_template": "x"}, True), ({}, False), ([], None)])
def test_chat_templates(folder, config, expected):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if expected is None:
        with pytest.raises(SourceError, match="no object but list"):
            read_model(str(folder), offline=True)
        return
    assert read_model(str(folder), offline=True).has_chat_template is expected
    (folder / "chat_template.jinja").write_text("x")
    assert read_model(str(folder), offline=True).has_chat_template


def test_a_cached_model_is_read_without_the_hub(tmp_path, monkeypatch, folder):
    commit = "0123456789abcdef" * 2 + "01234567"
    repo = tmp_path / "home" / "hub" / "models--owner--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (folder / "config.json").rename(repo / "snapshots" / commit / "config.json")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert find_cached_file("owner/name", "config.json") is None
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    source = read_model("owner/name", offline=True)
    assert (source.kind, source.path, source.revision) == ("hub", "owner/name", commit)
    assert source.has_weights and read_spec(source).layers == 2


def test_a_cached_checkpoint_of_pickles_is_refused(tmp_path, monkeypatch, folder):
    repo = tmp_path / "models--name"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("a" * 40)
    (repo / "snapshots").mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    folder.rename(repo / "snapshots" / ("a" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SourceError, match="pickled"):
        read_model("name", offline=True)


def test_a_config_for_a_hub_id_is_said(folder):
    source = read_model("owner/name", offline=True, config=str(folder / "config.json"))
    assert source.kind == "hub" and "were not looked at" in source.notes[0]


@pytest.mark.parametrize("train", ["lora", "qlora"])
def test_a_config_alone_is_planned_for_adapters_and_makes_no_project(folder, train):
    request = {"train": train, "hardware": "1xrtx-4090", "task": "sft", "seq_len": 256}
    planned = pipeline.plan_request(Request(model=str(folder), **request))
    assert not planned.work.workload.from_scratch
    assert "needs weights to adapt" in planned.work.source.notes[0]
    with pytest.raises(SourceError, match=r"no weights to adapt.*\n.*--model HUB_ID \(with --config FILE"):
        check_emittable(planned)
    with pytest.raises(UsageError, match="--from-scratch asks for random ones"):
        pipeline.plan_request(Request(model=str(folder), from_scratch=True, **request))


@pytest.mark.parametrize("text", ["a", "a/b", "A1/b-c.d_e", "x" * 96 + "/" + "y" * 96])
def test_hub_ids(text):
    assert is_hub_id(text)


@pytest.mark.parametrize("text", ["", "a/b/c", "-a", "a/-b", "a..b", "a b", "/a", "a/", ".a", "é", "a\n", "x" * 97])
def test_what_is_no_hub_id(text):
    assert not is_hub_id(text)


@pytest.mark.parametrize(
    ("text", "advice"),
    [("./gone", "check the path"), ("a/b/c", "check the path"), ("~/m", "expanded the ~"), ("a b", "a hub id is")],
)
def test_what_was_meant_as_a_path_is_not_told_what_a_hub_id_is(text, advice):
    with pytest.raises(SourceError, match=advice):
        read_model(text, offline=True)


def test_a_tokenizer_folder_becomes_a_full_path(folder, monkeypatch):
    (folder / "tokenizer.json").write_text("{}")
    monkeypatch.chdir(folder.parent)
    assert read_tokenizer("model") == str(folder)
    assert read_tokenizer("owner/name") == "owner/name"


def test_old_bitsandbytes_checkpoints_are_known_as_quantized(folder):
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": {"load_in_8bit": True}}))
    assert read_spec(read_model(str(folder), offline=True)).quantization == "bitsandbytes"


# ---- data


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_texts_of_every_format(tmp_path, kind):
    data = read_data(write(tmp_path / f"d.{kind}", [{"id": "1", "text": "abcdefgh"}] * 10), task="causal-lm")
    assert (data.format, data.rows, data.columns, data.text_column) == (kind, 10, ("id", "text"), "text")
    assert data.tokens == 10 * 8 / BYTES_PER_TOKEN
    assert data.token_quantiles[0] == data.token_quantiles[100] == 8 / BYTES_PER_TOKEN


def test_lengths_that_nobody_counted_are_of_bytes_for_other_scripts_have_more_tokens_a_letter(tmp_path):
    path = write(tmp_path / "d.jsonl", [{"text": "天气很好"}, {"text": "weather!"}, {"text": "погода"}])
    data = read_data(path, task="causal-lm")
    assert data.tokens == round((12 + 8 + 12) / BYTES_PER_TOKEN) and data.token_quantiles[100] == 3
    (tmp_path / "d.txt").write_text("天气很好" * 100)
    assert read_data(str(tmp_path / "d.txt"), task="causal-lm").tokens == 300


def test_plain_text(tmp_path):
    (tmp_path / "d.txt").write_text("abcd" * 100)
    data = read_data(str(tmp_path), task="causal-lm")
    assert (data.format, data.tokens, data.rows) == ("txt", 100, 1)
    for task in ("sft", "text-classification"):
        with pytest.raises(SourceError, match="plain text has no"):
            read_data(str(tmp_path), task=task)
    for hints in (Hints(text_column="text"), Hints(label_column="label"), Hints(columns={"text": "body"})):
        with pytest.raises(SourceError, match="without columns"):
            read_data(str(tmp_path), task="causal-lm", hints=hints)
    with pytest.raises(UsageError, match="--column messages=turns is of --task sft"):
        read_data(str(tmp_path), task="causal-lm", hints=Hints(columns={"messages": "turns"}))


def test_a_folder_of_files_of_one_kind(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "d.jsonl", [{"text": name}] * 3)
    assert read_data(str(tmp_path), task="causal-lm").rows == 6


@pytest.mark.parametrize(
    ("row", "column", "form", "text"),
    [
        ({"messages": [{"role": "assistant", "content": "abcd"}]}, None, "messages", "messages"),
        ({"conversations": [{"role": "assistant", "content": "abcd"}]}, None, "messages", "conversations"),
        ({"chat": [{"role": "assistant", "content": "abcd"}]}, "chat", "messages", "chat"),
        ({"prompt": "ab", "completion": "cd"}, None, "prompt_completion", "prompt"),
        ({"text": "abcd"}, None, "text", "text"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_forms_of_examples(tmp_path, kind, row, column, form, text):
    data = read_data(write(tmp_path / f"d.{kind}", [row] * 4), task="sft", hints=Hints(text_column=column))
    marks = (TOKENS_PER_TURN + TOKENS_PER_CONVERSATION) * 4 if form == "messages" else 0
    assert (data.sft_format, data.text_column, data.tokens) == (form, text, 4 + marks)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_labels(tmp_path, kind):
    rows = [{"review": "good", "label": 1}, {"review": "bad", "label": 0}, {"review": "so", "label": 2}]
    data = read_data(write(tmp_path / f"d.{kind}", rows), task="text-classification")
    assert (data.label_column, data.labels, data.label_names) == ("label", 3, ("0", "1", "2"))
    data = read_data(str(tmp_path / f"d.{kind}"), task="causal-lm")
    assert data.label_column is None and data.labels is None


def test_columns_that_are_asked_for_must_be_there(tmp_path):
    path = write(tmp_path / "d.jsonl", [{"text": "a", "label": 1}])
    for option in ("text_column", "label_column"):
        with pytest.raises(SourceError, match=r"'nope'.*'text', 'label'"):
            read_data(path, task="causal-lm", hints=Hints(**{option: "nope"}))


def test_bad_rows_are_counted_only_when_asked(tmp_path):
    path = write(
        tmp_path / "d.jsonl", [{"text": "abcd"}, {"text": None}, {"text": ""}, {"text": "abcd"}, {"other": "x"}]
    )
    with pytest.raises(SourceError, match="row 2"):
        read_data(path, task="causal-lm")
    data = read_data(path, task="causal-lm", skip_bad=True)
    assert (data.rows, data.bad_rows) == (2, 2)


def test_hub_data_is_not_looked_at():
    data = read_data("owner/name", task="sft")
    assert (data.format, data.text_column, data.sft_format, data.rows) == ("hub", "messages", "messages", None)
    assert read_data("owner/name", task="sft", hints=Hints(text_column="t")).sft_format == "text"
    assert read_data("owner/name", task="text-classification").label_column == "label"
    alpaca = read_data("owner/name", task="sft", hints=Hints(format="alpaca", columns={"answer": "response"}))
    assert alpaca.recognised.column_of == {"answer": "response", "prompt": "instruction", "input": "input"}
    assert (alpaca.sft_format, alpaca.rows) == ("messages", None)


ROWS = [
    {},
    {"text": "a"},
    {"text": ""},
    {"text": " \n"},
    {"text": 5},
    {"text": "a\ud800"},
    {"text": "a", "label": "x"},
    {"text": "a", "label": 0},
    {"text": "a", "label": ""},
    {"text": "a", "label": None},
    {"text": "a", "label": 0.5},
    {"text": "", "label": "x"},
    {"prompt": "a", "completion": "b"},
    {"prompt": "a", "completion": ""},
    {"prompt": "", "completion": "b"},
    {"prompt": "a"},
    {"messages": []},
    {"messages": "a"},
    {"messages": [5]},
    {"messages": [{"role": "user", "content": "a"}]},
    {"messages": [{"role": "assistant", "content": "a"}]},
    {"messages": [{"role": "assistant", "content": None}]},
    {"messages": [{"role": "assistant"}, {"role": "assistant", "content": "a"}]},
]
BESIDE = ("rows", "parts", "tokenizer", "open_data", "examples", "fields", "labels", "terminal", "first_example")
"""modules of a project that its data.py imports"""
SHAPES = {
    "text": ("causal-lm", "text", "text", None, {"text": "a"}),
    "label": ("text-classification", "text", "text", "label", {"text": "a", "label": "x"}),
    "prompt_completion": ("sft", "prompt_completion", "prompt", None, {"prompt": "a", "completion": "b"}),
    "messages": ("sft", "messages", "messages", None, {"messages": [{"role": "assistant", "content": "a"}]}),
}


def explain_refusal(make_example, row, columns) -> str | None:
    try:
        make_example(row, columns)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_planning_and_the_project_s_data_py_agree_on_every_row(tmp_path, monkeypatch, folder, shape):
    """A row that planning takes does not end the run, and the other way round."""
    task, _, text, label, good = SHAPES[shape]
    (folder / "model.safetensors").write_bytes(shard(100))
    (folder / "tokenizer.json").write_text("{}")
    rows = [good] * 40 + ([good | {"label": "y"}] if label else [])
    asked = {"task": task, "seq_len": 16, "global_batch": 1} | ({"from_scratch": True} if task == "causal-lm" else {})
    data = write(tmp_path / "d.jsonl", [*rows, *[good | {text: good[text] * 50}] * 20])
    planned = pipeline.plan_request(Request(model=str(folder), data=data, hardware="cpu:4", offline=True, **asked))
    render.render(to_json(build_document(planned, name="p")), tmp_path / "p")
    link_sources(place_sources(planned.work, tmp_path / "p"), tmp_path / "p")
    monkeypatch.syspath_prepend(tmp_path / "p")  # data.py imports the leaves beside it
    for name in BESIDE:
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("emitted_data", tmp_path / "p" / "data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    columns, recognised = planned.work.data.recognised.column_of, planned.work.data.recognised
    for row in ROWS:
        in_plan = explain_refusal(load_make_example(recognised.leaf), row, columns)
        assert explain_refusal(module.make_example, row, columns) == in_plan, row
    assert "emitted_data" not in sys.modules
    for name in BESIDE:
        sys.modules.pop(name, None)
