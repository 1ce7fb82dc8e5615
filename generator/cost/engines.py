"""What runs a served model, one row each: how its kernels are started, what its cache is made of, what it does beside the arithmetic.

``Execution.engine`` names a row; "" is Transformers' own generate, whose host issues each operator. What is not stated is not done.
An engine of which nothing was measured has the defaults: kernels that a graph replays, and native code on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from generator.cost import constants as c


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One row."""

    replays: bool = False
    """a decoding step is a replayed graph: kernels follow each other without the host"""
    block_seconds: float = 0.0
    """beyond moving and multiplying, per block and step"""
    step_seconds: float = 0.0
    """of the host, between two steps"""
    sequence_seconds: float = 0.0
    """of the host or of small kernels, more for each sequence of a step"""
    request_seconds: float = 0.0
    """of the server, before the first token of a request and beside the steps"""
    streams_weights: bool = False
    """its step reads weights and caches faster than kernels copy, and multiplies after it has read"""
    vector_bytes: float = 0.0
    """bytes of weights that they read at most per float32 operation of the vector units meanwhile; 0: no such bound"""
    vector_reads: float = 0.0
    """the same of packed weights alone"""
    device_reads: float = 1.0
    """bytes of weights that one row is multiplied with on an accelerator, over those that a copy moves"""
    cache_realised: float = 1.0
    """share of the bandwidth at which decoding reads keys and values"""
    reads_by_head: bool = False
    """decoding reads keys and values once for each of their queries' heads"""
    holds_what_code_hands_on: bool = False
    """its cache is Transformers': keys and values as a model's own code makes them, repeated for its queries (Falcon) or all of those
    that a window has left (GPT-Neo)"""
    prompt_tokens: int = 0
    """of a prompt that are computed at a time; 0: all of them"""
    sums_in_16_bits: bool = False
    """its products add up in 16 bits, which GeForce boards do twice as fast as in 32"""
    packed_rate: float = 1.0
    """rate of a prompt's products with weights that are packed, over that with plain ones"""
    matrix_rate: float = 1.0
    """times the rate of a prompt's products on devices with matrix units that PyTorch does not use"""
    unpacks_prompts: bool = False
    """packed weights become 16-bit ones before they are multiplied with the tokens of a prompt"""
    mixes_prompts: bool = False
    """one pass computes next tokens and parts of prompts together (chunked prefill, in-flight batching)"""
    block_tokens: int = 1
    """a page of the cache: keys and values are allocated in such blocks"""
    memory_share: float = 0.0
    """of the device's memory that it takes at once, by default; 0: what it needs"""
    batched_tokens: int = 0
    """of all sequences that one step computes at most, by default; 0: no bound"""
    most_sequences: int = 0
    """computed together at most, by default; 0: no bound"""
    # on a CPU, by format of the weights (that of the arithmetic where they are plain)
    cpu_block_seconds: Mapping[str, float] = field(default_factory=dict)
    """instead of ``block_seconds``, where it is known"""
    has_narrow_kernels: bool = False
    """products are of registers of 256 bits, however wide the processor's are"""
    reads: Mapping[str, float] = field(default_factory=dict)
    """bytes of weights that one row is multiplied with, over those that a copy moves, were they only moved"""
    thread_reads: Mapping[str, float] = field(default_factory=dict)
    """bytes of them per second that a thread unpacks and multiplies, were they in its registers; none: at once"""
    few_rows: Mapping[str, float] = field(default_factory=dict)
    """operations per second with some rows over those of large products of 256 bits (PyTorch's bf16: of large ones); none: the same"""
    many_rows: Mapping[str, float] = field(default_factory=dict)
    """with a prompt's over those of large ones"""
    packed_bytes: Mapping[str, float] = field(default_factory=dict)
    """per weight, where its converter packs the embedding and the output layer too"""
    packed_head_bytes: Mapping[str, float] = field(default_factory=dict)
    """of those two, where it packs them less"""
    repacked_bytes: Mapping[str, float] = field(default_factory=dict)
    """of a block's, held beside the file as the kernels want them"""
    multiplies_in_16_bits: bool = False
    """unpacks packed weights to bf16, where the processor multiplies it faster"""
    weight_copies: float = 1.0
    """of the weights that it holds there"""
    embedding_copies: Mapping[str, float] = field(default_factory=dict)
    """of an input embedding of its own; 0: the rows that are looked up are all that is touched of the file; none: as of the others"""
    tied_copies: Mapping[str, float] = field(default_factory=dict)
    """beyond those, of an embedding that is the output layer too"""
    slot_tokens: int = 0
    """keys and values of all contexts, each in parts of so many tokens and one part more, are written as it starts; 0: as they come"""
    packed_cache_dtype: str = ""
    """of keys and values beside packed weights; empty: as the arithmetic"""
    process_gib: c.Constant = c.PROCESS_GIB
    """of the interpreter and the libraries on a CPU"""
    processes_beside: int = 0
    """those of a server whose devices have a process each; 0: one process does all"""


def list_cpu_formats(engine: str) -> dict[str, Any]:
    """The fields of ``Engine`` that say what it does on a CPU with each format of weights: tables by engine and format, its rows."""
    tables = {
        "cpu_block_seconds": c.CPU_BLOCK_SECONDS,
        "reads": c.CPU_READS,
        "thread_reads": c.CPU_THREAD_READS,
        "few_rows": c.CPU_FEW_ROWS,
        "many_rows": c.CPU_MANY_ROWS,
        "packed_bytes": c.CPU_PACKED_BYTES,
        "packed_head_bytes": c.CPU_PACKED_HEAD_BYTES,
        "repacked_bytes": c.CPU_REPACKED_BYTES,
        "embedding_copies": c.CPU_EMBEDDING_COPIES,
        "tied_copies": c.CPU_TIED_COPIES,
    }
    return {
        name: {kind: value for (owner, kind), value in table.items() if owner == engine}
        for name, table in tables.items()
    }


PAGED = Engine(replays=True, mixes_prompts=True, block_tokens=int(c.PAGE_TOKENS))


METAL = Engine(
    device_reads=c.METAL_READS,
    packed_rate=c.METAL_PACKED_RATE,
)
"""of engines on Apple's GPUs"""


def describe_vllm(version: str) -> Engine:
    """As it is today, and as published runs of older versions have it. Those of 0.6 on A100 read no faster than kernels copy."""
    return replace(
        PAGED,
        streams_weights=version != "vllm-0.6",
        step_seconds=c.VLLM_STEP_SECONDS[version],
        sequence_seconds=c.VLLM_SEQUENCE_SECONDS[version],
        request_seconds=c.VLLM_REQUEST_SECONDS,
        memory_share=c.VLLM_MEMORY_SHARE,
        batched_tokens=int(c.VLLM_BATCHED_TOKENS),
        most_sequences=int(c.VLLM_SEQUENCES),
        processes_beside=int(c.ENGINE_PROCESSES),
    )


def describe_metal(version: str) -> Engine:
    """llama.cpp on Apple's GPUs, as it is today and as published runs of before flash attention have it."""
    return replace(
        METAL,
        block_seconds=c.METAL_BLOCK_SECONDS["llama-cpp"],
        cache_realised=c.METAL_CACHE_REALISED["llama-cpp"],
        matrix_rate=c.METAL_MATRIX_RATE["llama-cpp"],
        vector_reads=c.METAL_VECTOR_READS[version],
        reads_by_head=version == "llama-cpp-metal-2024",
        prompt_tokens=int(c.LLAMA_CPP_BATCH),
        packed_cache_dtype="float16",
    )


ENGINES: Mapping[str, Engine] = {
    "": Engine(
        holds_what_code_hands_on=True,
        cache_realised=c.CACHE_REALISED,
        **list_cpu_formats(""),
    ),
    **{version: describe_vllm(version) for version in c.VLLM_STEP_SECONDS},
    "sglang": Engine(
        streams_weights=True,  # as vLLM, whose kernels it shares: nothing of it was measured here
        replays=True,
        mixes_prompts=True,
        memory_share=c.VLLM_MEMORY_SHARE,
        batched_tokens=int(c.VLLM_BATCHED_TOKENS),
        processes_beside=int(c.ENGINE_PROCESSES),
    ),
    "tensorrt-llm": Engine(
        replays=True,
        mixes_prompts=True,
        block_tokens=int(c.TENSORRT_BLOCK_TOKENS),
        memory_share=c.TENSORRT_MEMORY_SHARE,
        batched_tokens=int(c.TENSORRT_BATCHED_TOKENS),
        most_sequences=int(c.TENSORRT_SEQUENCES),
    ),
    "optimum-nvidia": Engine(replays=True),
    "gpt-fast": Engine(replays=True),
    "deepspeed-mii": Engine(block_seconds=c.ENGINE_BLOCK_SECONDS["deepspeed-mii"], block_tokens=int(c.PAGE_TOKENS)),
    "exllama": Engine(block_seconds=c.ENGINE_BLOCK_SECONDS["exllama"]),
    "autoawq": Engine(block_seconds=c.ENGINE_BLOCK_SECONDS["autoawq"]),
    "llama-cpp": Engine(
        block_seconds=c.ENGINE_BLOCK_SECONDS["llama-cpp"],
        vector_bytes=c.LLAMA_CPP_VECTOR_BYTES,
        cache_realised=c.CACHE_REALISED,
        prompt_tokens=int(c.LLAMA_CPP_BATCH),
        sums_in_16_bits=True,
        unpacks_prompts=True,
        has_narrow_kernels=True,  # the wheel's, on a CPU
        **list_cpu_formats("llama-cpp"),
        slot_tokens=int(c.LLAMA_CPP_SLOT_TOKENS),
        packed_cache_dtype="float16",
        process_gib=c.CPU_PROCESS_GIB["llama-cpp"],
    ),
    "ctranslate2": Engine(
        block_seconds=c.ENGINE_BLOCK_SECONDS["ctranslate2"],
        **list_cpu_formats("ctranslate2"),
        process_gib=c.CPU_PROCESS_GIB["ctranslate2"],
    ),
    "onnxruntime-genai": Engine(
        **list_cpu_formats("onnxruntime-genai"),
        process_gib=c.CPU_PROCESS_GIB["onnxruntime-genai"],
    ),
    "openvino-genai": Engine(
        **list_cpu_formats("openvino-genai"),
        cache_realised=c.CACHE_REALISED,
        multiplies_in_16_bits=True,
        weight_copies=c.CPU_WEIGHT_COPIES["openvino-genai"],
        process_gib=c.CPU_PROCESS_GIB["openvino-genai"],
    ),
    **{version: describe_metal(version) for version in c.METAL_VECTOR_READS},
    "mlx": replace(
        METAL,
        block_seconds=c.METAL_BLOCK_SECONDS["mlx"],
        cache_realised=c.METAL_CACHE_REALISED["mlx"],
        matrix_rate=c.METAL_MATRIX_RATE["mlx"],
        packed_bytes=c.MLX_PACKED_BYTES,
    ),
}


def find_engine(name: str) -> Engine:
    """Raises ``KeyError`` for one that has no row."""
    return ENGINES[name]
