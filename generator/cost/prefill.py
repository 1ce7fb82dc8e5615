"""Seconds of computing prompts: all their tokens at once, or as many at a time as an engine takes."""

from __future__ import annotations

import math

from generator.cost import constants as c
from generator.cost.decode import (
    compute_block_seconds,
    compute_expert_exchange_seconds,
    compute_offloaded_seconds,
    compute_pass_issue_seconds,
    compute_slice_exchange_seconds,
    compute_unpack_seconds,
    find_cpu_format,
    find_cpu_rate,
    find_product_dtype,
)
from generator.cost.device import Rates
from generator.cost.engines import Engine, find_engine
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape
from generator.cost.time import compute_linear_seconds, compute_product_seconds, compute_stall_seconds
from generator.cost.weights import (
    compute_bytes_per_packed_weight,
    count_packed_params,
    multiplies_by_tinygemm,
    packs_whole_model,
)


def compute_prefill_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """Of ``run.micro_batch`` prompts of ``run.seq_len`` tokens."""
    engine = find_engine(run.engine)
    tokens = float(run.micro_batch) * run.seq_len
    passes = math.ceil(tokens / engine.prompt_tokens) if engine.prompt_tokens else 1
    busy = (
        passes * compute_pass_seconds(shape, run, rates, engine, tokens / passes)
        + compute_head_seconds(shape, run, rates)
        + compute_scores_seconds(shape, run, rates, engine)
        + compute_traffic_seconds(shape, run, rates, engine, tokens / passes)
    ) / run.tp
    busy += compute_slice_exchange_seconds(shape, run, rates, tokens)
    busy += compute_expert_exchange_seconds(shape, run, rates, tokens) + passes * compute_offloaded_seconds(
        shape, run, rates
    )
    # a pass over a prompt is no replayed graph: its kernels start while others run
    block = compute_block_seconds(run, rates, engine) if rates.on_cpu else engine.block_seconds
    started = passes * shape.layers * block
    # on a CPU the step of an answer is compiled, or direct, and prompts are not
    eager = run.but(compile=None, direct_step=False) if rates.on_cpu else run
    issue = started if run.engine else compute_pass_issue_seconds(shape, eager, rates)
    return busy + (issue if rates.on_cpu else compute_stall_seconds(issue, busy))


def compute_pass_seconds(shape: Shape, run: Execution, rates: Rates, engine: Engine, tokens: float) -> float:
    """Products of one pass with the weights of the blocks, and their unpacking."""
    rate = find_product_rate(run, rates, engine)
    size = BYTES[run.compute_dtype]
    grouped = not run.expert_loop
    per_block = sum(compute_linear_seconds(x, tokens, rate, rates, size, grouped=grouped) for x in shape.linears)
    unpacked = compute_unpack_seconds(shape, run, rates, tokens)
    if engine.unpacks_prompts and run.quant != "none" and not rates.on_cpu:
        packed = shape.params if packs_whole_model(run) else count_packed_params(shape, run)
        unpacked = packed * (compute_bytes_per_packed_weight(run) + size) / rates.bytes_per_s
    return shape.layers * per_block + unpacked


def find_product_rate(run: Execution, rates: Rates, engine: Engine) -> float:
    """Operations per second. Sums in 16 bits go at half the rate of 8-bit products, where the device has those."""
    if rates.on_cpu:
        return find_cpu_rate(run, rates, engine) * engine.many_rows.get(find_cpu_format(run, rates, engine), 1.0)
    rate = rates.product(find_product_dtype(run), run.tf32)
    if multiplies_by_tinygemm(run) and run.micro_batch * run.seq_len > c.TINYGEMM_ROWS:
        return rate * c.TINYGEMM_PROMPT_RATE
    if engine.sums_in_16_bits and rates.products["int8"] > rates.products["fp16"]:
        return rates.products["int8"] / 2
    rate *= engine.matrix_rate if rates.has_matrix_units else 1.0
    return rate * engine.packed_rate if run.quant != "none" else rate


def compute_head_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """Of each prompt's last token, or of all where their logits are made."""
    rows = float(run.micro_batch) * (run.seq_len if run.keeps_all_logits else 1)
    rate = rates.product(run.compute_dtype, run.tf32)
    return compute_product_seconds(
        rows,
        shape.head_outputs,
        shape.hidden,
        rate,
        rates.bytes_per_s,
        BYTES[run.compute_dtype],
        overlaps=not rates.on_cpu,
    )


def compute_scores_seconds(shape: Shape, run: Execution, rates: Rates, engine: Engine) -> float:
    tokens = float(run.micro_batch) * run.seq_len
    rate = find_product_rate(run.but(quant="none"), rates, engine)
    seconds = 0.0
    for kind in shape.attended:
        reach = min(run.seq_len, kind.window or run.seq_len)
        # two products of two operations each, half of which a causal mask hides
        forward_rate, _ = rates.flash(reach, run.attention_kernel, run.attention_biased)
        forward_rate *= engine.matrix_rate if rates.has_matrix_units else 1.0
        seconds += kind.layers * 2.0 * tokens * reach * kind.width / min(rate, forward_rate)
    return seconds


def compute_traffic_seconds(shape: Shape, run: Execution, rates: Rates, engine: Engine, at_once: float) -> float:
    """Of what is read and written beside the products, ``at_once`` tokens at a time."""
    tokens = float(run.micro_batch) * run.seq_len
    size = BYTES[run.compute_dtype]
    per_token = c.PREFILL_HIDDEN_BYTES * shape.hidden + c.PREFILL_FFN_PASSES * size * shape.ffn_active
    fused = c.COMPILE_TRAFFIC_SHARE if engine.replays or (rates.on_cpu and run.engine) else 1.0
    second = rates.elementwise_bytes_per_s
    seconds = fused * shape.layers * tokens * per_token / (second * rates.speed_up(at_once * shape.hidden * size))
    if run.attention == "eager":
        per_score = c.EAGER_SCORE_PASSES * size + c.EAGER_SCORE_BYTES
        # of a prompt in parts, each part has scores with what came before it alone
        reach = (run.seq_len + min(float(run.seq_len), engine.prompt_tokens or math.inf)) / 2
        gain = rates.speed_up(at_once * reach * shape.heads * size)
        seconds += shape.layers * tokens * reach * shape.heads * per_score / (second * gain)
    return seconds
