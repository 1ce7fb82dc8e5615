"""Every case of the list of bad inputs that perfgen itself meets: its message, its exit code, no traceback, nothing half-written.

Test ids begin with the row of the list. `tests/test_injection.py` holds inject-01, `tests/test_smoke_runner.py` the smoke rows in
full, `tests/test_place.py` kill -9 at every line; what the generated project does at run time is in `test_bad_runs.py`.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from endless import ENDLESS_KINDS, make_endless
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from leaves import load_leaf
from projects import ANSWERED, TRAINED

from generator import cli
from generator.emit import place, render
from generator.errors import DriftError, PerfgenError, SourceError
from generator.inputs import meta_device
from generator.inputs.data_files import read_data
from generator.inputs.data_readers import SCAN_BYTES, choose_batch_rows, is_json_lines
from generator.inputs.model_files import read_model
from generator.inputs.model_sizes import read_spec

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "examples" / "models"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
HERE = ("--hardware", "cpu:4", "--offline")
SAMPLE = (*HERE, "--sample")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def perfgen(*arguments: object) -> Outcome:
    """The command line in this process; whatever is no message and exit code comes out as the exception it is."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before, handler = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = ["perfgen", *map(str, arguments)]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    finally:
        sys.argv = before
        signal.signal(signal.SIGTERM, handler)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8"))
    return Outcome(code, *texts)


def refused(code: int, *words: str, by: Outcome) -> None:
    assert by.code == code, by.out + by.err
    said = by.err
    assert said.strip() and "Traceback" not in said
    if by.out:  # only --json writes there, and it tells the same
        assert json.loads(by.out)["error"]["exit_code"] == code
    for word in words:
        assert word in said, said


def model(folder: Path, *drop: str, files: dict[str, bytes] | None = None, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {k: v for k, v in (LLAMA | changes).items() if k not in drop}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, content in (files or {}).items():
        (folder / name).write_bytes(content)
    return folder


def safetensors(data: int = 16, header: object = None) -> bytes:
    told = {"w": {"dtype": "F32", "shape": [data // 4], "data_offsets": [0, data]}} if header is None else header
    text = json.dumps(told).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def sizes(**text: object) -> bytes:
    return json.dumps(LLAMA | text).encode()


# ---- model

EXPERTS = {"model_type": "mixtral", "num_local_experts": 8}


@pytest.mark.parametrize(
    ("drop", "changes", "words"),
    [
        ("num_hidden_layers", {}, "num_hidden_layers"),
        ("hidden_size", {}, "hidden_size"),
        ("vocab_size", {}, "vocab_size"),
        ("model_type", {}, "model_type"),
        (None, {"hidden_size": "64"}, 'hidden_size is "64"'),
        (None, {"num_attention_heads": 0}, "num_attention_heads is 0"),
        (None, {"num_hidden_layers": -2}, "num_hidden_layers is -2"),
        (None, {"num_hidden_layers": 1e300}, "num_hidden_layers is 1e+300"),
        (None, {"vocab_size": float("nan")}, "vocab_size is NaN"),
        (None, {"vocab_size": float("inf")}, "vocab_size is Infinity"),
        (None, {"vocab_size": True}, "vocab_size is true"),
        (None, {"vocab_size": []}, "vocab_size is [], a whole number from 1"),
        (None, {"vocab_size": [5, 6]}, "vocab_size is [5, 6]"),
        (None, {"num_attention_heads": []}, "num_attention_heads is []"),
        (None, {"hidden_size": 10**30}, "hidden_size"),
        (None, {"head_dim": "x"}, "head_dim"),
        (None, {"sliding_window": "x"}, "sliding_window"),
        (None, {"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        (None, {"num_attention_heads": 128}, "head_dim would be 0"),
        (None, EXPERTS | {"num_experts_per_tok": 0}, "a token would go to 0 of 8 experts"),
        (None, EXPERTS | {"num_experts_per_tok": 9}, "a token would go to 9 of 8 experts"),
        (None, EXPERTS | {"num_experts_per_tok": -1}, "num_experts_per_tok is -1"),
        (None, {"intermediate_size": 0}, "feed-forward layers would be 0 wide"),
        (None, {"intermediate_size": -64}, "intermediate_size is -64"),
        (None, {"vision_config": {"patch_size": 0}}, "patch_size is 0, a whole number from 1"),
        (None, {"q_lora_rank": -1}, "q_lora_rank is -1, a whole number from 0"),
        (None, {"model_type": None}, "model_type is null"),
        (None, {"model_type": ["llama"]}, "model_type"),
        (None, {"model_type": "\ud800"}, "half a surrogate pair"),
        (None, {"architectures": "Llama"}, "architectures"),
        (None, {"architectures": [{}]}, "architectures"),
        (None, {"text_config": []}, "text_config is [], an object or null"),
        (None, {"text_config": {"hidden_size": {}}}, "hidden_size is {}"),
        (None, {"quantization_config": "gptq"}, "quantization_config"),
        (None, {"quantization_config": {"bits": 4}}, "quant_method"),
        ("model_type", {"_class_name": "UNet2DConditionModel"}, "is of Diffusers"),
        ("model_type", {"base_model_name_or_path": "a/b"}, "is of an adapter"),
        (None, {"model_type": "LLaMA"}, "did you mean llama"),
        (None, {"torch_dtype": 5}, "torch_dtype is 5"),
    ],
    ids=lambda value: f"model-02 {json.dumps(value)[:40]}" if isinstance(value, dict) and value else None,
)
def test_model_02_sizes_that_cannot_be(tmp_path, drop, changes, words):
    folder = model(tmp_path / "m", *([drop] if drop else []), **changes)
    refused(4, words, by=perfgen("plan", *HERE, "--model", folder))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"{bad", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "holds no object but list"),
        (b'{"a":' + b"9" * 5000 + b"}", "is not JSON"),
    ],
    ids=lambda value: f"model-02 {value[:12]}" if isinstance(value, bytes) else None,
)
def test_model_02_broken_json(tmp_path, content, words):
    refused(4, words, by=perfgen("plan", *HERE, "--model", model(tmp_path / "m", files={"config.json": content})))


def test_model_02_aliases_and_model_05_tied_embeddings(tmp_path):
    gpt2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 128}
    (tmp_path / "config.json").write_text(json.dumps(gpt2))
    spec = read_spec(read_model(str(tmp_path / "config.json"), offline=True))
    assert (spec.hidden, spec.layers, spec.heads, spec.tied_embeddings) == (64, 2, 4, True)
    tied, untied = (
        read_spec(read_model(str(model(tmp_path / name, tie_word_embeddings=tied)), offline=True))
        for name, tied in (("tied", True), ("untied", False))
    )
    assert untied.params - tied.params == LLAMA["vocab_size"] * LLAMA["hidden_size"]


def test_model_06_a_trillion_parameters(tmp_path):
    big = {"hidden_size": 25600, "intermediate_size": 98304, "num_hidden_layers": 100, "num_attention_heads": 200}
    (tmp_path / "big.json").write_text(json.dumps(LLAMA | big | {"num_key_value_heads": 200, "vocab_size": 128000}))
    done = perfgen("plan", "--offline", "--hardware", "1xrtx-3070", "--model", tmp_path / "big.json")
    refused(3, "does not fit", "GiB short", by=done)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub cache that holds one model's config.json."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repo = tmp_path / "hub" / "models--owner--name"
    snapshot = repo / "snapshots" / ("a" * 40)
    model(snapshot)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    return repo


def test_model_08_offline_takes_the_cache(cache):
    done = perfgen("plan", *HERE, "--model", "owner/name", "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert document["config"]["revision"] == "a" * 40
    assert any("weights of owner/name are not in the local cache" in note["text"] for note in document["notes"])


@pytest.mark.parametrize("damage", ["absent", "no ref", "binary ref", "path in ref", "no config"])
def test_model_08_offline_says_what_is_missing(cache, damage):
    if damage == "absent":
        refused(
            4,
            "config.json of owner/other is not in the local cache",
            by=perfgen("plan", *HERE, "--model", "owner/other"),
        )
        return
    main = cache / "refs" / "main"
    if damage == "no ref":
        main.unlink()
    elif damage == "binary ref":
        main.write_bytes(b"\xff\xfe\x00")
    elif damage == "path in ref":
        main.write_text("../../../../etc")
    else:
        (cache / "snapshots" / ("a" * 40) / "config.json").unlink()
    refused(4, "owner/name", "hf download", by=perfgen("plan", *HERE, "--model", "owner/name"))


def test_model_09_code_of_its_own_is_never_run(tmp_path):
    """Transformers' own class is taken where it has the type; a tokenizer and a type that only the code knows are refused."""
    canary = f"open({str(tmp_path / 'CANARY')!r}, 'w')"
    own = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    files = {"config.json": sizes(auto_map=own)}
    folder = model(tmp_path / "known", files=files)
    (folder / "evil.py").write_text(canary)
    planned = perfgen("plan", *HERE, "--model", folder)
    assert planned.code == 0, planned.err
    assert "which is not run" in " ".join(planned.out.split())
    folder = model(tmp_path / "unknown", files={"config.json": sizes(auto_map=own, model_type="evil_type")})
    (folder / "evil.py").write_text(canary)
    refused(4, "'evil_type' is known to its own Python code", by=perfgen("plan", *HERE, "--model", folder))
    folder = model(tmp_path / "tokenizer", files={"tokenizer_config.json": sizes(auto_map=own)})
    refused(4, "its own Python code", "tokenizer_config.json", by=perfgen("plan", *HERE, "--model", folder))
    assert not (tmp_path / "CANARY").exists()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"pytorch_model.bin": b"x"}, "pickled weights only"),
        ({"pytorch_model-00001-of-00002.bin": b"x"}, "pickled weights only"),
        ({"consolidated.00.pth": b"x"}, "pickled weights only"),
        ({"model-q4.gguf": b"GGUF"}, "no safetensors, only model-q4.gguf"),
        ({"tf_model.h5": b"x"}, "no safetensors"),
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": safetensors()}, "an adapter only"),
    ],
    ids=lambda value: f"model-11/12 {min(value)}" if isinstance(value, dict) else None,
)
def test_model_11_12_weights_of_other_kinds(tmp_path, files, words):
    refused(4, words, by=perfgen("plan", *HERE, "--model", model(tmp_path / "m", files=files)))


def test_model_11_pickled_weights_are_converted_with_their_head(tmp_path, monkeypatch):
    """By the command that the refusal gives: AutoModel, which it gave, leaves an untied head out, and training began with a new one."""
    import torch
    from test_data_formats import make_tokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    old = str(tmp_path / "the model")
    sizes = {
        "vocab_size": 300,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    trained = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=False))
    trained.config.architectures = ["LlamaForCausalLM"]
    trained.config.save_pretrained(old)
    torch.save(trained.state_dict(), f"{old}/pytorch_model.bin")
    make_tokenizer(old)
    done = perfgen("plan", *HERE, "--model", old)
    refused(4, "pickled weights only", by=done)
    command = shlex.split(" ".join(done.err.split()).partition(": python -c ")[2])
    monkeypatch.setattr(sys, "argv", ["-c", *command[1:]])
    exec(command[0], {})
    assert torch.equal(LlamaForCausalLM.from_pretrained(command[2]).lm_head.weight, trained.lm_head.weight)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model-q4.gguf", "a GGUF file, which is served and not trained"),
        ("model.safetensors", "holds weights, and no sizes"),
        ("pytorch_model.bin", "holds weights, and no sizes"),
    ],
    ids=lambda value: f"model-11/12 {value} alone" if "." in value else None,
)
def test_model_11_12_a_file_of_weights_is_no_config(tmp_path, name, words):
    (tmp_path / name).write_bytes(b"GGUF\x03\0\0\0")
    refused(4, words, by=perfgen("plan", *HERE, "--model", tmp_path / name))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adapter_config.json", "an adapter only"),
        ("model-q4.gguf", "GGUF files only"),
        ("model_index.json", "a diffusion pipeline"),
        ("readme.md", "no config.json"),
    ],
    ids=lambda value: f"model-12/15 {value}" if "." in value else None,
)
def test_model_12_15_folders_without_a_config(tmp_path, name, words):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_text("{}")
    refused(4, words, by=perfgen("plan", *HERE, "--model", tmp_path / "m"))


PACKED = [{"quant_method": "gptq"}, {"quant_method": "mxfp4"}, {"quant_method": "fp8"}, {"load_in_4bit": True}]


@pytest.mark.parametrize("told", PACKED, ids=lambda t: f"model-12 {t}")
@pytest.mark.parametrize("train", ["full", "qlora", "lora"])
def test_model_12_packed_weights_are_not_trained(tmp_path, train, told):
    """But where Transformers unpacks them as they are read (mxfp4): there the 16-bit weights are trained, or adapters beside them."""
    unpacked = told.get("quant_method") == "mxfp4"
    folder = model(
        tmp_path / "m",
        files={"model.safetensors": safetensors(), "tokenizer.json": b"{}"},
        quantization_config=told,
    )
    done = perfgen("plan", *HERE, "--model", folder, "--train", train, "--data", text(tmp_path))
    if unpacked and train != "qlora":
        assert done.code == 0
    else:
        refused(2, f"--train {train}", "--train lora" if unpacked else "--train qlora it is packed", by=done)


@pytest.mark.parametrize("beside", [{}, {"quantization_config": {"group_size": 64, "bits": 4}}])
def test_what_mlx_packed_is_not_taken_for_plain_weights(tmp_path, beside):
    """Its config says so under a name of its own; 16-bit weights were planned, in vLLM."""
    folder = model(tmp_path / "m", quantization={"group_size": 64, "bits": 4}, **beside)
    refused(2, "stay packed (mlx)", by=perfgen("plan", *HERE, "--model", folder, "--train", "lora"))
    refused(3, "quantized (mlx)", by=perfgen("plan", *HERE, "--model", folder, "--mode", "infer"))


@pytest.mark.parametrize("positions", [None, 1e9, 512.0], ids=lambda p: f"model-14 {p}")
def test_model_14_positions_absent_or_endless(tmp_path, positions):
    folder = model(tmp_path / "m", max_position_embeddings=positions)
    assert perfgen("plan", *HERE, "--model", folder, "--json").code == 0


def test_model_14_the_clamp_is_said(tmp_path):
    document = json.loads(perfgen("plan", *HERE, "--model", model(tmp_path / "m"), "--json").out)
    assert document["yours"]["seq_len"] == 512
    assert any("512" in note["text"] and "positions" in note["text"] for note in document["notes"])
    refused(2, "no next one to learn", by=perfgen("plan", *HERE, "--model", tmp_path / "m", "--seq-len", 1))
    one = model(tmp_path / "one", max_position_embeddings=1)
    refused(2, "no next one to learn", by=perfgen("plan", *HERE, "--model", one))
    done = perfgen("plan", *HERE, "--model", tmp_path / "m", "--seq-len", 513)
    refused(2, "--seq-len 513", "512 positions", by=done)


def test_model_15_an_encoder_for_a_decoder_s_task():
    done = perfgen("plan", *HERE, "--model", MODELS / "bert-base.json", "--task", "causal-lm")
    refused(2, "--task causal-lm needs a decoder", "text-classification", by=done)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "nosuchmodel"])
def test_model_15_other_kinds_are_counted_or_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "c.json").write_text(json.dumps({"model_type": kind}))
    done = perfgen("plan", *HERE, "--model", tmp_path / "c.json")
    refused(2 if kind == "t5" else 4, kind, by=done)


INDEX = "model.safetensors.index.json"
ENDLESS = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, float("inf")]}}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"model.safetensors": safetensors()[:-4]}, "its header tells of"),
        ({"model.safetensors": safetensors() + b"x"}, "its header tells of"),
        ({"model.safetensors": b""}, "no whole safetensors file"),
        ({"model.safetensors": b"1234"}, "no whole safetensors file"),
        ({"model.safetensors": struct.pack("<Q", 1 << 63) + b"{}"}, "no whole safetensors file"),
        ({"model.safetensors": struct.pack("<Q", 4) + b"[1]]"}, "broken header"),
        ({"model.safetensors": safetensors(header={})}, "names no tensor"),
        ({"model.safetensors": safetensors(header={"w": {"data_offsets": [0, "x"]}})}, "broken header"),
        ({"model.safetensors": safetensors(header={"w": 5})}, "broken header"),
        ({"model.safetensors": safetensors(header=ENDLESS)}, "broken header"),
        ({"model.safetensors": safetensors(header=json.loads("[" * 500 + "]" * 500))}, "broken header"),
        ({INDEX: b"{}"}, "no weight_map"),
        ({INDEX: b"[]"}, "no weight_map"),
        ({INDEX: b'{"weight_map":{}}'}, "no weight_map"),
        ({INDEX: b'{"weight_map":{"a":"gone.safetensors"}}'}, "gone.safetensors, which is missing"),
        ({INDEX: b'{"weight_map":{"a":"../x.safetensors"}}'}, "outside its folder"),
        ({INDEX: b'{"weight_map":{"a":"/etc/passwd"}}'}, "outside its folder"),
        ({INDEX: b'{"weight_map":{"a":5}}'}, "missing"),
        ({INDEX: b"\xff"}, "is not JSON"),
        ({"model-00001-of-00002.safetensors": safetensors()}, f"neither model.safetensors nor {INDEX}"),
        ({"consolidated.safetensors": safetensors()}, "Transformers reads no other names"),
        ({"model.fp16.safetensors": safetensors()}, "must be called model.safetensors"),
        (
            {INDEX: b'{"weight_map":{"w":"a.safetensors"}}', "a.safetensors": safetensors()}
            | {"model.safetensors": safetensors()[:-4]},
            "model.safetensors has",
        ),
        ({"config.json": sizes(transformers_weights="gone.safetensors")}, "gone.safetensors is no regular file"),
        ({"config.json": sizes(transformers_weights="../x.safetensors")}, "outside its folder"),
    ],
    ids=lambda value: f"model-17 {min(value)} {value[min(value)][-24:]}" if isinstance(value, dict) else None,
)
def test_model_17_damaged_checkpoints(tmp_path, files, words):
    files = {"tokenizer.json": b"{}"} | files
    done = perfgen(
        "init", tmp_path / "new", *HERE, "--model", model(tmp_path / "m", files=files), "--data", text(tmp_path)
    )
    refused(4, words, by=done)
    assert not (tmp_path / "new").exists()


def test_model_17_a_link_to_nothing_and_a_folder(tmp_path):
    folder = model(tmp_path / "m")
    (folder / "model.safetensors").symlink_to(tmp_path / "gone")
    refused(4, "model.safetensors", by=perfgen("plan", *HERE, "--model", folder))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    refused(4, "model.safetensors", by=perfgen("plan", *HERE, "--model", folder))


def test_model_18_a_tokenizer_is_demanded(tmp_path):
    folder = model(tmp_path / "m", files={"model.safetensors": safetensors()})
    refused(4, "has no tokenizer", "--tokenizer", by=perfgen("plan", *HERE, "--model", folder))
    for wrong in (tmp_path, "../x", "a/b/c", "-rf"):
        refused(4, "--tokenizer", by=perfgen("plan", *HERE, "--model", folder, f"--tokenizer={wrong}"))
    refused(4, "is no folder", by=perfgen("plan", *HERE, "--model", folder, "--tokenizer", folder / "config.json"))


@pytest.mark.parametrize(
    ("task", "row"),
    [("sft", {"prompt": "2 + 2?", "completion": "4"}), ("text-classification", {"text": "buy", "label": "spam"})],
)
def test_model_18_sizes_alone_are_planned_and_no_project_is_made(tmp_path, task, row):
    data = tmp_path / "rows.jsonl"
    others = [row | ({"label": "ham"} if "label" in row else {})] * 50
    data.write_text("\n".join(json.dumps(r) for r in [row, *others]), encoding="utf-8")
    words = (*HERE, "--model", model(tmp_path / "m") / "config.json", "--task", task, "--data", data)
    planned = perfgen("plan", *words)
    assert planned.code == 0 and "has no tokenizer" in " ".join(planned.out.split()), planned.err
    refused(4, "has no tokenizer", "--tokenizer", by=perfgen("init", tmp_path / "new", *words))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "template",
    ["{{ ''.__class__.__mro__ }}", [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}]],
    ids=["model-18 payload", "model-18 several"],
)
def test_model_18_a_chat_template_is_left_where_it_is(tmp_path, template):
    told = json.dumps({"chat_template": template}).encode()
    files = {"model.safetensors": safetensors(), "tokenizer.json": b"{}", "tokenizer_config.json": told}
    (tmp_path / "chat.jsonl").write_text(CHAT * 8)
    done = perfgen(
        *(
            "init",
            tmp_path / "new",
            *HERE,
            "--model",
            model(tmp_path / "m", files=files),
            "--task",
            "sft",
            "--no-smoke",
        ),
        *("--data", tmp_path / "chat.jsonl", "--global-batch", 2),
    )
    assert done.code == 0, done.err
    assert not any(b"__mro__" in p.read_bytes() for p in (tmp_path / "new").rglob("*") if p.is_file())
    assert "CHAT_TEMPLATE" not in (tmp_path / "new" / "data.py").read_text()


CHAT = '{"messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Yes."}]}\n'
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([[], {}, [1, 2], {"a": None}, "64", [[]], 1e9, 10**30]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*LLAMA, "head_dim", "text_config", "quantization_config", "dtype"]), JUNK))
def test_model_02_any_config_is_sized_or_refused(tmp_path, changes):
    """No config.json, however odd, is a traceback; a known type is not handed to Transformers here."""
    changes = {
        k: v for k, v in changes.items() if not isinstance(v, list) and (k != "model_type" or not isinstance(v, str))
    }
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | changes), encoding="utf-8")
    try:
        spec = read_spec(read_model(str(tmp_path / "config.json"), offline=True))
    except SourceError as refusal:
        assert refusal.message
        return
    assert spec.params > 0 and spec.layers > 0
    assert perfgen("plan", *HERE, "--model", tmp_path / "config.json").code in (0, 2, 3)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.sampled_from(["config.json", "model.safetensors", INDEX, "tokenizer_config.json"]))
def test_model_17_any_bytes_are_read_or_refused(tmp_path, content, name):
    folder = model(tmp_path / "m", files={INDEX: b'{"weight_map":{"a":"model.safetensors"}}'})
    (folder / "model.safetensors").write_bytes(safetensors())
    (folder / name).write_bytes(content)
    with contextlib.suppress(SourceError):
        read_model(str(folder), offline=True)


# ---- data


def text(folder: Path, lines: int = 4000) -> Path:
    path = folder / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog\n" * lines, encoding="utf-8")
    return path


ROW = b'{"text": "the quick brown fox jumps over the lazy dog"}\n'


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("d.jsonl", ROW + b"{bad\n", "row 2: not JSON"),
        ("d.jsonl", ROW + b'{"text": "caf\xe9"}\n', "row 2: not UTF-8"),
        ("d.jsonl", ROW + b'{"text": "a\x00b"}\n', "row 2: not JSON"),
        ("d.jsonl", ROW + b'["a"]\n', "row 2: no object but list"),
        ("d.jsonl", ROW + b'{"other": "a"}\n', "row 2: no usable text in column 'text'"),
        ("d.jsonl", ROW + b'{"text": 5}\n', "row 2: no usable text"),
        ("d.jsonl", ROW + b'{"text": null}\n', "row 2: no usable text"),
        ("d.jsonl", ROW + b'{"text": "\\ud800"}\n', "row 2: half a surrogate pair"),
        ("d.jsonl", ROW + b"[" * 100_000 + b"\n", "row 2: not JSON"),
        ("d.jsonl", ROW * 1500 + b"{bad\n", "row 1501: not JSON"),
        ("d.jsonl", ROW + b'{"text": "a", "text": "b"}\n', "row 2: an object has 'text' twice"),
        ("d.json", b'[{"text": "a"},\n{"x": {"b": 1, "b": 1}, "text": "b"}]', "an object has 'b' twice"),
        ("d.jsonl", b"", "no usable row"),
        ("d.jsonl", b"\n\r\n \n", "no usable row"),
        ("d.jsonl", b'{"labels; rm": "x", "b": "y"}\n', "no text among 'labels; rm', 'b'"),
        ("d.csv", b"text,label\na,1\nb\n", "row 3: the first line has 2 columns"),
        ("d.csv", b"text,label\na,1\nb,1,2\n", "row 3: the first line has 2 columns"),
        ("d.csv", b'text,label\na,1\n"b,2\n', "unexpected end of data"),
        ("d.json", b'[\n{"text": "a"},\n{"text": "caf\xe9"}]\n', "line 3: not UTF-8"),
        ("d.csv", b"text,label\na,1\ncaf\xe9,1\n", "row 3: not UTF-8"),
        ("d.csv", b'text,label\r\n"a\r\nb",1\r\ncaf\xe9,1\r\n', "row 4: not UTF-8"),
        ("d.csv", b"text,label\na,1\nb\x00,1\n", "row 3: a NUL byte"),
        ("d.csv", b"text,text\na,1\n", "'text' stands there twice"),
        ("d.csv", b"t\xe9xt,label\na,1\n", "row 1: not UTF-8"),
        ("d.csv", b"", "no usable row"),
        ("d.parquet", b"nope", "not a readable parquet file"),
        ("d.txt", b"a\ncaf\xe9\n", "row 2: not UTF-8"),
        ("d.txt", "text".encode("utf-16"), "not UTF-8"),
        ("d.txt", "text".encode("utf-16-le"), "row 1: holds a NUL byte"),
        ("d.txt", b" \n\n", "holds no text"),
        ("d.json", b"[]", "no usable row"),
        ("d.json", b'{"text": 1}', "none of which is a list of rows"),
        ("d.json", b"[1]", "row 1: no object but int"),
        ("d.jsonl.gz", ROW, "cannot be decompressed"),
        ("d.arrow", b"nope", "not a readable arrow file"),
        ("d.xlsx", b"x", ".xlsx is not read"),
    ],
    ids=lambda value: f"data-02 {value[-16:]}" if isinstance(value, bytes) else None,
)
def test_data_02_bad_rows_are_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    done = perfgen("init", tmp_path / "new", *SAMPLE, "--data", tmp_path / name, "--seq-len", 16, "--global-batch", 1)
    refused(4, words, name, by=done)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["data-02 LF", "data-02 CRLF"])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_data_02_line_ends_and_a_byte_order_mark_are_read(tmp_path, start, end, kind):
    rows = {"jsonl": [ROW.strip()] * 3, "csv": [b"text,label", b"a b c,1", b"d e f,2", b"d e g,2"]}[kind]
    (tmp_path / f"d.{kind}").write_bytes(start + end.join(rows) + end)
    found = read_data(str(tmp_path / f"d.{kind}"), task="causal-lm")
    assert (found.rows, found.text_column) == (3, "text")


def test_data_02_skip_bad_counts_them(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(ROW * 40 + b"{bad\n" + b'{"text": null}\n' + b"\xff\n")
    done = perfgen(
        "plan", *SAMPLE, "--data", tmp_path / "d.jsonl", "--skip-bad", "--seq-len", 16, "--global-batch", 1, "--json"
    )
    assert any("3 bad rows" in note["text"] and "row 41" in note["text"] for note in json.loads(done.out)["notes"])


def test_data_02_a_column_named_like_a_command_stands_in_config_yaml_alone(tmp_path):
    (tmp_path / "d.jsonl").write_bytes(ROW.replace(b"text", b"labels; rm") * 40)
    done = perfgen(
        *("init", tmp_path / "new", *SAMPLE, "--data", tmp_path / "d.jsonl", "--text-column", "labels; rm"),
        *("--seq-len", 16, "--global-batch", 1, "--no-smoke"),
    )
    assert done.code == 0, done.err
    holding = {p.name for p in (tmp_path / "new").rglob("*") if p.is_file() and b"labels; rm" in p.read_bytes()}
    assert "config.yaml" in holding and not {n for n in holding if n.endswith((".py", "Makefile", "Dockerfile"))}


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt"])
def test_data_02_a_line_of_200_mb_is_bounded(tmp_path, kind):
    """In a process of its own, whose memory can be read."""
    path = tmp_path / f"d.{kind}"
    with path.open("wb") as file:
        file.write({"jsonl": ROW, "csv": b"text,label\na,1\n", "txt": b"a\n"}[kind])
        for _ in range(200):
            file.write(b"x" * (1 << 20))
        file.write(b",1\n")
    code = (
        "import re, sys\nfrom generator.inputs.data_files import read_data\nfrom generator.errors import SourceError\n"
        "try: read_data(sys.argv[1], task='causal-lm')\n"
        "except SourceError as error: print(error.message)\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    said, mib = done.stdout.rsplit("\n", 2)[:2]
    assert f"row {3 if kind == 'csv' else 2}: longer than 32 MiB" in said
    assert int(mib) < 8 * (SCAN_BYTES >> 20) and time.monotonic() - started < 10


def test_data_02_a_large_file_is_looked_at_in_part(tmp_path):
    with (tmp_path / "d.jsonl").open("wb") as file:
        for _ in range(48):
            file.write(ROW * ((1 << 20) // len(ROW)))
    found = read_data(str(tmp_path / "d.jsonl"), task="causal-lm")
    size = (tmp_path / "d.jsonl").stat().st_size
    assert found.rows == pytest.approx(size / len(ROW), rel=0.01)
    assert found.notes and "looked at" in found.notes[0]


def write_table(path: Path, **columns) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(list(columns.values()), names=[name.strip() for name in columns])
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ["d.parquet", "d.arrow"])
def test_data_02_tables_that_python_cannot_hold(tmp_path, name):
    pa = pytest.importorskip("pyarrow")
    dates = pa.array([2**62] * 3, pa.timestamp("us"))
    with pytest.raises(SourceError, match="date value out of range"):
        read_data(str(write_table(tmp_path / name, text=pa.array(["a b"] * 3), day=dates)), task="causal-lm")
    twice = {"text": pa.array(["a b"] * 3), "text ": pa.array(["c d"] * 3)}
    with pytest.raises(SourceError, match="'text' stands there twice"):
        read_data(str(write_table(tmp_path / name, **twice)), task="causal-lm")


def test_data_02_a_parquet_of_one_long_value_is_bounded(tmp_path):
    """1.4 kB, of which 256 rows took 2.7 GB."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["word " * 200_000]))
    pq.write_table(pa.table({"text": values}), tmp_path / "d.parquet", compression="zstd")
    with pq.ParquetFile(tmp_path / "d.parquet") as table:
        assert choose_batch_rows(table) == 16
        in_project = load_leaf("rows/parquet").choose_batch_rows  # a thousand of them were a gigabyte in each process
        assert in_project(table, [0]) == 16
    data = read_data(str(tmp_path / "d.parquet"), task="causal-lm")
    assert data.rows == 5000 and data.tokens == 5000 * 250_000
    pq.write_table(pa.table({"text": [f"{n} words" for n in range(2000)]}), tmp_path / "e.parquet")
    with pq.ParquetFile(tmp_path / "e.parquet") as table:
        assert choose_batch_rows(table) == 256 and in_project(table, [0]) == 1000


def test_data_02_a_compressed_file_of_nothing_is_bounded(tmp_path):
    """Half a megabyte that holds 512 MiB of line breaks: is it JSON lines? 10 s before, without end for a larger one."""
    path = tmp_path / "d.json.gz"
    path.write_bytes(gzip.compress((b" " * 1023 + b"\n") * 1024) * 512)
    begun = time.perf_counter()
    assert not is_json_lines(path)
    assert time.perf_counter() - begun < 2


@pytest.mark.parametrize("path", ["gone.jsonl", "gone/d.txt", "", "a\nb", "-rf", "../x", "x" * 5000, "https://a:b@c/d"])
def test_data_02_paths_that_are_none(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    refused(2 if path == "" else 4, "--data", by=perfgen("plan", *SAMPLE, f"--data={path}"))


def test_model_18_a_tokenizer_s_name_that_is_too_long(tmp_path):
    rows = json.dumps({"prompt": "a b", "completion": "c d"}) + "\n"
    (tmp_path / "d.jsonl").write_text(rows * 50)
    words = ("--data", tmp_path / "d.jsonl", "--task", "sft", "--model", MODELS / "smollm2-135m.json")
    refused(4, "--tokenizer", by=perfgen("plan", *HERE, *words, f"--tokenizer={'x' * 5000}"))


def test_data_02_mixed_folders_and_empty_ones(tmp_path):
    refused(4, "holds no .jsonl", by=perfgen("plan", *SAMPLE, "--data", tmp_path))
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "a.jsonl").write_text("x")
    refused(4, "mixes .csv, .jsonl", by=perfgen("plan", *SAMPLE, "--data", tmp_path))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('{"text": "a", "label": "x"}\n' * 3, "every row has the label 'x'"),
        ('{"text": "a"}\n', "no label among 'text'"),
        ('{"text": "a", "label": 1.5}\n', "row 1: the label in column 'label' is 1.5"),
        ('{"text": "a", "label": ""}\n', "row 1: no label"),
        ('{"text": "a", "label": null}\n', "row 1: no label"),
    ],
    ids=lambda value: f"data-03 {value[:30]}" if value.startswith("{") else None,
)
def test_data_03_labels_that_teach_nothing(tmp_path, rows, words):
    (tmp_path / "d.jsonl").write_text(rows)
    arguments = ("--model", MODELS / "bert-base.json", "--task", "text-classification", "--data", tmp_path / "d.jsonl")
    refused(4, words, by=perfgen("plan", *HERE, *arguments))


@pytest.mark.parametrize(
    "rows",
    [
        '{"messages": [{"role": "user", "content": "a"}]}\n',
        '{"messages": []}\n',
        '{"messages": ["a"]}\n',
        '{"messages": [{"role": "assistant"}]}\n',
        '{"prompt": "a", "completion": ""}\n',
    ],
    ids=lambda rows: f"data-03 {rows[:45]}",
)
def test_data_03_examples_without_an_answer(tmp_path, rows):
    (tmp_path / "d.jsonl").write_text(rows)
    folder = model(tmp_path / "m", files={"model.safetensors": safetensors(), "tokenizer.json": b"{}"})
    done = perfgen("plan", *HERE, "--model", folder, "--task", "sft", "--data", tmp_path / "d.jsonl")
    refused(4, "row 1:", by=done)


def test_data_05_less_than_one_global_batch(tmp_path):
    (tmp_path / "d.txt").write_text("too short\n")
    done = perfgen("init", tmp_path / "new", *SAMPLE, "--data", tmp_path / "d.txt", "--seq-len", 16)
    refused(4, "fewer than one global batch of 32", "--global-batch", by=done)
    assert not (tmp_path / "new").exists()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.binary(max_size=80), st.binary(max_size=40).map(lambda b: ROW + b)),
    st.sampled_from(["jsonl", "csv", "txt", "parquet"]),
    st.sampled_from(["causal-lm", "sft", "text-classification"]),
    st.booleans(),
)
def test_data_02_any_bytes_are_read_or_refused(tmp_path, content, kind, task, skip_bad):
    path = tmp_path / f"d.{kind}"
    path.write_bytes(content)
    try:
        found = read_data(str(path), task=task, skip_bad=skip_bad)
    except SourceError as refusal:
        assert refusal.message
    else:
        assert found.rows and found.tokens is not None


# ---- destination


@pytest.mark.parametrize("name", [".", "/", "..", "-rf", "a b", "a\nb", "CON", "x" * 256, "é", "end.", "{{ 7*7 }}", ""])
def test_dest_01_07_names(tmp_path, monkeypatch, name):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    refused(5, by=perfgen("init", *SAMPLE, "--no-smoke", "--", name))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["cwd"]


def test_dest_07_a_path_of_4096_characters(tmp_path):
    refused(5, by=perfgen("init", "/".join([str(tmp_path), *["d" * 200] * 21]), *SAMPLE, "--no-smoke"))
    assert list(tmp_path.iterdir()) == []


def test_dest_01_files_full_folders_and_projects(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    refused(5, "is a file", by=perfgen("init", tmp_path / "file", *SAMPLE))
    for more in ((), ("--overwrite", "--yes")):
        refused(5, "not empty", by=perfgen("init", tmp_path / "full", *SAMPLE, *more))
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine" and len(list(tmp_path.rglob("*"))) == 3


def test_dest_01_a_link_is_resolved_and_shown(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    done = perfgen("init", tmp_path / "link", *SAMPLE, "--no-smoke")
    assert done.code == 0 and f"writing to {tmp_path / 'real'}" in done.out
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "train.py").is_file()


def test_dest_02_a_link_inside_is_not_written_through(tmp_path):
    (tmp_path / "outside").write_text("mine")
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke").code == 0
    (tmp_path / "new" / "train.py").unlink()
    (tmp_path / "new" / "train.py").symlink_to(tmp_path / "outside")
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke", "--overwrite", "--yes").code == 0
    assert (tmp_path / "outside").read_text() == "mine"
    assert not (tmp_path / "new" / "train.py").is_symlink()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EBUSY])
def test_dest_04_a_write_that_fails(tmp_path, monkeypatch, number):
    """Copier's own write fails half-way."""
    real = render.render

    def half(document, dest):
        real(document, dest)
        raise OSError(number, os.strerror(number), str(dest / "train.py"))

    monkeypatch.setattr("generator.pipeline.render", half)
    done = perfgen("init", tmp_path / "a" / "b" / "new", *SAMPLE, "--no-smoke")
    assert done.code == 5 and os.strerror(number) in done.err and "nothing was written" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting a small tmpfs needs Linux and root")
def test_dest_04_a_real_full_disk(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no permission to mount here")
    try:
        done = perfgen("init", small / "new", *SAMPLE, "--no-smoke")
        assert done.code == 5 and "No space left" in done.err
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_dest_04_standard_output_that_is_full():
    command = [sys.executable, "-m", "generator.cli", "plan", *SAMPLE, "--json"]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5 and "standard output: No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_model_08_a_user_without_a_home(tmp_path, monkeypatch):
    """A container that runs under a user id that no password file knows."""

    def none(self):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_CACHE", "~/.cache/huggingface/hub"
    )  # what the library makes of it
    monkeypatch.setattr(Path, "expanduser", none)
    refused(4, "not in the local cache", by=perfgen("plan", *HERE, "--model", "owner/name"))
    assert perfgen("plan", "--offline", "--sample", "--json").code == 0
    import platformdirs.unix  # Copier asks it for the user's own settings, which must not matter

    monkeypatch.setattr(platformdirs.unix.Unix, "user_config_dir", property(none))
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke").code == 0


def test_dest_04_a_parent_that_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(5, "file", by=perfgen("init", tmp_path / "file" / "new", *SAMPLE, "--no-smoke"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("flag", ["--dry-run", "--diff"])
def test_dest_04_looking_writes_nothing(tmp_path, flag):
    done = perfgen("init", tmp_path / "a" / "new", *SAMPLE, flag)
    assert done.code == (0 if flag == "--dry-run" else 7)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["dest-05 ^C", "dest-05 TERM"]
)
def test_dest_05_interrupted_while_writing(tmp_path, monkeypatch, number, code):
    real = render.check_file

    def interrupted(path):
        real(path)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(render, "check_file", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
    try:
        done = perfgen("init", tmp_path / "deep" / "new", *SAMPLE, "--no-smoke")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == code and "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_dest_05_interrupted_at_any_moment(tmp_path):
    """SIGINT from outside, later and later, until one run gets through."""
    command = [sys.executable, "-m", "generator.cli", "init", str(tmp_path / "new"), *SAMPLE, "--no-smoke"]
    for step in range(60):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(0.2 + 0.15 * step)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
        left = [p.name for p in tmp_path.iterdir()]
        assert left in ([], ["new"]), left
        if left:
            assert (tmp_path / "new" / place.MARK).is_file()
            return
        assert process.returncode in (130, -signal.SIGINT), said  # before main() began: Python's own
    raise AssertionError("it never got through")


def test_dest_08_an_edit_is_shown_and_kept(tmp_path):
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke").code == 0
    train = tmp_path / "new" / "train.py"
    train.write_text(train.read_text() + "# mine\n")
    refused(5, "already holds a project", "--diff", by=perfgen("init", tmp_path / "new", *SAMPLE))
    done = perfgen("init", tmp_path / "new", *SAMPLE, "--diff", "--full")
    assert done.code == 7 and "-# mine" in done.out and "it was edited by hand" in done.out
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke", "--overwrite", "--yes").code == 0
    assert (tmp_path / "new.old-1" / "train.py").read_text().endswith("# mine\n")


# ---- injection


HALF, NUL = "a\udcffb", "a\0b"


@pytest.mark.parametrize(
    "value", [HALF, NUL, "", " "], ids=["inject-01 half", "inject-01 NUL", "inject-01 empty", "blank"]
)
@pytest.mark.parametrize(
    "option", ["model", "config", "tokenizer", "data", "text-column", "label-column", "hardware", "pin", "allow"]
)
def test_inject_01_what_no_file_can_hold_is_refused_at_the_door(tmp_path, option, value):
    value = f"{value}={value}" if option == "pin" and value.strip() else value
    refused(2, f"--{option}", by=perfgen("init", tmp_path / "new", *SAMPLE[2:], f"--{option}={value}"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [HALF, NUL], ids=["inject-01 half", "inject-01 NUL"])
def test_inject_01_destinations(tmp_path, name):
    for path in (tmp_path / name, tmp_path / name / "new"):
        refused(5, by=perfgen("init", path, *SAMPLE, "--no-smoke"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "a/b/c",
        "-rf",
        "a b",
        "a\nb",
        "{{ 7*7 }}",
        "$(touch CANARY)",
        "`id`",
        "\u202e",
        "x" * 5000,
        "a/..",
        "~",
    ],
    ids=lambda n: f"inject-02 {n[:12]!a}",
)
def test_inject_02_model_ids(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    refused(4, "--model", by=perfgen("plan", *HERE, f"--model={name}"))
    assert list(tmp_path.iterdir()) == []


def test_inject_04_the_environment_reaches_no_file(tmp_path, monkeypatch):
    for name in (
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "OMP_NUM_THREADS",
        "SLURM_JOB_NODELIST",
        "TORCH_CUDA_ARCH_LIST",
    ):
        monkeypatch.setenv(name, "eth0\nRUN curl CANARY")
    assert perfgen("init", tmp_path / "new", "--offline", "--sample", "--no-smoke").code == 0
    assert holding(tmp_path / "new", b"CANARY") == []


def holding(folder: Path, needle: bytes) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and needle in p.read_bytes())


@pytest.mark.parametrize(
    "name", ["GPU'\"{{ 7*7 }}</script>", "$(touch CANARY)"], ids=["inject-05 quotes", "inject-05 shell"]
)
def test_inject_05_names_of_hardware_are_text(tmp_path, name):
    told = json.loads((ROOT / "examples" / "cpu-2-cores-sample" / "hardware.json").read_text())
    told["cpu"]["model_name"] = name
    (tmp_path / "hw.json").write_text(json.dumps(told))
    done = perfgen("init", tmp_path / "new", "--offline", "--sample", "--hardware", tmp_path / "hw.json", "--no-smoke")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "new" / "plan.json").read_text())["case"]["hardware"]["cpu"]["model_name"] == name
    assert not {n for n in holding(tmp_path / "new", b"touch CANARY") if n.endswith((".py", "Makefile", "Dockerfile"))}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{bad", b"\xff", b"[]", b"5", b"[" * 100_000, b'{"a": 1}', b'{"schema": 99}', b'{"schema": 1}'),
        b'{"schema": 1, "cpu": 5}',
        b'{"schema": 1, "cpu": {"model_name": "\\ud800"}}',
        b'{"schema": 1, "boards": [{"index": "x"}]}',
    ],
    ids=lambda content: f"inject-05 {content[:30]}",
)
def test_inject_05_hardware_files_that_are_none(tmp_path, content):
    (tmp_path / "hw.json").write_bytes(content)
    refused(2, by=perfgen("plan", "--offline", "--sample", "--hardware", tmp_path / "hw.json"))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs pipes and /dev/zero")
@pytest.mark.parametrize("kind", ENDLESS_KINDS)
def test_files_that_never_end_are_not_read(tmp_path, kind):
    hardware = make_endless(tmp_path / "hw.json", kind)
    refused(2, "no file of at most", by=perfgen("plan", "--offline", "--sample", "--hardware", hardware))
    if kind == "endless":  # a pipe of rows ends
        done = perfgen("estimate", "--cases", make_endless(tmp_path / "cases.csv", kind), "--out", tmp_path / "out.csv")
        refused(4, "--cases", "no regular file", by=done)
    if kind != "large":
        folder = model(tmp_path / "m", files={"tokenizer.json": b"{}"})
        make_endless(folder / "model.safetensors", kind)
        refused(4, "model.safetensors is no regular file", by=perfgen("plan", *HERE, "--model", folder))


def test_names_too_long_for_the_file_system():
    long = "a" * 5000
    refused(2, "--hardware", by=perfgen("plan", "--offline", "--sample", "--hardware", long))
    refused(2, "--hardware", by=perfgen("plan", "--offline", "--sample", "--hardware", long + ".json"))
    refused(4, "--tokenizer", by=perfgen("plan", *HERE, "--model", MODELS / "llama-3.1-8b.json", "--tokenizer", long))


def test_a_folder_with_a_file_that_is_no_text_differs(tmp_path):
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke").code == 0
    (tmp_path / "new" / "train.py").write_bytes(b"\xff\xfe")
    done = perfgen("init", tmp_path / "new", *SAMPLE, "--diff")
    assert done.code == 7 and "train.py" in done.out and "1 of " in done.err


COUNTS = dict.fromkeys(meta_device.NUMBERS, 2) | {"architecture": "X", "kind": "decoder", "gated": True}
COUNTS |= {
    "tied_embeddings": False,
    "max_positions": None,
    "scans": False,
    "attention": [[2, 8, 16, None]],
    "state_elements": 0,
    "saved": [100.0, 40.0, 0.0, 0.0],
}


@pytest.mark.parametrize(
    "damaged",
    [
        *("", "[]", "{}", "5", "{bad", "[" * 100_000, json.dumps(COUNTS | {"layers": "2"})),
        *(json.dumps(COUNTS | {"layers": True}), json.dumps(COUNTS | {"more": 1})),
        json.dumps({key: value for key, value in COUNTS.items() if key != "gated"}),
        *(
            json.dumps(COUNTS | {"attention": kept})
            for kept in ([[2, 8]], [5], [[2, 8, None, None]], [[2, 8, 16, "x"]])
        ),
        *(json.dumps(COUNTS | {"saved": kept}) for kept in ([1.0], ["1", 1, 1, 1], [-1.0, 1, 1, 1], [1e999, 1, 1, 1])),
    ],
    ids=lambda text: text[:12],
)
def test_a_damaged_cache_of_counts_is_counted_anew(tmp_path, monkeypatch, damaged):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    child = f"import sys; sys.stdin.read(); print({json.dumps(COUNTS)!r})"
    start, calls = meta_device.run_process, []

    def count(command, *limits, **options):
        """The other process without Transformers: what it answers is told above."""
        calls.append(command)
        return start((command[0], "-c", child), *limits, **options)

    monkeypatch.setattr(meta_device, "run_process", count)
    config = {"model_type": "x"}
    first = meta_device.describe_on_meta(config, "x", "why")
    (path,) = (tmp_path / "perfgen").iterdir()
    assert meta_device.describe_on_meta(config, "x", "why") == first and len(calls) == 1, "the cache is read"
    path.write_text(damaged)
    assert meta_device.describe_on_meta(config, "x", "why") == first and len(calls) == 2
    assert json.loads(path.read_text()) == COUNTS and [*path.parent.iterdir()] == [path]


@pytest.mark.skipif(os.name == "nt", reason="pipes as on Unix")
@pytest.mark.parametrize("arguments", [("devices",), ("--help",), ("plan", "--help"), ("plan", *SAMPLE)], ids=" ".join)
def test_a_reader_that_stops_reading_is_no_failure(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "generator.cli", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


# ---- flags


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hardware", "1xv100-sxm2-16gb", "--pin", "precision=bf16"), ("precision=bf16", "compute capability")),
        (("--hardware", "cpu:4", "--pin", "trained=qlora"), ("trained=qlora", "--train full")),
        (("--hardware", "cpu:4", "--pin", "precision=fp32", "--pin", "precision=bf16"), ("fp32", "precision=bf16")),
        (("--hardware", "cpu:4", "--pin", "precision=bf17"), ("bf17", "bf16")),
        (("--hardware", "cpu:4", "--pin", "speed=max"), ("no axis speed", "precision")),
        (("--hardware", "cpu:4", "--allow", "adamw-8bits"), ("--allow adamw-8bits", "did you mean")),
        (("--hardware", "cpu:4", "--mode", "infer", "--pin", "optimizer=adamw"), ("optimizer",)),
        (("--hardware", "cpu:4", "--measure"), ("--measure", "--hardware")),
        (("--hardware", "cpu:4", "--json", "--answers"), ("--json", "--answers")),
        (("--hardware", "cpu:4", "--label-column", "x"), ("--label-column", "--task")),
        (("--hardware", "cpu:4", "--config", "x.json"), ("--config", "--model")),
        (("--hardware", "8xrtx-409"), ("--hardware", "rtx-4090")),
        (("--hardware", "nofile.json"), ("nofile.json", "detect --json")),
    ],
    ids=lambda value: f"flags-01 {' '.join(value[-2:])}" if value[0].startswith("--hardware") else None,
)
def test_flags_01_conflicts_name_what_contradicts(arguments, words):
    refused(2, *words, by=perfgen("plan", "--offline", "--sample", *arguments))


@pytest.mark.parametrize(
    "value", ["0", "-1", "1e309", "NaN", "１２", "0x10", "1_000", "", "9" * 400], ids=lambda v: f"flags-03 {v[:9]!a}"
)
@pytest.mark.parametrize(
    "option", ["--seq-len", "--global-batch", "--learning-rate", "--max-steps", "--lora-rank", "--epochs"]
)
def test_flags_03_numbers(option, value):
    refused(2, option, by=perfgen("plan", *SAMPLE, f"{option}={value}"))


def test_flags_04_typos_and_repetitions(tmp_path, monkeypatch):
    refused(2, "--global-batch", by=perfgen("plan", "--gobal-batch", 4))
    refused(2, "'smoke'", by=perfgen("smok"))
    twice = perfgen("plan", *SAMPLE, "--seq-len", 32, "--seq-len", 64, "--json")
    assert json.loads(twice.out)["yours"]["seq_len"] == 64, "the last one counts"
    monkeypatch.setenv("HF_HUB_OFFLINE", "nonsense")
    refused(2, "--offline", by=perfgen("plan"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("why", "precison", *HERE), "did you mean precision"),
        (("why", "precison", *HERE, "--json"), "did you mean precision"),
        (("why", "zzzz", *HERE), "nothing in this project is called 'zzzz'"),
        (("why-not", "bf17", *HERE), "did you mean bf16"),
        (("why-not", "none=", *HERE), "did you mean none?"),
        (("why-not", "zzzz", *HERE, "--json"), "perfgen techniques"),
    ],
    ids=lambda value: f"flags-04 {' '.join(value[:2])}" if isinstance(value, tuple) else None,
)
def test_flags_04_questions_about_what_is_not_there(arguments, words):
    refused(2, words, by=perfgen(*arguments))


@pytest.mark.parametrize("content", ["{bad", "[]", "{}", '{"schema": 1}', "\udcff"], ids=lambda c: f"flags-04 {c!a}")
@pytest.mark.parametrize("command", [("smoke",), ("why", "precision", "--project")], ids=["smoke", "why"])
def test_flags_04_folders_that_hold_no_plan(tmp_path, command, content):
    (tmp_path / "plan.json").write_bytes(content.encode(errors="surrogateescape"))
    refused(4, "plan.json", by=perfgen(*command, tmp_path))
    (tmp_path / "plan.json").unlink()
    refused(4, "plan.json", by=perfgen(*command, tmp_path))


WAYS = {
    "plain": ([], {}),
    "-O": (["-O"], {}),
    "-W error": (["-W", "error"], {}),
    "hash seed": ([], {"PYTHONHASHSEED": "random"}),
    "locale C": ([], {"LC_ALL": "C", "LANG": "C"}),
    "ASCII": ([], {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}),
    "other zone": ([], {"TZ": "Asia/Kathmandu", "COLUMNS": "40"}),
}


@pytest.mark.slow
def test_flags_06_the_same_bytes_whichever_way_python_runs(tmp_path):
    plans, trees = {}, {}
    for way, (flags, environment) in WAYS.items():
        start = [sys.executable, *flags, "-m", "generator.cli"]
        env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
        done = subprocess.run(
            [*start, "plan", *SAMPLE, "--json"], cwd=tmp_path, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, (way, done.stderr.decode(errors="replace"))
        plans[way] = done.stdout
        dest = tmp_path / way.strip("-").replace(" ", "") / "new"
        done = subprocess.run(
            [*start, "init", str(dest), *SAMPLE, "--no-smoke"], cwd=tmp_path, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, (way, done.stderr.decode(errors="replace"))
        trees[way] = {str(p.relative_to(dest)): p.read_bytes() for p in sorted(dest.rglob("*")) if p.is_file()}
    for way in WAYS:
        assert plans[way] == plans["plain"], way
        assert trees[way] == trees["plain"], way


# ---- smoke

RESULT = """import pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1])
out.mkdir(parents=True)
(out / "run.json").write_text('{}')
"""


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("raise RuntimeError('CUDA out of memory. Tried')", "out of memory"),
        ("raise OSError(28, 'No space left on device')", "the disk is full"),
        ("raise OSError(122, 'Disk quota exceeded')", "the disk is full"),
        ("raise ImportError('x.so: failed to map segment from shared object')", "noexec"),
        ("raise OSError(\"We couldn't connect to 'https://huggingface.co'\")", "no network"),
        ("pass", "no readable"),
        (RESULT.format("{}"), "lacks"),
    ],
    ids=["smoke-01", "smoke-06 disk", "smoke-06 quota", "smoke-06 noexec", "smoke-07", "smoke no result", "smoke half a result"],
)  # fmt: skip
def test_smoke_failures_are_exit_6_and_named(tmp_path, train, words):
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke").code == 0
    (tmp_path / "new" / "train.py").write_text(train)
    (tmp_path / "new" / "infer.py").write_text("print('an answer')")
    done = perfgen("smoke", tmp_path / "new", "--python", sys.executable)
    assert done.code == 6 and words in done.err and "perfgen: train" in done.err, done.err


def test_smoke_06_a_result_that_cannot_be_kept(tmp_path, monkeypatch):
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke").code == 0
    (tmp_path / "new" / "train.py").write_text(TRAINED)
    (tmp_path / "new" / "infer.py").write_text(ANSWERED)
    (tmp_path / "new" / "smoke.json").mkdir()
    done = perfgen("smoke", tmp_path / "new", "--python", sys.executable)
    assert done.code == 6 and "smoke.json" in done.err


def test_smoke_09_every_requirement_is_pinned(tmp_path):
    document = json.loads(perfgen("plan", *SAMPLE, "--json").out)
    assert document["requirements"] and all("==" in r for r in document["requirements"])


# ---- secrets

TOKEN = "hf_" + "CANARY" * 5


def test_secret_01_the_token_is_in_no_file_and_no_message(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / ".cache" / "huggingface" / "token").write_text(TOKEN)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, TOKEN)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("HF_ENDPOINT", f"https://user:{TOKEN}@localhost:9")
    for arguments in (
        ("init", tmp_path / "new", *HERE, "--no-smoke", "--json"),
        ("plan", *HERE, "--answers"),
        ("detect", "--json"),
        ("plan", *HERE, "--model", "owner/name"),
        ("plan", *HERE, "--model", f"https://user:{TOKEN}@huggingface.co/a/b"),
        ("plan", *HERE, "--data", f"https://huggingface.co/d?token={TOKEN}"),
        ("plan", *HERE, "--model", TOKEN + "/x y"),
        ("plan", *HERE, "--model", TOKEN + "/x y", "--json"),
    ):
        done = perfgen(*arguments)
        assert TOKEN not in done.out + done.err, arguments
    assert holding(tmp_path / "new", TOKEN.encode()) == []


def test_secret_01_a_token_that_the_project_prints_is_masked(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "not-of-the-usual-form")
    assert perfgen("init", tmp_path / "new", *SAMPLE, "--no-smoke").code == 0
    (tmp_path / "new" / "train.py").write_text(f"import os; raise SystemExit(os.environ['HF_TOKEN'] + ' {TOKEN}')")
    done = perfgen("smoke", tmp_path / "new", "--python", sys.executable)
    assert done.code == 6 and "***" in done.err
    assert TOKEN not in done.err and "not-of-the-usual-form" not in done.err


def test_secret_02_the_project_does_not_name_the_machine(tmp_path):
    told = json.loads((ROOT / "examples" / "cpu-2-cores-sample" / "hardware.json").read_text())
    board = {
        "index": 0,
        "vendor": "nvidia",
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-CANARY-1",
        "device": "h100-sxm-80gb",
    }
    board |= {"memory_bytes": 80 << 30, "compute_capability": "9.0", "pci_address": "0000:CA:00.0"}
    told |= {
        "boards": [board],
        "accelerators": [{"index": 0, "board": 0, "memory_bytes": 80 << 30, "uuid": "GPU-CANARY-2"}],
    }
    (tmp_path / "hw.json").write_text(json.dumps(told))
    done = perfgen("init", tmp_path / "new", "--offline", "--sample", "--hardware", tmp_path / "hw.json", "--no-smoke")
    assert done.code == 0, done.err
    for needle in (b"GPU-CANARY", b"0000:CA"):
        assert holding(tmp_path / "new", needle) == []


def test_secret_02_the_live_plan_does_not_name_the_host(monkeypatch):
    uname = os.uname()
    renamed = os.uname_result((uname.sysname, "canary-host", uname.release, uname.version, uname.machine))
    monkeypatch.setattr(os, "uname", lambda: renamed)
    monkeypatch.setattr(socket, "gethostname", lambda: "canary-host")
    monkeypatch.setenv("HOSTNAME", "canary-host")
    monkeypatch.setenv("USER", "canary-user")
    for arguments in (("plan", "--sample", "--offline", "--json"), ("plan", "--sample", "--offline", "--answers")):
        done = perfgen(*arguments)
        assert done.code == 0 and "canary" not in done.out


def test_every_refusal_has_its_documented_code():
    kinds = [*PerfgenError.__subclasses__(), DriftError]
    codes = {e.__name__: e.code for e in kinds if e.code != 1}  # 1: a bug of ours
    assert codes == {
        "UsageError": 2,
        "NothingFits": 3,
        "SourceError": 4,
        "DestinationError": 5,
        "SmokeError": 6,
        "DriftError": 7,
    }


def test_secret_01_a_token_in_a_wrong_place_is_not_repeated():
    """What click says of the command line repeats what was typed."""
    for words in (
        ("devices", "h100", "hf_0123456789abcdefghij"),
        ("plan", *SAMPLE, "--seq-len", "https://user:hunter2@host/x"),
        ("plan", *SAMPLE, "--pin", "hf_0123456789abcdefghij\x1b[31m"),
    ):
        done = perfgen(*words)
        refused(2, "***", by=done)
        assert not any(secret in done.err for secret in ("hf_0123", "hunter2", "\x1b[31m"))


def test_a_null_text_config_is_none(tmp_path):
    plain, null = (model(tmp_path / name, **changes) for name, changes in (("a", {}), ("b", {"text_config": None})))
    assert (
        read_spec(read_model(str(null), offline=True)).params == read_spec(read_model(str(plain), offline=True)).params
    )


def test_where_no_width_is_known_the_plan_is_shown_all_the_same(monkeypatch):
    """COLUMNS=0, as containers without a terminal have it, left nothing of it."""
    monkeypatch.setenv("COLUMNS", "0")
    assert "optimizer" in perfgen("plan", *SAMPLE).out
