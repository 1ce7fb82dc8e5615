"""--model FILE.gguf: sizes, formats and tokenizer from the file's own header; its tensors are not read.

Format: github.com/ggml-org/ggml, docs/gguf.md (versions 2 and 3, little-endian); bytes of blocks: its src/ggml-common.h.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.errors import SourceError
from generator.inputs.model_source import ModelSource

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_ENTRIES, MOST_DEPTH = 1 << 20, 4
"""Of metadata and tensors; of arrays in arrays: beyond them, a header is none."""
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
ALIGNMENT = 32
BLOCKS = {
    **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 28: ("F64", 1, 8)},
    **{2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34)},
    **{10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176)},
    **{14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74)},
    **{18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110)},
    **{22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54)},
    **{35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17)},
}
"""Of ggml's types, by number: name, weights of a block, its bytes."""
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""Whose files were served, converted from Transformers' own; the names are Transformers' too."""
READ_AS_IS = frozenset(
    [
        *("a.x-4.0", "dbrx", "deepseek-r1-qwen", "gpt-2", "gpt-4o", "granite-docling", "jais", "llama4", "megrez"),
        *("mellum", "mpt", "olmo", "phi-2", "qwen2", "qwen35", "smaug-bpe", "trillion"),
    ]
)
MENDED = frozenset(
    [
        *("codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"),
        *("falcon-h1", "falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "midm-2.0", "pixtral", "tekken"),
    ]
)
"""Values of tokenizer.ggml.pre, which says how a text is cut before words are put together: those for which the tokenizer of
Transformers 5.23, and those for which the project's convert.py, reads texts as llama.cpp does (tests/engines/test_llama_cpp.py)."""
HINT = "give the folder with the safetensors checkpoint that it was made from"


@dataclass(frozen=True, slots=True)
class Skipped:
    """An array of so many elements, which nobody asks for."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    name: str
    sizes: tuple[int, ...]
    """The innermost first."""
    kind: str
    bytes: int
    offset: int

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    data_begins: int


class Reader:
    """Values from the beginning of a file, one after another. Raises ``struct.error``, ``ValueError``."""

    def __init__(self, content: mmap.mmap | bytes) -> None:
        self.content, self.place = content, 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.content, self.place)
        self.place += struct.calcsize(f"<{form}")
        return value

    def skip(self, count: int) -> None:
        if count > len(self.content) - self.place:
            raise ValueError("it ends within its header")
        self.place += count

    def take_text(self) -> str:
        length = self.take("Q")
        start = self.place
        self.skip(length)
        return self.content[start : start + length].decode("utf-8")

    def take_value(self, kind: int, depth: int = 0) -> Any:
        if kind in NUMBERS:
            return self.take(NUMBERS[kind])
        if kind == TEXT:
            return self.take_text()
        if kind != ARRAY or depth == MOST_DEPTH:
            raise ValueError(f"its metadata has values of a kind {kind} that there is not")
        inner, count = self.take("I"), self.take("Q")
        if inner in NUMBERS:
            self.skip(count * struct.calcsize(NUMBERS[inner]))
        else:
            for _ in range(count):
                self.skip_value(inner, depth + 1)
        return Skipped(count)

    def skip_value(self, kind: int, depth: int) -> None:
        if kind == TEXT:
            self.skip(self.take("Q"))
        else:
            self.take_value(kind, depth)


def read_gguf(path: Path, mode: str) -> ModelSource:
    """A file with its weights and its tokenizer. Raises ``SourceError``."""
    if mode != "infer":
        raise SourceError(f"{path} is a GGUF file, which is served and not trained", HINT)
    header = read_header(path)
    kept = header.metadata
    problem = explain_tokenizer(path, kept)
    return ModelSource(
        kind="gguf",
        name=path.stem,
        path=str(path),
        config=json.dumps(describe_config(path, header)),
        has_weights=True,
        has_tokenizer="tokenizer.ggml.tokens" in kept and not problem,
        tokenizer_problem=problem,
        has_chat_template=bool(kept.get("tokenizer.chat_template")),
        weight_bytes=sum(tensor.bytes for tensor in header.tensors),
    )


def explain_tokenizer(path: Path, kept: Mapping[str, Any]) -> str:
    """Why the tokenizer that the file has would not read texts as the model's own, or nothing."""
    kind, cut = kept.get("tokenizer.ggml.model"), kept.get("tokenizer.ggml.pre")
    if "tokenizer.ggml.tokens" not in kept or kind == "llama" or (kind == "gpt2" and cut in READ_AS_IS | MENDED):
        return ""
    why = f"is of the kind {kind!r}, which is not read here"
    if kind == "gpt2":
        why = f"cuts texts by rules ({cut!r}) that are not known here"
    if kind == "gpt2" and cut is None:
        why = "does not say by which rules it cuts texts (tokenizer.ggml.pre), as in files of before May 2024"
    return f"the tokenizer in {path} {why}: prompts would be other tokens than the model was trained on"


def read_header(path: Path) -> Header:
    """Raises ``SourceError`` for what is no whole GGUF file of a version that is read."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            header = parse_header(content)
            size = len(content)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", "give a file that you may read") from error
    except (struct.error, ValueError, OverflowError) as error:  # a UnicodeDecodeError is a ValueError
        why = "it ends within its header" if isinstance(error, struct.error) else error
        raise SourceError(f"{path} is no GGUF file that can be read: {why}", "download it again") from error
    ends = max((header.data_begins + tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
    if ends > size:
        raise SourceError(
            f"{path} has {size:,} bytes, and its header tells of {ends:,}: it is not whole", "download it again"
        )
    return header


def parse_header(content: mmap.mmap | bytes) -> Header:
    if content[:4] != MAGIC:
        raise ValueError("it does not begin with GGUF")
    reader = Reader(content)
    reader.skip(4)
    version, tensor_count, entry_count = reader.take("I"), reader.take("Q"), reader.take("Q")
    if version not in VERSIONS:
        raise ValueError(f"it is of version {version}, and versions 2 and 3 are read")
    if max(tensor_count, entry_count) > MOST_ENTRIES:
        raise ValueError(f"its header tells of {tensor_count:,} tensors and {entry_count:,} entries")
    metadata = {}
    for _ in range(entry_count):
        name = reader.take_text()
        metadata[name] = reader.take_value(reader.take("I"))
    tensors = tuple(read_tensor(reader) for _ in range(tensor_count))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    return Header(metadata=metadata, tensors=tensors, data_begins=-(-reader.place // alignment) * alignment)


def read_tensor(reader: Reader) -> Tensor:
    name, rank = reader.take_text(), reader.take("I")
    if rank > 4:
        raise ValueError(f"tensor {name} has {rank} dimensions")
    sizes = tuple(reader.take("Q") for _ in range(rank))
    kind, offset = reader.take("I"), reader.take("Q")
    if kind not in BLOCKS:
        raise ValueError(f"tensor {name} is of ggml's type {kind}, which is not known here")
    known, block, size = BLOCKS[kind]
    return Tensor(name=name, sizes=sizes, kind=known, bytes=math.prod(sizes) // block * size, offset=offset)


def describe_config(path: Path, header: Header) -> dict[str, Any]:
    """The config.json that the model would have. Raises ``SourceError`` for what is not served."""
    kept, tensors = header.metadata, {tensor.name: tensor for tensor in header.tensors}
    if isinstance(parts := kept.get("split.count"), int) and parts > 1:
        raise SourceError(f"{path} is one of {parts} parts of a model", "join them: llama-gguf-split --merge FIRST ALL")
    architecture = kept.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise SourceError(f"{path} holds a model of type {architecture!r}; of GGUF files, {known} are served", HINT)
    if "token_embd.weight" not in tensors or f"{architecture}.block_count" not in kept:
        raise SourceError(f"{path} holds no whole model: sizes or embeddings are missing", HINT)

    def find(name: str) -> Any:
        value = kept.get(f"{architecture}.{name}")
        if isinstance(value, Skipped):
            raise SourceError(f"{path}: {architecture}.{name} differs from layer to layer, which is not served", HINT)
        return value

    if find("expert_count"):
        raise SourceError(f"{path} holds a mixture of experts, which was not tried as a GGUF file", HINT)
    heads = find("attention.head_count")
    config = {
        "model_type": architecture,
        "architectures": [ARCHITECTURES[architecture]],
        "hidden_size": find("embedding_length"),
        "num_hidden_layers": find("block_count"),
        "intermediate_size": find("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": find("attention.head_count_kv") or heads,
        "head_dim": find("attention.key_length"),
        "vocab_size": tensors["token_embd.weight"].sizes[-1],
        "max_position_embeddings": find("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "quantization_config": describe_formats(header.tensors),
    }
    return {name: value for name, value in config.items() if value is not None}


def describe_formats(tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    """``kind`` is the format of most of its weights, ``bytes`` those of all tensors."""
    weights: Counter[str] = Counter()
    for tensor in tensors:
        weights[tensor.kind] += tensor.elements
    (kind, _), *_ = weights.most_common(1)
    return {"quant_method": "gguf", "kind": kind, "bytes": sum(tensor.bytes for tensor in tensors)}
