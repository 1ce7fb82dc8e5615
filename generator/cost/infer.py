"""Memory and time of generation: one prefill of the prompt, then one pass of the weights a new token."""

from __future__ import annotations

from generator.cost import constants as c
from generator.cost.comm import Group, ring_seconds
from generator.cost.device import Rates
from generator.cost.estimate import Part
from generator.cost.execution import BYTES, Execution
from generator.cost.memory import packed_params, quantized_bytes
from generator.cost.shape import Shape
from generator.cost.time import forward_operators, linear_seconds, product_seconds, routing_operators, waiting

KV_SOURCE = "2 x layers x kv heads x head size x tokens x bytes (transformers docs, llm_tutorial_optimization)"


def cache_bytes(shape: Shape, run: Execution, tokens: float) -> float:
    """Keys and values of ``tokens`` positions for the whole batch."""
    if run.cache in ("none", "offloaded"):
        return 0.0
    each = BYTES[run.compute_dtype] if run.cache != "quantized-4bit" else 0.5 + 2 * 2 / 64
    kept = sum(kind.layers * kind.cached * min(tokens, kind.window or tokens) for kind in shape.attended)
    return (kept + shape.state_elements) * run.micro_batch * each


def inference_memory(shape: Shape, run: Execution) -> dict[str, float]:
    """Bytes by part at the larger of the end of prefill and the last token. Stages and slices hold their share."""
    size = BYTES[run.compute_dtype]
    prompt, last = float(run.seq_len), float(run.seq_len + run.new_tokens)
    batch = float(run.micro_batch)
    weights = quantized_bytes(shape, run) / (run.tp * run.pp)
    prefill_tokens = prompt * batch
    width = max(3.0 * shape.ffn_active, 2.0 * shape.query + 2.0 * shape.key)
    prefill = prefill_tokens * size * (2.0 * shape.hidden + width)
    if run.attention == "eager":
        prefill = max(prefill, prefill_tokens * prompt * shape.heads * (2 * size + 4.0))
    logits = prefill_tokens * shape.head_outputs * size if run.keeps_all_logits else 0.0
    logits += prefill_tokens * shape.head_outputs * 4.0 if run.keeps_all_logits and size < 4 else 0.0
    cached_prompt = cache_bytes(shape, run, prompt) / (run.tp * run.pp)
    at_prefill = cached_prompt + max(prefill, logits)
    full_cache = cache_bytes(shape, run, last)
    grows = full_cache / shape.layers if run.cache == "dynamic" else 0.0  # torch.cat holds old and new of one layer
    if run.cache == "tuple":
        grows = full_cache  # the old tuple lives until the whole new one is made
    split = run.tp * run.pp
    full_cache, grows = full_cache / split, grows / split
    at_end = full_cache + grows + batch * shape.head_outputs * (size + 8.0)
    named = {"weights": weights, "dequantized weights": 0.0}
    if run.quant in ("nf4", "gptq-4bit"):
        named["dequantized weights"] = max(x.inputs * x.outputs for x in shape.linears) * size
    if at_prefill >= at_end:
        return {**named, "kv cache": cached_prompt, "prefill activations": max(prefill, logits)}
    return {**named, "kv cache": full_cache, "decode buffers": at_end - full_cache}


def inference_time(shape: Shape, run: Execution, rates: Rates) -> list[Part]:
    """Seconds of one batch: time to first token, then the new tokens."""
    prefill = prefill_seconds(shape, run, rates)
    per_token, launch = decode_seconds(shape, run, rates)
    named = (
        ("prefill", prefill, rates.source),
        ("decode", per_token * run.new_tokens, c.BANDWIDTH_SOURCE),
        ("launch", launch * run.new_tokens, c.LAUNCH_SOURCE),
    )
    basis = "derived" if rates.basis in ("published", "measured") else rates.basis
    return [Part(name=name, value=value, basis=basis, source=why) for name, value, why in named if value > 0]


def prefill_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    tokens = float(run.micro_batch) * run.seq_len
    size = BYTES[run.compute_dtype]
    rate = rates.product(run.compute_dtype, run.tf32)
    blocks = shape.layers * sum(linear_seconds(x, tokens, rate, rates.bytes_per_s, size) for x in shape.linears)
    scores = 0.0
    for kind in shape.attended:
        reach = min(run.seq_len, kind.window or run.seq_len)
        scores += kind.layers * 2.0 * tokens * reach * kind.width / min(rate, rates.flash(reach)[0])
    moved = shape.layers * tokens * (34 * 2 * shape.hidden + 5 * size * shape.ffn_active)
    if run.attention == "eager":
        moved += shape.layers * tokens * run.seq_len * shape.heads * (6 * size + 16)
    unpack = _unpack_seconds(shape, run, rates)
    rows = tokens if run.keeps_all_logits else float(run.micro_batch)
    head = product_seconds(rows, shape.head_outputs, shape.hidden, rate, rates.bytes_per_s, size)
    busy = (blocks + scores + head + moved / rates.elementwise_bytes_per_s + unpack) / run.tp
    if run.tp > 1:
        busy += 4 * shape.layers * ring_seconds(tokens * shape.hidden * size, Group(run, run.tp), rates)
    return busy + waiting(_issue(shape, run, rates), busy)


def decode_seconds(shape: Shape, run: Execution, rates: Rates) -> tuple[float, float]:
    """Device seconds of one new token of the whole batch, and how much longer the host takes to issue it."""
    batch = float(run.micro_batch)
    size = BYTES[run.compute_dtype]
    rate = rates.product(run.compute_dtype, run.tf32)
    touched = _weights_read(shape, run, batch)
    head = shape.head_outputs * shape.hidden * size
    arithmetic = 2 * batch * (shape.layers * sum(x.params * x.share for x in shape.linears)) / rate
    middle = run.seq_len + run.new_tokens / 2
    cache = cache_bytes(shape, run, middle)
    reads = 3.0 if run.cache in ("dynamic", "tuple") else 1.0  # torch.cat reads and writes the cache before it is used
    if run.cache == "none":
        return prefill_seconds(shape, run, rates), 0.0
    repeat = shape.query / max(shape.key, 1) if run.attention != "flash" else 1.0
    if repeat > 1:
        reads += 2 * repeat  # repeat_kv writes the heads out and attention reads them
    moved = touched + head + cache * reads / c.CACHE_REALISED
    busy = (moved / rates.bytes_per_s + arithmetic) / run.tp
    if run.tp > 1:
        busy += 4 * shape.layers * ring_seconds(batch * shape.hidden * size, Group(run, run.tp), rates)
    if run.quant in ("nf4", "int8"):
        busy += _unpack_seconds(shape, run, rates)
    issue = _issue(shape, run, rates)
    if rates.on_cpu:
        return busy / (c.CPU_COMPILED_READ_GAIN if run.compile else 1.0), issue
    return busy, waiting(issue, busy)


def _weights_read(shape: Shape, run: Execution, batch: float) -> float:
    """Bytes of block weights that a step reads: all dense ones, and the experts that the batch touches."""
    per = quantized_bytes(shape, run) / max(shape.params, 1)
    total = 0.0
    for x in shape.linears:
        touched = min(1.0, x.share * batch) if x.count > 1 else 1.0
        total += x.params * touched
    return shape.layers * total * per


def _unpack_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    if run.quant not in ("nf4", "int8") or run.compile:
        return 0.0  # compiled weight-only products unpack while they multiply
    return packed_params(shape, run) * c.DEQUANT_BYTES / (rates.bytes_per_s * c.DEQUANT_REALISED)


def _issue(shape: Shape, run: Execution, rates: Rates) -> float:
    operators = forward_operators(shape, run) * (c.COMPILED_LAUNCH_SHARE if run.compile else 1.0)
    if not run.compile:
        operators *= c.DECODE_QUANT_OPERATORS.get(run.quant, 1.0)
    operators += routing_operators(shape, run)
    return shape.layers * operators * rates.launch_seconds
