"""Memory and time of generation: one prefill of the prompt, then one pass of the weights per new token."""

from __future__ import annotations

from generator.cost import constants as c
from generator.cost.decode import Step, compute_cache_bytes, compute_step
from generator.cost.device import Rates
from generator.cost.engines import find_engine
from generator.cost.estimate import GIB
from generator.cost.execution import BYTES, Execution
from generator.cost.memory import find_source
from generator.cost.prefill import compute_prefill_seconds
from generator.cost.served_memory import compute_filled_bytes, compute_step_bytes, compute_widest_bytes
from generator.cost.serving import compute_serving
from generator.cost.shape import Shape
from generator.cost.weights import (
    compute_bytes_per_weight,
    compute_dequantized_bytes,
    compute_held_bytes,
    place_weights,
)

SOURCES = {
    "fetched weights": "one module of those that are offloaded (accelerate 1.15, hooks.py, AlignDevicesHook)",
    "kv cache": "2 x layers x kv heads x head size x tokens x bytes (transformers docs, llm_tutorial_optimization)",
    "prefill activations": "widest point of one block over the prompt (Transformers implementation)",
    "checkpoint being cast": "safetensors maps the file, and its pages stay until it is closed (transformers 5.23, modeling_utils)",
    "adapter": "its file: an engine keeps as much for one of its rank",
    "draft model": "its parameters, and 2 x layers x kv heads x head size x tokens of its cache",
    "decode buffers": "torch.cat holds the old and the new cache of one layer",
}


def find_held_source(name: str, run: Execution) -> str:
    """Where the formula of an item of memory, or its constant, comes from."""
    return SOURCES.get(name) or find_source(name, run)


def find_generation_source(name: str, run: Execution, rates: Rates) -> str:
    """The same of an item of time."""
    launch, beside = rates.launch_source, ""
    engine = find_engine(run.engine)
    started = c.KERNEL_SECONDS if engine.replays else engine.block_seconds
    if run.engine and isinstance(started, c.Constant):
        launch = started.source
    timed = [rate.source for (owner, _), rate in c.CPU_READS.items() if owner == run.engine]
    if rates.on_cpu and run.engine and timed:
        launch = timed[0]  # its blocks were timed with its products
        beside = f"; its kernels: {launch}"
    if isinstance(engine.device_reads, c.Constant):
        beside = f"; its kernels: {engine.device_reads.source}"
    bandwidth = c.PAGEABLE_SHARE.source if run.offload_params != "none" else rates.bandwidth_source
    return {"prefill": rates.source + beside, "decode": bandwidth + beside, "launch": launch}[name]


def compute_inference_memory(shape: Shape, run: Execution) -> dict[str, float]:
    """Bytes by item at the larger of the end of prefill and the last token. Stages and slices hold their share."""
    if find_engine(run.engine).memory_share:
        return compute_reserved_memory(shape, run)
    prompt, last = float(run.seq_len), float(run.seq_len + run.new_tokens)
    cached_prompt = compute_cache_bytes(shape, run, prompt, divided=True)
    prefill = compute_prefill_bytes(shape, run)
    full_cache = compute_cache_bytes(shape, run, last, divided=True)
    grows = full_cache / shape.layers if run.cache == "dynamic" else 0.0  # torch.cat holds old and new of one layer
    if run.cache == "tuple":
        grows = full_cache  # the old tuple lives until the whole new one is made
    # the last token's logits, and their float32 copy and softmax for sampling
    logits = float(run.micro_batch) * shape.head_outputs * (BYTES[run.compute_dtype] + 8.0)
    held = {
        "weights": place_weights(shape, run).device,
        "fetched weights": compute_largest_fetch(shape, run),
        "dequantized weights": compute_dequantized_bytes(shape, run),
        **compute_memory_beside(run),
    }
    if cached_prompt + prefill >= full_cache + grows + logits:
        return {**held, "kv cache": cached_prompt, "prefill activations": prefill}
    return {**held, "kv cache": full_cache, "decode buffers": grows + logits}


def compute_largest_fetch(shape: Shape, run: Execution) -> float:
    """The block that has come over, or the output layer: accelerate's hooks bring one module at a time."""
    places = place_weights(shape, run)
    if not places.host + places.disk:
        return 0.0
    each = compute_bytes_per_weight(shape, run)
    return each * max(shape.block_params, shape.head_outputs * shape.hidden)


def compute_loading_memory(shape: Shape, run: Execution, stored: str | None, limit: float) -> dict[str, float]:
    """Bytes in the host's memory where Transformers casts weights as it reads them: pages of the mapped file, of the dtype
    ``stored``, and the copies. Less by what the process grows by at its first request, which ``PROCESS_GIB`` has. Where there is no room
    for the pages within ``limit``, the system takes them back: nothing fails for them."""
    if run.engine or run.quant != "none" or stored not in BYTES or stored == run.weights_dtype:
        return {}
    grown = (c.PROCESS_GIB - c.LOADING_PROCESS_GIB) * GIB
    held = place_weights(shape, run).device
    mapped = min(shape.params * BYTES[stored] / run.parts - grown, limit - held - 1)
    return {"weights": held, "checkpoint being cast": max(0.0, mapped)}


def compute_reserved_memory(shape: Shape, run: Execution) -> dict[str, float]:
    """Of an engine that takes a share of the memory as it starts: all that must find room there, whatever comes first."""
    users = run.micro_batch
    return {
        "weights": compute_held_bytes(shape, run),
        "kv cache": compute_filled_bytes(shape, run, users, run.seq_len + run.new_tokens),
        "prefill activations": compute_step_bytes(shape, run, find_engine(run.engine).batched_tokens, users),
        **compute_memory_beside(run),
    }


def compute_memory_beside(run: Execution) -> dict[str, float]:
    """An adapter, or a small model that proposes tokens, whole on each device: its weights and what it keeps of all tokens. An engine that
    packs weights itself packs those too."""
    if run.adapter_bytes:
        return {"adapter": float(run.adapter_bytes)}
    if not run.draft_params:
        return {}
    engine, plain = find_engine(run.engine), BYTES[run.compute_dtype]
    handed_on = run.draft_held if engine.holds_what_code_hands_on else 0
    kept = (handed_on or run.draft_cached) * run.micro_batch * (run.seq_len + run.new_tokens)
    packed = engine.packed_bytes.get(run.quant)
    each = BYTES[engine.packed_cache_dtype] if packed and engine.packed_cache_dtype else plain
    return {"draft model": run.draft_params * (packed or plain) + kept * each}


def compute_prefill_bytes(shape: Shape, run: Execution) -> float:
    """The most that one block holds over the prompt, or the logits where all of them are made."""
    size = BYTES[run.compute_dtype]
    engine = find_engine(run.engine)
    tokens = float(run.seq_len) * run.micro_batch
    at_once = min(tokens, engine.batched_tokens or tokens, engine.prompt_tokens or tokens)
    if run.continuous and not engine.batched_tokens:
        at_once = min(at_once, float(run.seq_len))  # one prompt after the other
    widest = compute_widest_bytes(shape, run, at_once)
    if run.attention == "eager":  # scores, their float32 softmax, and its cast
        widest = max(widest, at_once * run.seq_len * shape.heads * (2 * size + 4.0))
    if not run.keeps_all_logits:
        return widest
    logits = tokens * shape.head_outputs * size
    logits += tokens * shape.head_outputs * 4.0 if size < 4 else 0.0  # .float()
    return max(widest, logits)


def compute_inference_seconds(shape: Shape, run: Execution, rates: Rates) -> dict[str, float]:
    """Seconds of one batch by item: time to first token, then the new tokens. Of a server at work: of as many steps as an answer
    has tokens."""
    if run.continuous:
        serving = compute_serving(shape, run, rates)
        each = {"prefill": serving.prompts, "decode": serving.step.busy, "launch": serving.step.beyond}
        turns = run.micro_batch / serving.decoding  # all of them get their answers in so many
        return {name: value * run.new_tokens * turns for name, value in each.items() if value > 0}
    step, following = compute_token_seconds(shape, run, rates), count_following_tokens(run)
    seconds = {
        "prefill": compute_prefill_seconds(shape, run, rates),
        "decode": step.busy * following,
        "launch": step.beyond * following,
    }
    return {name: value for name, value in seconds.items() if value > 0}


def count_following_tokens(run: Execution) -> int:
    """Of an answer: the pass over the prompt gives its first token."""
    return max(0, run.new_tokens - 1)


def compute_token_seconds(shape: Shape, run: Execution, rates: Rates) -> Step:
    """Of one new token of the whole batch, on average over the answer: the cache grows by one position per token."""
    if run.cache == "none":  # every token computes the whole sequence again
        return Step(compute_prefill_seconds(shape, run, rates), 0.0)
    context = run.seq_len + run.new_tokens / 2
    if not run.draft_tokens:
        return compute_step(shape, run, rates, context)
    return compute_speculative_step(shape, run, rates, context)


def compute_speculative_step(shape: Shape, run: Execution, rates: Rates, context: float) -> Step:
    """Seconds per token where some are proposed first and then verified in one pass (Leviathan et al. 2023, arXiv 2211.17192,
    equation 1 and theorem 3.8): a pass gives the accepted ones and one more."""
    plain = compute_step(shape, run, rates, context)
    rows = run.micro_batch * (run.draft_tokens + 1)
    # a sequence's proposed tokens share its cache
    verified = compute_step(shape, run.but(micro_batch=rows), rates, context / (run.draft_tokens + 1))
    proposed = run.draft_tokens * run.draft_cost
    tokens = count_accepted_tokens(run.draft_tokens, run.draft_acceptance)
    return Step(
        (verified.busy + proposed * plain.busy) / tokens,
        (verified.beyond + proposed * plain.beyond) / tokens,
    )


def count_accepted_tokens(proposed: int, acceptance: float) -> float:
    """Expected tokens of one pass: 1 + a + a^2 + ... of the proposed ones."""
    return sum(acceptance**k for k in range(proposed + 1))
