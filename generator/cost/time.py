"""Seconds of one optimizer step of training, part by part: products, attention, elementwise traffic, loss, update, links.

Times add up (a product does not overlap the next one on one device); what a device hides is only issue time and
communication. Backward is two products a trained linear and one a frozen one; checkpointing adds one forward.
"""

from __future__ import annotations

from generator.cost import constants as c
from generator.cost.activations import dtypes
from generator.cost.comm import (
    communication_seconds,
    expert_parallel_seconds,
    sequence_form_of,
    sequence_parallel_seconds,
    tensor_parallel_seconds,
)
from generator.cost.device import Rates
from generator.cost.estimate import Part
from generator.cost.execution import BYTES, Execution
from generator.cost.memory import Static, checkpointed, packed_params
from generator.cost.optimizers import OPTIMIZER_STATES
from generator.cost.shape import Linear, Shape
from generator.model import Attended

ADAPTER_OPERATORS = 9
"""PyTorch operators that an adapted linear adds to a forward pass"""


def forward_operators(shape: Shape, run: Execution) -> float:
    """PyTorch operators that a block issues in a forward pass, counted in profiles of Transformers 5 blocks.

    A Llama block issues about 46, an OPT block 22; the pre-training frameworks' fused blocks take as long to issue as 46
    (wrappers of custom kernels, random-number bookkeeping; fitted on Megatron-LM runs).
    """
    if run.fused_kernels == "pretraining":
        return 46.0
    norm = 6.0 if shape.rms_norm and run.fused_kernels == "none" else 1.0
    rotary = (14.0 if run.fused_kernels == "none" else 2.0) if shape.rotary else 0.0
    extra = norm * (shape.post_norms + 2 * shape.qk_norm)
    scores = 6.0 if run.attention == "eager" else 0.0
    return 11.0 + len(shape.linears) + 2 * norm + rotary + extra + scores + (2.0 if shape.gated else 1.0)


def routing_operators(shape: Shape, run: Execution) -> float:
    """What routing adds to a block: sort, gather and grouped products, or a loop of about 6 operators over all experts."""
    if not shape.experts:
        return 0.0
    return shape.moe_layers / shape.layers * (6.0 * shape.experts if run.expert_loop else 20.0)


def product_seconds(m: float, n: float, k: float, rate: float, bytes_per_s: float, size: float) -> float:
    """An m x n x k product: arithmetic, and reading and writing its matrices."""
    return 2 * m * n * k / rate + size * (m * k + k * n + m * n) / bytes_per_s


def waiting(host: float, device: float) -> float:
    """How long the device waits for the host to issue work, beyond its own ``device`` seconds."""
    p = c.OVERLAP_POWER
    return (host**p + device**p) ** (1 / p) - device


def emulation(run: Execution, rates: Rates) -> float:
    """How much slower every operator is on a CPU that has no arithmetic in the compute dtype (it converts each element)."""
    if not rates.on_cpu:
        return 1.0
    return max(1.0, rates.product("float32", False) / rates.product(run.compute_dtype, False))


def linear_seconds(linear: Linear, tokens: float, rate: float, bytes_per_s: float, size: float, tp: int = 1) -> float:
    """Tensor parallelism splits inputs of the row-parallel linears (o, down) and outputs of the others."""
    rows = tokens * linear.share
    split_inputs = linear.role in ("o", "down")
    outputs = linear.outputs if split_inputs else linear.outputs / tp
    inputs = linear.inputs / tp if split_inputs else linear.inputs
    return linear.count * product_seconds(rows, outputs, inputs, rate, bytes_per_s, size)


def training_time(shape: Shape, run: Execution, rates: Rates, fixed: Static) -> list[Part]:
    """Parts of one optimizer step in seconds, all micro-batches included.

    With pipeline stages a micro-batch takes the time of the slowest stage (the one with the output layer), and the step
    lasts as long as all micro-batches and the filling and draining of the pipeline.
    """
    tokens = float(run.micro_batch) * run.seq_len / run.cp
    size = BYTES[run.compute_dtype]
    rate = rates.product(run.compute_dtype, run.tf32)
    recomputed, _ = checkpointed(shape, run)
    again = recomputed / shape.layers
    full = run.train == "full"
    blocks = shape.layers / run.pp
    per_block = sum(linear_seconds(x, tokens, rate, rates.bytes_per_s, size, run.tp) for x in shape.linears)
    linears = blocks * per_block * ((3.0 if full else 2.0) + again)
    head = 0.0
    if shape.head_outputs >= 1024:
        one = product_seconds(tokens, shape.head_outputs / run.tp, shape.hidden, rate, rates.bytes_per_s, size)
        again_head = 1.0 if run.loss_kernel in ("chunked", "tiled") else 0.0  # they compute their logits twice
        head = one * ((3.0 if full else 2.0) + again_head)
    adapters = 0.0 if full else blocks * _adapter_seconds(fixed, run, rates, tokens) * (3.0 + again)
    attention = blocks * _attention_seconds(shape, run, rates, tokens, again) / run.tp
    traffic = blocks * _traffic_seconds(shape, run, rates, tokens, again)
    loss = _loss_seconds(shape, run, rates, tokens) / run.tp
    unpacked = _dequantize_seconds(shape, run, rates) * (2.0 + again) / run.pp
    slower = emulation(run, rates)
    attention, traffic, loss = slower * attention, slower * traffic, slower * loss
    reduced = blocks * tensor_parallel_seconds(shape, run, rates, tokens, again)
    around = blocks * sequence_parallel_seconds(shape, run, rates, tokens, again)
    sent = blocks * expert_parallel_seconds(shape, run, rates, tokens, again)
    if run.cp > 1 and sequence_form_of(run).hides_behind_attention:  # a ring passes on while it multiplies
        around = max(0.0, around - attention)
    device = linears + head + adapters + attention + traffic + loss + unpacked + reduced + around + sent
    fetched = _fetch_seconds(shape, run, rates, again)
    issue = _issue_seconds(shape, fixed, run, rates, again) / run.pp
    stall = issue if rates.on_cpu else waiting(issue, device)
    n = float(run.accumulation)
    exposed = communication_seconds(shape, run, rates, fixed, device + stall)
    source = rates.source
    named = (
        ("matrix products", n * (linears + head), source),
        ("adapters", n * adapters, source),
        ("attention", n * attention, c.FLASH_SOURCE),
        ("elementwise", n * traffic, c.BANDWIDTH_SOURCE),
        ("loss", n * loss, c.BANDWIDTH_SOURCE),
        ("dequantization", n * unpacked, c.DEQUANT_SOURCE),
        ("launch", n * stall, c.LAUNCH_SOURCE),
        (
            "pipeline bubble",
            (run.pp - 1) * (device + stall),
            "fill and drain of a 1F1B schedule (Narayanan et al. 2021)",
        ),
        ("tensor parallel", n * reduced, c.COLLECTIVE_SOURCE),
        ("sequence parallel", n * around, c.COLLECTIVE_SOURCE),
        ("expert parallel", n * sent, c.COLLECTIVE_SOURCE),
        ("weights from host", n * max(0.0, fetched - device), c.OFFLOAD_SOURCE),
        ("optimizer", _update_seconds(shape, fixed, run, rates), c.BANDWIDTH_SOURCE),
        ("communication", exposed, c.COLLECTIVE_SOURCE),
    )
    basis = "derived" if rates.basis in ("published", "measured") else rates.basis
    return [Part(name=name, value=value, basis=basis, source=why) for name, value, why in named if value > 0]


def _adapter_seconds(fixed: Static, run: Execution, rates: Rates, tokens: float) -> float:
    """One pass of the low-rank products: bound by reading inputs and adding outputs."""
    size = BYTES[run.autocast_dtype] if run.autocast_dtype else 4.0
    moved = sum((2 + size) * x.inputs + (size + 6.0) * x.outputs for x in fixed.adapted)
    if run.lora_dropout:
        moved += sum(9.0 * x.inputs for x in fixed.adapted)
    if run.fused_kernels.startswith("foak") and run.quant != "none":
        moved *= 0.4
    return tokens * moved / rates.elementwise_bytes_per_s


def _attention_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """Scores and their weighted sum, the mean block; flash kernels skip what a causal or sliding mask hides, eager ones do not."""
    total = sum(kind.layers * _scores_seconds(shape, run, rates, tokens, again, kind) for kind in shape.attended)
    return total / shape.layers


def _scores_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float, kind: Attended) -> float:
    reach = float(run.seq_len)
    if kind.window and run.attention != "eager":
        reach = min(reach, float(kind.window))
    causal = 1.0 if shape.encoder or run.attention == "eager" else 0.5
    if reach < run.seq_len:
        causal = 1.0 - 0.5 * reach / run.seq_len
    work = 4.0 * tokens * reach * causal * kind.width
    rate = rates.product(run.compute_dtype, run.tf32)
    if run.attention == "eager":
        size = BYTES[run.compute_dtype]
        each = (
            c.FUSED_SCORE_PASSES * size if run.fused_kernels == "pretraining" else 6 * size + 16.0
        )  # fused scale, mask and softmax or not
        moved = tokens * reach * shape.heads * each
        forward = work / rate + moved / rates.elementwise_bytes_per_s
        return forward * (3.0 + again)
    there, back = rates.flash(reach)
    forward = work / min(rate, there)
    backward = 2.5 * work / min(rate, back)
    return forward * (1.0 + again) + backward


def _traffic_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float, again: float) -> float:
    """Norms, rotary embedding, activation, residuals: bytes read and written by each operator."""
    residual, compute = dtypes(shape, run)
    fused = run.fused_kernels != "none"
    h, q, k, f = shape.hidden, shape.query, shape.key, shape.ffn_active
    norm = 2 * residual if fused or not shape.rms_norm else c.NORM_PASSES * 4.0 + 4 * residual
    rotary = 2 * compute if fused else c.ROTARY_PASSES * compute
    activation = (3.0 if run.fused_kernels == "liger" else 5.0) if shape.gated else 2.0
    wide = residual if run.quant in ("nf4", "int8") else compute  # bitsandbytes returns the dtype of its input
    casts = 0.0
    if residual != compute:
        casts = (residual + compute) * sum(x.share * x.count * x.inputs for x in shape.linears)
    if wide != compute:
        casts += (wide + compute) * sum(x.share * x.count * x.outputs for x in shape.linears)
    if shape.experts:
        routing = c.ROUTING_PASSES if run.expert_loop else c.GROUPED_ROUTING_PASSES
        casts += routing * shape.moe_layers / shape.layers * shape.experts_per_token * h * wide
    forward = 2 * h * norm + (q + k) * rotary + f * wide * activation + 2 * 3 * residual * h + casts
    if run.compile:
        forward *= c.COMPILE_TRAFFIC_SHARE
    cached = min(1.0, rates.l2_bytes / (c.L2_TENSORS * tokens * h * compute))
    bandwidth = rates.elementwise_bytes_per_s * (1.0 + cached * (c.L2_GAIN - 1.0))
    return tokens * forward * (1.0 + again + c.BACKWARD_TRAFFIC) / bandwidth


def _loss_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float) -> float:
    width = float(shape.head_outputs)
    fused = run.loss_kernel == "fused" or run.fused_kernels.startswith("foak")
    return tokens * width * (c.FUSED_LOSS_BYTES if fused else c.LOSS_BYTES) / rates.elementwise_bytes_per_s


def _dequantize_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    if run.quant == "none":
        return 0.0
    return packed_params(shape, run) * c.DEQUANT_BYTES / (rates.bytes_per_s * c.DEQUANT_REALISED)


def _issue_seconds(shape: Shape, fixed: Static, run: Execution, rates: Rates, again: float) -> float:
    """Time the host needs to issue a micro-batch; it shows where the device is faster than that."""
    operators = forward_operators(shape, run) * (1.0 + again + c.BACKWARD_LAUNCH_SHARE)
    if run.train == "lora":
        operators += ADAPTER_OPERATORS * len(fixed.adapted) * (1.0 + again + c.BACKWARD_LAUNCH_SHARE)
    operators += routing_operators(shape, run) * (1.0 + again + c.BACKWARD_LAUNCH_SHARE)
    if run.tp > 1:
        operators += 2 * (2.0 + again) * c.COLLECTIVE_OPERATORS
    if run.compile:
        operators *= c.COMPILED_LAUNCH_SHARE
    return shape.layers * operators * rates.launch_seconds


def _update_seconds(shape: Shape, fixed: Static, run: Execution, rates: Rates) -> float:
    """The optimizer's reads and writes, on the device or, offloaded, on the host beside the traffic to it."""
    kind = OPTIMIZER_STATES[run.optimizer]
    passes = kind.step_passes + (0.0 if run.optimizer_fused else 8.0)
    one = fixed.gradients if fixed.gradients else fixed.trained * 4.0 / run.shards
    if (
        run.sharding.float32_masters
    ):  # 16-bit gradients become 32-bit ones, and the updated master weights 16-bit weights
        one = fixed.trained * 4.0 / run.shards
        passes += 2.0 if BYTES[run.compute_dtype] < 4 else 0.0
    overhead = c.STEP_OVERHEAD_SECONDS if not rates.on_cpu else 0.0
    added_up = 2 * one * max(run.accumulation - 1, 0) / rates.elementwise_bytes_per_s
    if run.offload_optimizer == "none":
        return overhead + added_up + passes * one / rates.elementwise_bytes_per_s
    share = fixed.trained / run.shards
    to_and_from = share * (2.0 + 2.0) / rates.host_link_bytes_per_s
    of_node = share * run.per_node  # the processes of a node share its memory and its disk
    disk = of_node * 24.0 / c.NVME_BYTES_PER_S if run.offload_optimizer == "nvme" else 0.0
    memory = min(run.per_node * c.HOST_BYTES_PER_S, c.HOST_NODE_BYTES_PER_S)
    return overhead + added_up + to_and_from + disk + of_node * c.HOST_ADAM_BYTES / memory


def _fetch_seconds(shape: Shape, run: Execution, rates: Rates, again: float) -> float:
    """Weights that are kept on the host or on disk come over once for each pass of a micro-batch."""
    if run.offload_params == "none":
        return 0.0
    share = shape.params * BYTES[run.compute_dtype] / run.shards
    if run.offload_params == "cpu":
        return share * (2.0 + again) / rates.host_link_bytes_per_s
    return share * run.per_node * (2.0 + again) / c.NVME_BYTES_PER_S
