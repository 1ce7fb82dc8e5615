"""Memory and time of generation: one prefill of the prompt, then one pass of the weights per new token."""

from __future__ import annotations

import math

from generator.cost import constants as c
from generator.cost.comm import Group, compute_all_reduce_seconds
from generator.cost.device import Rates
from generator.cost.execution import BYTES, Execution
from generator.cost.memory import find_source
from generator.cost.shape import Shape
from generator.cost.time import (
    compute_linear_seconds,
    compute_product_seconds,
    compute_stall_seconds,
    count_forward_operators,
    count_routing_operators,
)
from generator.cost.weights import compute_dequantized_bytes, compute_stored_bytes, count_packed_params

GROWING = ("dynamic", "tuple")
"""caches that torch.cat makes anew for each token"""
SOURCES = {
    "kv cache": "2 x layers x kv heads x head size x tokens x bytes (transformers docs, llm_tutorial_optimization)",
    "prefill activations": "widest point of one block over the prompt (Transformers implementation)",
    "decode buffers": "torch.cat holds the old and the new cache of one layer",
}


def find_held_source(name: str, run: Execution) -> str:
    """Where the formula of an item of memory, or its constant, comes from."""
    return SOURCES.get(name) or find_source(name, run)


def find_generation_source(name: str, rates: Rates) -> str:
    """The same of an item of time."""
    return {"prefill": rates.source, "decode": rates.bandwidth_source, "launch": rates.launch_source}[name]


def compute_cache_bytes(shape: Shape, run: Execution, tokens: float) -> float:
    """Keys and values of ``tokens`` positions for the whole batch."""
    if run.cache in ("none", "offloaded"):
        return 0.0
    each = c.QUANTIZED_CACHE_BYTES if run.cache == "quantized-4bit" else BYTES[run.compute_dtype]
    kept = sum(kind.layers * kind.cached * min(tokens, kind.window or tokens) for kind in shape.attended)
    return (kept + shape.state_elements) * run.micro_batch * each  # recurrent states do not grow


def compute_inference_memory(shape: Shape, run: Execution) -> dict[str, float]:
    """Bytes by item at the larger of the end of prefill and the last token. Stages and slices hold their share."""
    split = run.tp * run.pp
    prompt, last = float(run.seq_len), float(run.seq_len + run.new_tokens)
    cached_prompt = compute_cache_bytes(shape, run, prompt) / split
    prefill = compute_prefill_bytes(shape, run)
    full_cache = compute_cache_bytes(shape, run, last) / split
    grows = full_cache / shape.layers if run.cache == "dynamic" else 0.0  # torch.cat holds old and new of one layer
    if run.cache == "tuple":
        grows = full_cache  # the old tuple lives until the whole new one is made
    # the last token's logits, and their float32 copy and softmax for sampling
    logits = float(run.micro_batch) * shape.head_outputs * (BYTES[run.compute_dtype] + 8.0)
    held = {
        "weights": compute_stored_bytes(shape, run) / split,
        "dequantized weights": compute_dequantized_bytes(shape, run),
    }
    if cached_prompt + prefill >= full_cache + grows + logits:
        return {**held, "kv cache": cached_prompt, "prefill activations": prefill}
    return {**held, "kv cache": full_cache, "decode buffers": grows + logits}


def compute_prefill_bytes(shape: Shape, run: Execution) -> float:
    """The most that one block holds over the prompt, or the logits where all of them are made."""
    size = BYTES[run.compute_dtype]
    tokens = float(run.seq_len) * run.micro_batch
    # without gradients nothing is kept: the residual and its norm, and gate, up and product or queries, keys and values
    width = max(3.0 * shape.ffn_active, 2.0 * shape.query + 2.0 * shape.key)
    widest = tokens * size * (2.0 * shape.hidden + width)
    if run.attention == "eager":  # scores, their float32 softmax, and its cast
        widest = max(widest, tokens * run.seq_len * shape.heads * (2 * size + 4.0))
    if not run.keeps_all_logits:
        return widest
    logits = tokens * shape.head_outputs * size
    logits += tokens * shape.head_outputs * 4.0 if size < 4 else 0.0  # .float()
    return max(widest, logits)


def compute_inference_seconds(shape: Shape, run: Execution, rates: Rates) -> dict[str, float]:
    """Seconds of one batch by item: time to first token, then the new tokens."""
    per_token, launch = compute_decode_seconds(shape, run, rates)
    seconds = {
        "prefill": compute_prefill_seconds(shape, run, rates),
        "decode": per_token * run.new_tokens,
        "launch": launch * run.new_tokens,
    }
    return {name: value for name, value in seconds.items() if value > 0}


def compute_prefill_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    tokens = float(run.micro_batch) * run.seq_len
    size = BYTES[run.compute_dtype]
    rate = rates.product(run.compute_dtype, run.tf32)
    grouped = not run.expert_loop
    per_block = sum(compute_linear_seconds(x, tokens, rate, rates, size, grouped=grouped) for x in shape.linears)
    rows = tokens if run.keeps_all_logits else float(run.micro_batch)  # else of each prompt's last token
    overlaps = not rates.on_cpu
    head = compute_product_seconds(
        rows, shape.head_outputs, shape.hidden, rate, rates.bytes_per_s, size, overlaps=overlaps
    )
    traffic = count_prefill_traffic(shape, run) / rates.elementwise_bytes_per_s
    scores = compute_prefill_scores_seconds(shape, run, rates)
    unpacked = compute_unpack_seconds(shape, run, rates)
    busy = (shape.layers * per_block + scores + head + traffic + unpacked) / run.tp
    busy += compute_slice_exchange_seconds(shape, run, rates, tokens)
    return busy + compute_stall_seconds(compute_pass_issue_seconds(shape, run, rates), busy)


def compute_prefill_scores_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    tokens = float(run.micro_batch) * run.seq_len
    rate = rates.product(run.compute_dtype, run.tf32)
    seconds = 0.0
    for kind in shape.attended:
        reach = min(run.seq_len, kind.window or run.seq_len)
        # two products of two operations each, half of which a causal mask hides
        forward_rate, _ = rates.flash(reach, run.attention_version, run.attention_biased)
        seconds += kind.layers * 2.0 * tokens * reach * kind.width / min(rate, forward_rate)
    return seconds


def count_prefill_traffic(shape: Shape, run: Execution) -> float:
    """Bytes read and written beside the products."""
    tokens = float(run.micro_batch) * run.seq_len
    size = BYTES[run.compute_dtype]
    per_token = c.PREFILL_HIDDEN_BYTES * shape.hidden + c.PREFILL_FFN_PASSES * size * shape.ffn_active
    moved = shape.layers * tokens * per_token
    if run.attention == "eager":
        per_score = c.EAGER_SCORE_PASSES * size + c.EAGER_SCORE_BYTES
        moved += shape.layers * tokens * run.seq_len * shape.heads * per_score
    return moved


def compute_slice_exchange_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float) -> float:
    """Two all-reduces of the hidden states per block."""
    if run.tp == 1:
        return 0.0
    volume = tokens * shape.hidden * BYTES[run.compute_dtype]
    return 2 * shape.layers * compute_all_reduce_seconds(volume, Group(run, run.tp), rates)


def compute_decode_seconds(shape: Shape, run: Execution, rates: Rates) -> tuple[float, float]:
    """Device seconds of one new token of the whole batch, and how much longer the host takes to issue it."""
    if run.cache == "none":  # every token computes the whole sequence again
        return compute_prefill_seconds(shape, run, rates), 0.0
    batch = float(run.micro_batch)
    rate = rates.product(run.compute_dtype, run.tf32)
    arithmetic = 2 * batch * (shape.layers * sum(x.params * x.share for x in shape.linears)) / rate
    head = shape.head_outputs * shape.hidden * BYTES[run.compute_dtype]
    middle = run.seq_len + run.new_tokens / 2  # the cache grows by one position per token: its mean length
    cache = compute_cache_bytes(shape, run, middle) * count_cache_passes(shape, run)
    moved = count_weights_read(shape, run, batch) + head + cache / c.CACHE_REALISED
    read = moved / rates.bytes_per_s
    busy = (read + arithmetic if rates.on_cpu else math.hypot(read, arithmetic)) / run.tp
    busy += compute_slice_exchange_seconds(shape, run, rates, batch)
    # of one row bitsandbytes multiplies 4 bits as they are (gemv_4bit)
    busy += compute_unpack_seconds(shape, run, rates) if batch > 1 else 0.0
    if run.engine:  # its kernels follow each other without the host, with gaps and what it does between tokens
        return busy, shape.layers * c.ENGINE_BLOCK_SECONDS[run.engine]
    issue = compute_pass_issue_seconds(shape, run, rates)
    if rates.on_cpu:
        return busy / (c.CPU_COMPILED_READ_GAIN if run.compile else 1.0), issue
    return busy, compute_stall_seconds(issue, busy)


def count_cache_passes(shape: Shape, run: Execution) -> float:
    """How often a token reads or writes the cache. Engines' kernels read grouped heads as they are."""
    if run.engine:
        return 1.0
    passes = 3.0 if run.cache in GROWING else 1.0  # torch.cat reads and writes the cache before it is used
    repeat = shape.query / max(shape.key, 1) if run.attention != "flash" else 1.0
    if repeat > 1:
        passes += 2 * repeat  # repeat_kv writes the heads out and attention reads them
    return passes


def count_weights_read(shape: Shape, run: Execution, batch: float) -> float:
    """Bytes of block weights that a step reads: all dense ones, and the experts that the batch touches."""
    per_weight = compute_stored_bytes(shape, run) / max(shape.params, 1)
    # tokens choose experts apart from each other, so that a batch touches at most as many shares as it has tokens
    touched = sum(x.params * (min(1.0, x.share * batch) if x.count > 1 else x.share) for x in shape.linears)
    return shape.layers * touched * per_weight


def compute_unpack_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """bitsandbytes unpacks 4 bits before it multiplies; LLM.int8() multiplies 8 as they are, other quantizers' kernels, and
    compiled ones, unpack while they multiply."""
    if run.quant != "nf4" or run.compile:
        return 0.0
    return count_packed_params(shape, run) * c.DEQUANT_BYTES / (rates.bytes_per_s * c.DEQUANT_REALISED)


def compute_pass_issue_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """Host time of one forward pass."""
    operators = count_forward_operators(shape, run)
    if run.compile:
        operators *= c.COMPILED_LAUNCH_SHARE
    else:
        operators *= c.DECODE_QUANT_OPERATORS.get(run.quant, 1.0)
    operators += count_routing_operators(shape, run)
    outside = c.GENERATION_OPERATORS * (c.COMPILED_LAUNCH_SHARE if run.compile else 1.0)
    return (shape.layers * operators + outside) * rates.launch_seconds
