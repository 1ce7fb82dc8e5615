"""--model FILE.gguf: the header is read, and nothing of a damaged or foreign one is believed; plan and project are for its own bytes."""

from __future__ import annotations

import ast
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from leaves import FRAGMENTS

from generator.case.request import Request
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.errors import NothingFits, PerfgenError, SourceError
from generator.inputs.gguf_files import MENDED, READ_AS_IS, read_gguf, read_header
from generator.inputs.model_files import read_model
from generator.inputs.model_sizes import read_spec
from generator.pipeline import document_request

F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8
HIDDEN, FFN, LAYERS, WORDS, HEADS, KV_HEADS = 64, 128, 2, 96, 4, 2
KINDS = {int: 4, float: 6, bool: 7, str: 8, list: 9}
FORMS = {int: "<I", float: "<f", bool: "<?"}


def pack_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def pack_value(value) -> bytes:
    if isinstance(value, str):
        return pack_text(value)
    if isinstance(value, list):
        return struct.pack("<IQ", KINDS[type(value[0])], len(value)) + b"".join(map(pack_value, value))
    return struct.pack(FORMS[type(value)], value)


def list_tensors(kind: int) -> dict[str, tuple[tuple[int, ...], int]]:
    """Of a Llama, the innermost size first; norms stay in 32 bits."""
    key = HIDDEN * KV_HEADS // HEADS
    made = {"token_embd.weight": ((HIDDEN, WORDS), kind), "output_norm.weight": ((HIDDEN,), F32)}
    for layer in range(LAYERS):
        sizes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (HIDDEN, key), "attn_v": (HIDDEN, key)}
        sizes |= {"attn_output": (HIDDEN, HIDDEN), "ffn_gate": (HIDDEN, FFN), "ffn_up": (HIDDEN, FFN)}
        made |= {
            f"blk.{layer}.{name}.weight": (size, kind) for name, size in (sizes | {"ffn_down": (FFN, HIDDEN)}).items()
        }
        made |= {f"blk.{layer}.{name}.weight": ((HIDDEN,), F32) for name in ("attn_norm", "ffn_norm")}
    return made


BYTES = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34)}
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 512,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": [f"t{number}" for number in range(WORDS)],
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{{ messages }}",
}


def write_gguf(path: Path, kind: int = Q8_0, version: int = 3, magic: bytes = b"GGUF", **changes) -> Path:
    metadata = {name: value for name, value in (METADATA | changes).items() if value is not None}
    tensors, offset, infos = list_tensors(kind), 0, b""
    for name, (sizes, of) in tensors.items():
        infos += pack_text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes) + struct.pack("<IQ", of, offset)
        block, each = BYTES[of]
        count = 1
        for size in sizes:
            count *= size
        offset += -(-count // block * each // 32) * 32
    entries = b"".join(pack_text(n) + struct.pack("<I", KINDS[type(v)]) + pack_value(v) for n, v in metadata.items())
    head = magic + struct.pack("<IQQ", version, len(tensors), len(metadata)) + entries + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32 + offset))
    return path


@pytest.mark.parametrize(("kind", "size"), [(F32, 4.0), (F16, 2.0), (Q8_0, 34 / 32), (Q4_0, 18 / 32)])
def test_sizes_are_those_of_the_header(tmp_path, kind, size):
    source = read_model(str(write_gguf(tmp_path / "m.gguf", kind)), offline=True, mode="infer")
    spec = read_spec(source)
    elements = sum(tensor.elements for tensor in read_header(tmp_path / "m.gguf").tensors)
    assert (spec.layers, spec.hidden, spec.ffn, spec.vocab, spec.kv_heads) == (LAYERS, HIDDEN, FFN, WORDS, KV_HEADS)
    assert spec.params == elements and spec.tied_embeddings and spec.max_positions == 512
    assert source.name == "m" and source.has_tokenizer and source.has_chat_template
    norms = (2 * LAYERS + 1) * HIDDEN
    assert source.weight_bytes == spec.stored_bytes == (elements - norms) * size + norms * 4


def test_a_file_without_template_or_tokenizer_says_so(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", **{"tokenizer.chat_template": None, "tokenizer.ggml.tokens": None})
    source = read_gguf(path, "infer")
    assert not source.has_chat_template and not source.has_tokenizer
    with pytest.raises(SourceError, match="has no tokenizer"):
        document_request(Request(model=str(path), mode="infer", hardware="cpu:4,16gb", offline=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pre": "deepseek-coder"}, r"cuts texts by rules \('deepseek-coder'\)"),
        ({"pre": None}, "does not say by which rules it cuts texts"),
        ({"model": "plamo2"}, "is of the kind 'plamo2'"),
        ({"model": "bert", "pre": "smollm"}, "is of the kind 'bert'"),
    ],
    ids=str,
)
def test_a_tokenizer_that_would_read_texts_otherwise_is_not_taken(tmp_path, changes, words):
    """Transformers cuts by GPT-2's rules where it knows none. Another tokenizer can be given."""
    path = write_gguf(tmp_path / "m.gguf", **{f"tokenizer.ggml.{name}": value for name, value in changes.items()})
    request = Request(model=str(path), mode="infer", hardware="cpu:4,16gb", offline=True)
    with pytest.raises(SourceError, match=words) as error:
        document_request(request)
    assert "--tokenizer" in error.value.hint
    (tmp_path / "tokenizer.json").write_text("{}")
    document_request(replace(request, tokenizer=str(tmp_path)))


def test_what_the_plan_takes_for_mended_convert_mends():
    leaf = (FRAGMENTS / "conversions" / "gguf_file.py").read_text(encoding="utf-8")
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(leaf).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert sorted(MENDED) == sorted(values["SINGLE_DIGITS"] + values["WHOLE_WORDS"])
    assert not MENDED & READ_AS_IS


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"magic": b"GGML"}, "does not begin with GGUF"),
        ({"version": 1}, "of version 1"),
        ({"version": 3 << 24}, "of version"),
        ({"general.architecture": "mamba"}, "holds a model of type 'mamba'"),
        ({"general.architecture": "clip"}, "holds a model of type 'clip'"),
        ({"general.architecture": 7}, "holds a model of type 7"),
        ({"llama.block_count": None}, "holds no whole model"),
        ({"llama.embedding_length": None}, "cannot size"),
        ({"llama.embedding_length": "wide"}, "cannot size"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.attention.head_count_kv": [2, 1]}, "differs from layer to layer"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"general.alignment": 0}, "general.alignment is 0"),
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_in_words(tmp_path, changes, words):
    path = write_gguf(tmp_path / "m.gguf", **changes)
    with pytest.raises(SourceError, match=words) as error:
        read_spec(read_gguf(path, "infer"))
    assert error.value.hint


def test_every_beginning_of_a_file_is_refused(tmp_path):
    """As a download leaves it that was broken off, at any byte of the header and within the weights."""
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    begins = read_header(tmp_path / "m.gguf").data_begins
    part = tmp_path / "part.gguf"
    for length in (0, *range(1, begins, 7), begins, len(whole) - 64):
        part.write_bytes(whole[:length])
        with pytest.raises(SourceError):
            read_gguf(part, "infer")


@pytest.mark.parametrize("place", [8, 16, 24])
def test_counts_that_are_no_counts_take_no_time_and_no_memory(tmp_path, place):
    """Of tensors, of entries, and the length of the first name."""
    content = bytearray(write_gguf(tmp_path / "m.gguf").read_bytes())
    content[place : place + 8] = b"\xff" * 8
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(SourceError):
        read_gguf(tmp_path / "m.gguf", "infer")


def test_it_is_served_and_not_trained(tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    with pytest.raises(SourceError, match="served and not trained") as error:
        read_model(str(path), offline=True, mode="train")
    assert "safetensors" in error.value.hint
    folder = tmp_path / "folder"
    folder.mkdir()
    write_gguf(folder / "m.gguf")
    with pytest.raises(SourceError, match="holds GGUF files only") as error:
        read_model(str(folder), offline=True, mode="infer")
    assert f"--model {folder / 'm.gguf'}" in error.value.hint


def test_the_project_serves_the_file_itself(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", Q4_0)
    document = document_request(
        Request(model=str(path), mode="infer", hardware="cpu:4,16gb", offline=True, concurrency=2), for_project=True
    )
    assert (document.choice["engine"], document.choice["quantization"]) == ("llama-cpp", "stored")
    stored = sum(tensor.bytes for tensor in read_header(path).tensors)
    assert document.estimate.memory_gib["weights"] == pytest.approx(stored / 2**30, rel=1e-4)
    made = tmp_path / "p"
    made.mkdir()
    render(to_json(document), made)
    config = yaml.safe_load((made / "config.yaml").read_text())
    assert config["model"] == "./model/m.gguf" and config["serving"]["weights"] == "checkpoint"
    assert config["serving"]["converted"] == "weights" and config["serving"]["name"] == "m"
    assert "GGUFReader" in (made / "convert.py").read_text()
    assert "gguf==" in (made / "requirements-convert.txt").read_text()


def test_where_no_engine_reads_it_each_says_why(tmp_path):
    with pytest.raises(PerfgenError) as error:
        document_request(
            Request(model=str(write_gguf(tmp_path / "m.gguf")), mode="infer", hardware="1xl40s", offline=True)
        )
    assert "the checkpoint is quantized (gguf), and of such it runs" in str(error.value)


def test_a_mac_serves_it_by_metal(tmp_path):
    """llama.cpp's wheel for macOS has Metal's kernels; the guard that compares the machine has torch."""
    path = write_gguf(tmp_path / "m.gguf", Q4_0)
    document = document_request(
        Request(model=str(path), mode="infer", hardware="m2-ultra", offline=True, concurrency=2), for_project=True
    )
    assert (document.choice["engine"], document.choice["quantization"]) == ("llama-cpp", "stored")
    assert "local.csv" in document.estimate.time_sources["launch"].source
    made = tmp_path / "p"
    made.mkdir()
    render(to_json(document), made)
    packages = (made / "pyproject.toml").read_text()
    assert "xllamacpp==" in packages and "torch==" in packages
    assert "threads" not in yaml.safe_load((made / "config.yaml").read_text())["serving"]
    assert 'serving["threads"]' not in (made / "engine.py").read_text()


@pytest.mark.parametrize("hardware", ["4090", "8xh100-sxm"])
def test_where_no_engine_reads_it_the_refusal_says_what_does(tmp_path, hardware):
    path = write_gguf(tmp_path / "m.gguf", Q4_0)
    with pytest.raises(NothingFits) as error:
        document_request(Request(model=str(path), mode="infer", hardware=hardware, offline=True))
    assert "weights that this checkpoint was made from, or serve it on CPUs (--hardware cpu)" in error.value.hint
