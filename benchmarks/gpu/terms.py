"""Terms of the cost model on their own: products, bandwidth, attention, operators, launches, update, copies, context.

Each function takes its settings and the torch device, and returns seconds of every repeat with what they mean as a rate.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

REPEATS = 7
WARMUP = 2
LEAST_SECONDS = 4e-3
"""of one repeat: shorter work is done several times in a row, so that events and clocks resolve it"""
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "tf32": torch.float32}
E4M3_LARGEST = 448.0
ROTATED_BYTES = 256 << 20
"""of operands taken in turn, so that small products read memory and not the L2 cache (60 MB on Hopper)"""


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def time_once(work: Callable[[], object], times: int, device: str) -> float:
    """Seconds of ``times`` calls in a row: events around them on a GPU, the wall's clock on a CPU."""
    if device != "cuda":
        started = time.perf_counter()
        for _ in range(times):
            work()
        return time.perf_counter() - started
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    for _ in range(times):
        work()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3


def time_repeats(work: Callable[[], object], device: str, repeats: int = REPEATS) -> dict:
    """Seconds of one call, each repeat the mean of enough calls in a row; warm-up left out."""
    for _ in range(WARMUP):
        work()
    synchronize(device)
    times = max(1, int(LEAST_SECONDS / max(time_once(work, 1, device), 1e-7)))
    seconds = [time_once(work, times, device) / times for _ in range(repeats)]
    return {"seconds": seconds, "median_seconds": statistics.median(seconds)}


def random(*shape: int, dtype=torch.float32, device: str) -> torch.Tensor:
    """Never zeros: products of zeros run faster than those of data."""
    return torch.randn(*shape, device=device).to(dtype)


def measure_gemm(run: dict, device: str) -> dict:
    """``m`` tokens through a linear layer of ``k`` inputs and ``n`` outputs."""
    m, n, k = run["m"], run["n"], run["k"]
    work = scaled_product(m, n, k, device) if run["dtype"] == "float8" else product(m, n, k, run["dtype"], device)
    timed = time_repeats(work, device)
    return {**timed, "flops_per_s": 2 * m * n * k / timed["median_seconds"]}


def product(m: int, n: int, k: int, dtype: str, device: str) -> Callable[[], torch.Tensor]:
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    size = DTYPES[dtype].itemsize * (m * k + n * k)
    copies = 1 + ROTATED_BYTES // size if device == "cuda" else 1
    pairs = itertools.cycle(
        [[random(rows, k, dtype=DTYPES[dtype], device=device) for rows in (m, n)] for _ in range(copies)]
    )
    return lambda: F.linear(*next(pairs))


def scaled_product(m: int, n: int, k: int, device: str) -> Callable[[], torch.Tensor]:
    """float8 with one scale per tensor and a bfloat16 result, as float8 training multiplies."""
    inputs = random(m, k, device=device).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
    weight = random(n, k, device=device).clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn)
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(
        inputs, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=False
    )


def measure_bandwidth(run: dict, device: str) -> dict:
    """Bytes read and written per second by a copy, an addition or a cast of ``elements`` bfloat16 values."""
    elements = run["elements"]
    a = random(elements, dtype=torch.bfloat16, device=device)
    b = random(elements, dtype=torch.bfloat16, device=device)
    wide = torch.empty(elements, device=device) if run["operation"] == "cast" else a
    work, size = {
        "copy": (lambda: b.copy_(a), 4),
        "add": (lambda: torch.add(a, b, out=b), 6),
        "cast": (lambda: wide.copy_(a), 6),
    }[run["operation"]]
    timed = time_repeats(work, device)
    return {**timed, "bytes_per_s": size * elements / timed["median_seconds"]}


def measure_attention(run: dict, device: str) -> dict:
    """Causal attention in bfloat16: forward, or the backward pass alone. ``kernel``: the one that PyTorch's
    scaled_dot_product_attention takes by itself, its flash kernel, or varlen_attn over the rows of a batch end to end."""
    shape = (run["batch"], run["heads"], run["length"], run["head_dim"])
    if run.get("kernel") == "varlen":
        shape = (run["batch"] * run["length"], run["heads"], run["head_dim"])
    q, k, v = (random(*shape, dtype=torch.bfloat16, device=device).requires_grad_() for _ in range(3))
    attend = choose_attention(run, device)
    forward = time_repeats(lambda: attend(q, k, v), device)
    if run["direction"] == "forward":
        timed = forward
    else:
        out = attend(q, k, v)
        gradient = random(*shape, dtype=torch.bfloat16, device=device)
        timed = time_repeats(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), device)
    return {**timed, "flops_per_s": attention_work(run) / timed["median_seconds"]}


def choose_attention(run: dict, device: str) -> Callable[..., torch.Tensor]:
    if run.get("kernel") == "varlen":
        from torch.nn.attention.varlen import varlen_attn

        ends = torch.arange(run["batch"] + 1, dtype=torch.int32, device=device) * run["length"]
        return lambda q, k, v: varlen_attn(q, k, v, ends, ends, run["length"], run["length"], window_size=(-1, 0))
    if run.get("kernel") == "flash":
        from torch.nn.attention import SDPBackend, sdpa_kernel

        return sdpa_kernel(SDPBackend.FLASH_ATTENTION)(
            functools.partial(F.scaled_dot_product_attention, is_causal=True)
        )
    return functools.partial(F.scaled_dot_product_attention, is_causal=True)


def attention_work(run: dict) -> float:
    """Operations below the diagonal: two products forward, five backward (FlashAttention-2 paper, section 4.1)."""
    forward = 2.0 * run["batch"] * run["heads"] * run["length"] ** 2 * run["head_dim"]
    return forward if run["direction"] == "forward" else 2.5 * forward


def measure_operator(run: dict, device: str) -> dict:
    """One elementwise operator of a decoder block as Transformers writes it: forward, its backward pass, or both."""
    inputs, operator = OPERATORS[run["operator"]](run["tokens"], run["width"], device)
    if run["direction"] == "forward":
        return time_repeats(operator, device)
    out = operator()
    gradient = torch.randn_like(out)
    if run["direction"] == "both":
        return time_repeats(lambda: torch.autograd.grad(operator(), inputs, gradient), device)
    return time_repeats(lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True), device)


def make_norm(tokens: int, width: int, device: str):
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(width).to(device, torch.bfloat16)
    x = random(1, tokens, width, dtype=torch.bfloat16, device=device).requires_grad_()
    return (x, norm.weight), lambda: norm(x)


def make_rotary(tokens: int, width: int, device: str):
    """Queries alone: ``width`` is heads x 128."""
    from transformers.models.llama.modeling_llama import rotate_half

    q = random(1, width // 128 or 1, tokens, min(width, 128), dtype=torch.bfloat16, device=device).requires_grad_()
    cos, sin = (random(1, 1, tokens, min(width, 128), dtype=torch.bfloat16, device=device) for _ in range(2))
    return (q,), lambda: q * cos + rotate_half(q) * sin


def make_activation(tokens: int, width: int, device: str):
    gate, up = (random(1, tokens, width, dtype=torch.bfloat16, device=device).requires_grad_() for _ in range(2))
    return (gate, up), lambda: F.silu(gate) * up


def make_residual(tokens: int, width: int, device: str):
    a, b = (random(1, tokens, width, dtype=torch.bfloat16, device=device).requires_grad_() for _ in range(2))
    return (a, b), lambda: a + b


def make_loss(tokens: int, width: int, device: str):
    """Cross-entropy of bfloat16 logits in float32; ``width`` is the vocabulary."""
    logits = random(tokens, width, dtype=torch.bfloat16, device=device).requires_grad_()
    targets = torch.randint(0, width, (tokens,), device=device)
    return (logits,), lambda: F.cross_entropy(logits.float(), targets)


OPERATORS = {
    "norm": make_norm,
    "rotary": make_rotary,
    "activation": make_activation,
    "residual": make_residual,
    "loss": make_loss,
}


def measure_launch(run: dict, device: str) -> dict:
    """Llama blocks so small that the host's issuing is all that takes time: forward, or forward and backward."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=run["layers"],
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        tokens = torch.randint(0, 64, (1, 16))

    def forward() -> None:
        with torch.no_grad():
            model(input_ids=tokens)

    def both() -> None:
        model(input_ids=tokens).logits.sum().backward()

    return time_repeats(forward if run["direction"] == "forward" else both, device)


def measure_update(run: dict, device: str) -> dict:
    """AdamW's step, or the clipping of gradients, over ``tensors`` float32 matrices of ``elements`` each."""
    parameters = [torch.nn.Parameter(random(run["elements"], device=device)) for _ in range(run["tensors"])]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    if run["kernel"] == "clip":
        timed = time_repeats(lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0), device)
    else:
        kind = {"fused": {"fused": True}, "foreach": {"foreach": True}}[run["kernel"]]
        timed = time_repeats(torch.optim.AdamW(parameters, lr=1e-5, **kind).step, device)
    return {**timed, "seconds_per_parameter": timed["median_seconds"] / run["tensors"] / run["elements"]}


def measure_transfer(run: dict, device: str) -> dict:
    """Host memory to the device or back, page-locked or not."""
    host = torch.empty(run["bytes"], dtype=torch.uint8, pin_memory=run["pinned"]).random_()
    there = torch.empty(run["bytes"], dtype=torch.uint8, device=device)
    to, source = (there, host) if run["direction"] == "to device" else (host, there)
    timed = time_repeats(lambda: to.copy_(source, non_blocking=run["pinned"]), device)
    return {**timed, "bytes_per_s": run["bytes"] / timed["median_seconds"]}


def measure_context(run: dict, device: str) -> dict:
    """What a process holds on the device beside the allocator's memory: before CUDA starts nothing else may run there."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    taken = {}
    torch.ones(1, device=device)
    taken["context_bytes"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used - before - torch.cuda.memory_reserved()
    measure_gemm({"m": 1024, "n": 1024, "k": 1024, "dtype": "bfloat16"}, device)
    attention = {"batch": 1, "heads": 8, "length": 1024, "head_dim": 128, "direction": "backward"}
    measure_attention(attention, device)
    measure_launch({"layers": 2, "direction": "both"}, device)
    used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    taken["with_kernels_bytes"] = used - before - torch.cuda.memory_reserved()
    return {**taken, "before_bytes": before}


MEASURES = {
    "gemm": measure_gemm,
    "bandwidth": measure_bandwidth,
    "attention": measure_attention,
    "operator": measure_operator,
    "launch": measure_launch,
    "update": measure_update,
    "transfer": measure_transfer,
    "context": measure_context,
}
