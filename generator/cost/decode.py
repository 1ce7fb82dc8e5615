"""Seconds of one step of decoding: every sequence of a batch gets its next token."""

from __future__ import annotations

import math
from typing import NamedTuple

from generator.cost import constants as c
from generator.cost.comm import Group, compute_all_reduce_seconds, compute_served_all_reduce_seconds
from generator.cost.device import Rates
from generator.cost.engines import Engine, find_engine
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape
from generator.cost.time import compute_stall_seconds, count_forward_operators, count_routing_operators
from generator.cost.weights import (
    OF_TORCHAO,
    compute_bytes_per_head_weight,
    compute_bytes_per_weight,
    count_packed_params,
    packs_whole_model,
    place_weights,
)
from generator.model import Attended

GROWING = ("dynamic", "tuple")
"""caches that torch.cat makes anew for each token"""


class Step(NamedTuple):
    """Seconds that the device moves and multiplies, and how much longer a step takes."""

    busy: float
    beyond: float


def compute_cache_bytes(shape: Shape, run: Execution, tokens: float, *, divided: bool = False) -> float:
    """Keys and values of ``tokens`` positions for the whole batch, in whole pages where the engine has them; ``divided``: what one
    device has of them."""
    if run.cache in ("none", "offloaded"):
        return 0.0
    page = find_engine(run.engine).block_tokens
    tokens = math.ceil(tokens / page) * page if page > 1 else tokens
    beside_packed = run.packed_cache_dtype or find_engine(run.engine).packed_cache_dtype if run.quant != "none" else ""
    dtype = run.cache_dtype or beside_packed or run.compute_dtype
    each = c.QUANTIZED_CACHE_BYTES if run.cache == "quantized-4bit" else BYTES[dtype]
    kept = 0.0
    held = find_engine(run.engine).holds_what_code_hands_on
    for kind in (kind.as_held() if held else kind for kind in shape.attended):
        share = find_cached_share(shape, run, kind) if divided else 1.0
        kept += share * kind.layers * kind.cached * min(tokens, kind.window or tokens)
    kept += shape.state_elements / (run.parts if divided else 1)  # recurrent states do not grow
    return kept * run.micro_batch * each


def find_cached_share(shape: Shape, run: Execution, kind: Attended) -> float:
    """Of one kind of layers' keys and values, what one device has. Where there are fewer heads than tensor parts, several parts have
    the same ones; a latent (DeepSeek) has none to divide: each part has all of it."""
    one_head = 2 * kind.width / max(shape.heads, 1)
    heads = kind.cached / one_head if one_head else 1.0
    return max(1 / run.tp, 1 / heads if heads and heads % 1 == 0 else 1.0) / run.pp


def compute_step(shape: Shape, run: Execution, rates: Rates, context: float) -> Step:
    """One new token of each of ``run.micro_batch`` sequences that have ``context`` cached tokens on average."""
    if run.rows_apart and run.micro_batch > 1:
        one = compute_step(shape, run.but(micro_batch=1), rates, context)
        return Step(one.busy * run.micro_batch, one.beyond * run.micro_batch)
    engine = find_engine(run.engine)
    batch = float(run.micro_batch)
    cache = compute_cache_bytes(shape, run, context) * count_cache_passes(shape, run)
    busy = compute_products_seconds(shape, run, rates, engine, batch)
    busy += cache / find_cache_rate(rates, engine)
    busy = busy / run.tp + compute_slice_exchange_seconds(shape, run, rates, batch)
    busy += compute_expert_exchange_seconds(shape, run, rates, batch) + compute_offloaded_seconds(shape, run, rates)
    if run.engine:
        around = engine.step_seconds + engine.sequence_seconds * batch
        return Step(busy, shape.layers * compute_block_seconds(run, rates, engine) + around)
    issue = compute_pass_issue_seconds(shape, run, rates)
    if run.compile and run.quant in OF_TORCHAO and not rates.on_cpu:
        busy += (
            shape.layers * sum(x.count for x in shape.linears if x.share == 1.0) * c.PRODUCT_START_SECONDS[run.quant]
        )
    if rates.on_cpu:
        return Step(busy / (c.CPU_COMPILED_READ_GAIN if run.compile else 1.0), issue)
    # after each token generate waits to hear whether all answers have ended, before it issues anything more
    around = c.GENERATION_OPERATORS * rates.launch_seconds
    return Step(busy, compute_stall_seconds(issue, busy) + around)


def find_cache_rate(rates: Rates, engine: Engine) -> float:
    """Bytes of keys and values per second."""
    return rates.read_bytes_per_s if engine.streams_weights else rates.bytes_per_s * engine.cache_realised


def compute_offloaded_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """Of one pass: weights that the devices have no room for come over the link from the host, before that from its disk, device after
    device. Nothing is computed meanwhile (accelerate 1.15, hooks.py)."""
    if run.offload_params == "none":
        return 0.0
    places = place_weights(shape, run)
    over = 0.0 if rates.on_cpu else (places.host + places.disk) / (rates.host_link_bytes_per_s * c.PAGEABLE_SHARE)
    return run.pp * (over + places.disk / rates.nvme_bytes_per_s)


def compute_products_seconds(shape: Shape, run: Execution, rates: Rates, engine: Engine, rows: float) -> float:
    """Products of ``rows`` hidden states with all weights: whichever takes longer, reading or multiplying."""
    kind = find_cpu_format(run, rates, engine)
    multiplied = shape.layers * sum(x.params * x.share for x in shape.linears)
    # on an accelerator the head's arithmetic hides behind its reading
    multiplied += shape.head_outputs * shape.hidden if rates.on_cpu else 0.0
    rate = find_few_rows_rate(run, rates, engine, kind)
    # a CPU's share of the bandwidth is that of a product with one row
    alone = 1.0 if rates.on_cpu else 0.0
    arithmetic = 2 * (rows - alone) * multiplied / rate
    read = count_weights_read(shape, run, rows) / find_read_rate(run, rates, engine, rows, kind)
    unpacked = compute_unpack_seconds(shape, run, rates, rows)
    apart = rates.on_cpu or engine.streams_weights
    return unpacked + (read + arithmetic if apart else math.hypot(read, arithmetic))


def find_product_dtype(run: Execution) -> str:
    """Floating point of 8 and 4 bits is multiplied as it is; other packed weights in the dtype of what they meet."""
    return {"float8": "float8", "nvfp4": "float4"}.get(run.quant, run.compute_dtype)


def find_cpu_rate(run: Execution, rates: Rates, engine: Engine) -> float:
    """Operations per second of large products on a CPU: as PyTorch has them, or an engine's own kernels."""
    if not run.engine:
        return rates.product(find_product_dtype(run), run.tf32)
    half = rates.product("bfloat16", run.tf32)
    if unpacks_to_bf16(run, rates, engine) or run.compute_dtype == "bfloat16":
        return half
    if engine.has_narrow_kernels:
        return rates.narrow
    if rates.has_tiles:
        return rates.product("float32", run.tf32)
    # a dot product of bf16 is two multiplications in the lane of one: half of its rate is that of 32 bits, also where PyTorch's library
    # does not use the processor's width (MKL on Zen 5: 0.1 of 0.45e12)
    return max(rates.product("float32", run.tf32), half / 2)


def find_few_rows_rate(run: Execution, rates: Rates, engine: Engine, kind: str) -> float:
    """Operations per second of products with some rows. Those of engines on a CPU are wide for many rows alone; PyTorch's of bf16 for
    any number."""
    if not rates.on_cpu:
        return rates.product(find_product_dtype(run), run.tf32)
    in_bf16 = not run.engine and run.compute_dtype == "bfloat16"
    return (rates.product("bfloat16", run.tf32) if in_bf16 else rates.narrow) * engine.few_rows.get(kind, 1.0)


def unpacks_to_bf16(run: Execution, rates: Rates, engine: Engine) -> bool:
    faster = rates.product("bfloat16", run.tf32) > rates.product("float32", run.tf32)
    return engine.multiplies_in_16_bits and run.quant != "none" and faster


def find_cpu_format(run: Execution, rates: Rates, engine: Engine) -> str:
    """Of the weights as an engine on a CPU multiplies them, by the instructions that it has for that."""
    kind = run.compute_dtype if run.quant == "none" else run.quant
    if unpacks_to_bf16(run, rates, engine):
        kind = f"{run.quant} by bf16"
    if run.steps_directly and kind == "bfloat16":
        kind = "packed bfloat16"  # in oneDNN's layout, by direct_step.py
    if not run.engine and kind == "float32" and rates.narrow < rates.products["fp32"]:
        return "float32 by AVX-512"  # MKL's, which has such kernels for Intel's processors alone
    if rates.has_tiles and f"{kind} with AMX" in engine.many_rows:
        return f"{kind} with AMX"
    slower = f"{kind} without VNNI"
    return slower if slower in engine.many_rows and not multiplies_int8(rates) else kind


def multiplies_int8(rates: Rates) -> bool:
    """Whether a CPU has instructions for products of 8 bits: without, its rate of them is that of an emulated dtype."""
    return rates.products["int8"] > rates.products["fp32"]


def find_read_rate(run: Execution, rates: Rates, engine: Engine, rows: float, kind: str) -> float:
    if rates.on_cpu:
        copied = rates.bytes_per_s / c.CPU_READ_REALISED * engine.reads.get(kind, c.CPU_READ_REALISED)
        each = engine.thread_reads.get(kind, math.inf) * (run.threads or 1)
        return 1 / (1 / copied + 1 / each)
    if engine.streams_weights:
        return rates.read_bytes_per_s
    most = engine.vector_reads if run.quant != "none" and engine.vector_reads else engine.vector_bytes
    read = rates.bytes_per_s * engine.device_reads
    return min(read, rates.vector * most) if most and rows == 1 else read


def compute_block_seconds(run: Execution, rates: Rates, engine: Engine) -> float:
    """Of a block, beside moving and multiplying."""
    if rates.on_cpu:
        return engine.cpu_block_seconds.get(find_cpu_format(run, rates, engine), engine.block_seconds)
    if not engine.replays:
        return engine.block_seconds
    start = c.PRODUCT_START_SECONDS.get(run.quant, c.PRODUCT_START_SECONDS["default"])
    return c.BLOCK_PRODUCTS * start + c.DECODE_ATTENTION_SECONDS + c.BLOCK_KERNELS * c.KERNEL_SECONDS


def compute_slice_exchange_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float) -> float:
    """Two all-reduces of the hidden states per block."""
    if run.tp == 1:
        return 0.0
    volume = tokens * shape.hidden * BYTES[run.compute_dtype]
    compute = compute_served_all_reduce_seconds if run.engine else compute_all_reduce_seconds
    return 2 * shape.layers * compute(volume, Group(run, run.tp), rates)


def compute_expert_exchange_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float) -> float:
    """Tokens go to the devices of their experts and come back, in each block that has them. Experts that tensor parts of one copy
    divide need neither: their sums are those of the slices."""
    if run.ep <= run.tp or not shape.experts:
        return 0.0
    sent = tokens * shape.hidden * shape.experts_per_token * BYTES[run.compute_dtype] / run.tp * (run.ep - 1) / run.ep
    second = Group(run, run.ep).bytes_per_s(rates) * c.ONE_SHOT_REALISED
    return 2 * shape.moe_layers * (c.ONE_SHOT_SECONDS + sent / second)


def count_cache_passes(shape: Shape, run: Execution) -> float:
    """How often a token reads or writes the cache. Most engines' kernels read grouped heads as they are."""
    if run.engine:
        return shape.query / max(shape.key, 1) if find_engine(run.engine).reads_by_head else 1.0
    passes = 3.0 if run.cache in GROWING else 1.0  # torch.cat reads and writes the cache before it is used
    repeat = shape.query / max(shape.key, 1)
    repeats = run.repeats_keys or run.attention == "eager" or (run.attention == "sdpa" and run.repeats_heads)
    if repeat > 1 and repeats:
        passes += 2 * repeat  # repeat_kv writes the heads out and attention reads them
    return passes


def count_weights_read(shape: Shape, run: Execution, rows: float) -> float:
    """Bytes of weights that a step reads: all dense ones of the blocks, the experts that its tokens go to, and the output layer."""
    per_weight = compute_bytes_per_weight(shape, run)
    # experts of several copies: as many more tokens go to them, and each device reads as many fewer
    copies = max(1.0, run.ep / run.tp)
    # tokens choose experts apart from each other, so that a batch touches at most as many shares as it has tokens
    touched = sum(
        x.params * (min(1.0, x.share * rows * copies) / copies if x.count > 1 else x.share) for x in shape.linears
    )
    return shape.layers * touched * per_weight + compute_head_bytes(shape, run)


def compute_head_bytes(shape: Shape, run: Execution) -> float:
    """Of the output layer as it is read."""
    each = compute_bytes_per_head_weight(run) if packs_whole_model(run) else BYTES[run.compute_dtype]
    return shape.head_outputs * shape.hidden * each


def compute_unpack_seconds(shape: Shape, run: Execution, rates: Rates, rows: float) -> float:
    """bitsandbytes unpacks 4 bits before it multiplies more than one row, kernels of GPTQ and AWQ from some rows on; LLM.int8()
    multiplies 8 as they are; engines' kernels (Marlin), and compiled ones, unpack while they multiply. torchao's 8 bits are written
    in 16 wherever they meet more than one row: a prompt is not compiled."""
    if run.engine or rates.on_cpu:
        return 0.0
    packed = count_packed_params(shape, run)
    written_out = 2 * packed * BYTES[run.compute_dtype] / rates.bytes_per_s  # in 16 bits, and read again
    if run.quant == "torchao-int8" and (rows > 1 or not run.compile):
        return written_out
    if run.compile:
        return 0.0
    if run.quant == "nf4" and rows > 1:  # of one row it multiplies 4 bits as they are (gemv_4bit)
        realised = c.DEQUANT_REALISED if run.double_quant else c.PLAIN_DEQUANT_REALISED
        return packed * c.DEQUANT_BYTES / (rates.bytes_per_s * realised)
    if run.quant in ("gptq-4bit", "gptq-8bit") and rows >= c.RECONSTRUCTED_ROWS:
        return written_out
    return 0.0


def compute_pass_issue_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """Host time of one forward pass of Transformers' generate."""
    operators = count_forward_operators(shape, run)
    left = 1.0
    if run.steps_directly:
        left = c.CPU_DIRECT_OPERATOR_SHARE
    if run.compile:
        left = c.CPU_COMPILED_OPERATOR_SHARE if rates.on_cpu else c.COMPILED_LAUNCH_SHARE
    operators *= left if left < 1 else c.DECODE_QUANT_OPERATORS.get(run.quant, 1.0)
    operators += count_routing_operators(shape, run)
    outside = c.GENERATION_OPERATORS * left if rates.on_cpu else 0.0
    each = c.CPU_GENERATION_OPERATOR_SECONDS if rates.on_cpu else rates.launch_seconds
    return (shape.layers * operators + outside) * each
