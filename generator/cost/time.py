"""Seconds of one optimizer step of training, item by item: products, attention, elementwise traffic, loss, update, links.

Times add up (a product does not overlap the next one on one device); what a device hides is only issue time and
communication. Backward is two products per trained linear and one per frozen one; checkpointing adds one forward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

from generator.cost import constants as c
from generator.cost.activations import find_element_bytes
from generator.cost.adapters import compute_norm_seconds
from generator.cost.comm import (
    compute_communication_seconds,
    compute_copy_seconds,
    compute_expert_parallel_seconds,
    compute_exposed_seconds,
    compute_sequence_parallel_seconds,
    compute_tensor_parallel_seconds,
    find_sequence_form,
)
from generator.cost.deepspeed import count_host_traffic
from generator.cost.device import Rates
from generator.cost.execution import BYTES, CAPTURED, Execution
from generator.cost.loss import count_scored, scores_at_once
from generator.cost.memory import count_checkpointed_blocks
from generator.cost.shape import FEED_FORWARD, ROW_PARALLEL, Linear, Shape
from generator.cost.sharding import (
    count_attention_parts,
    count_shards,
    divides_attention,
    sums_whole_gradients,
)
from generator.cost.static_memory import StaticMemory, borrows_states, find_parameter_bytes
from generator.cost.weights import count_packed_params
from generator.model import Attended

PIPELINE_SOURCE = "fill and drain of a 1F1B schedule (Narayanan et al. 2021)"


class MicroBatch(NamedTuple):
    """What one device computes at a time. ``again``: share of its blocks whose forward pass runs twice (checkpointing)."""

    tokens: float
    again: float
    blocks: float


DEVICE = (
    *("mode", "micro_batch", "seq_len", "cp", "pp", "tp", "weights_dtype", "autocast_dtype", "autocast_cache"),
    *("tf32", "quant", "train", "adapter"),
    *("lora_rank", "lora_targets", "lora_dropout", "lora_casts", "checkpoint_every", "checkpoint_operators"),
    *("tile_tokens",),
    *("loss_kernel", "trained_share", "expert_loop", "attention", "attention_kernel", "attention_biased"),
    *("flash_kernels", "efficient_kernels"),
    *("repeats_keys", "fused_kernels", "compile", "sequence_parallel", "sequence_form", "threads", "ep", "rows"),
    *("strategy", "lora_upcast", "loss_copies", "shared_tokens", "own_loop"),
)
DEVICE_FIELDS = attrgetter(*DEVICE, "engine")
"""all that what one device computes depends on: a search asks for it with many ways to divide states and batch"""


def compute_training_seconds(
    shape: Shape, run: Execution, rates: Rates, static: StaticMemory, computed: Mapping[str, float]
) -> dict[str, float]:
    """Seconds of one optimizer step by item, all micro-batches included; those that take none are left out. ``computed`` is
    ``compute_device_seconds`` of the same.

    With pipeline stages a micro-batch takes the time of the slowest stage (the one with the output layer), and the step
    lasts as long as all micro-batches and the filling and draining of the pipeline.
    """
    micro = describe_micro_batch(shape, run)
    exchanged = compute_exchange_seconds(shape, run, rates, micro, computed["attention"])
    copies = compute_copy_seconds(shape, run, rates, static)
    device = sum(computed.values()) + sum(exchanged.values()) + copies.each
    issue = compute_issue_seconds(shape, static, run, rates, micro.again)
    # a CPU issues and computes with the same cores
    stall = issue if rates.on_cpu else compute_stall_seconds(issue, device, run.tp)
    fetched = compute_fetch_seconds(shape, run, rates, micro.again)
    # while it waits for weights, what goes the other way or between devices goes on: else a slower product would make a shorter step
    lasting = max(device + stall, fetched)
    n = float(run.accumulation)
    seconds = {
        **{name: n * value for name, value in computed.items()},
        "launch": n * stall,
        "pipeline bubble": compute_bubble_seconds(shape, run, rates, micro, device + stall - computed["loss"]),
        **{name: n * value for name, value in exchanged.items()},
        "copies of shards": n * copies.each + copies.once,
        "activations to host and back": n * compute_offloaded_input_seconds(shape, run, rates, static, micro),
        # they come while the block before computes
        "weights from host": n * max(0.0, fetched - device - stall),
        "gradients to host": compute_gradient_transfer_seconds(static, run, rates, lasting),
        "optimizer": compute_update_seconds(static, run, rates),
        "communication": compute_communication_seconds(shape, run, rates, static, lasting),
    }
    return {name: value for name, value in seconds.items() if value > 0}


def find_training_source(name: str, run: Execution, rates: Rates) -> str:
    """Where the formula of an item, or its constant, comes from."""
    bandwidth = rates.bandwidth_source
    return {
        "attention": rates.attention_source,
        "elementwise": f"{bandwidth}; {c.COMPILE_TRAFFIC_SHARE.source}" if run.compile else bandwidth,
        "loss": bandwidth,
        "launch": rates.launch_source + (f"; hooks: {hooks.source}" if (hooks := find_hooks(run)) else ""),
        "optimizer": bandwidth if run.offload_optimizer == "none" else c.HOST_BYTES_PER_S.source,
        "dequantization": c.DEQUANT_REALISED.source,
        "pipeline bubble": PIPELINE_SOURCE,
        "tensor parallel": describe_collectives(rates),
        "sequence parallel": describe_collectives(rates),
        "expert parallel": describe_collectives(rates),
        "weights from host": c.HOST_BYTES_PER_S.source,
        "activations to host and back": "bytes of block inputs over the link of the board, twice (torch's save_on_cpu)",
        "gradients to host": "bytes over the link of the board, counted in deepspeed 0.19.8 and torch 2.13 (generator/cost/deepspeed.py)",
        "communication": describe_link_source(run, rates),
        "copies of shards": f"{bandwidth}; copies counted in torch 2.13 (FSDP: _fsdp_collectives.py; DDP: reducer.cpp)",
        "data loading": c.COLLATE_SECONDS_PER_TOKEN.source,
    }.get(name, rates.source)


def describe_collectives(rates: Rates) -> str:
    source = c.COLLECTIVE_REALISED.source
    return f"gloo is taken to reach as much of a link as NCCL: {source}" if rates.on_cpu else source


def describe_link_source(run: Execution, rates: Rates) -> str:
    source = describe_collectives(rates)
    if run.nodes == 1 or rates.network_bytes_per_s:
        return source
    return f"{source}; {c.NETWORK_BYTES_PER_S['default'].source}"


def describe_micro_batch(shape: Shape, run: Execution) -> MicroBatch:
    recomputed, _ = count_checkpointed_blocks(shape, run)
    return MicroBatch(
        tokens=float(run.micro_batch) * run.seq_len / run.cp,
        again=recomputed / shape.layers,
        blocks=shape.layers / run.pp,
    )


def compute_device_seconds(shape: Shape, run: Execution, rates: Rates, static: StaticMemory) -> dict[str, float]:
    """One micro-batch on one device, item by item, without what it exchanges."""
    micro = describe_micro_batch(shape, run)
    slower = compute_emulation_factor(run, rates)
    attention = micro.blocks * compute_attention_seconds(shape, run, rates, micro) / count_attention_parts(shape, run)
    unpacked = compute_dequantize_seconds(shape, run, rates) * count_unpackings(shape, run, micro) / run.pp
    return {
        "matrix products": compute_matrix_product_seconds(shape, run, rates, micro),
        "adapters": micro.blocks * compute_adapter_seconds(static, run, rates, micro),
        "attention": slower * attention,
        "elementwise": slower * micro.blocks * compute_traffic_seconds(shape, run, rates, micro),
        "loss": slower * compute_loss_seconds(shape, run, rates, micro.tokens * run.trained_share) / run.tp,
        "dequantization": unpacked,
    }


def count_unpackings(shape: Shape, run: Execution, micro: MicroBatch) -> float:
    """How often the mean packed weight is unpacked: anew in each pass, and for each tile."""
    passes = 2.0 + micro.again
    if not run.tile_tokens:
        return passes
    in_tiles = sum(x.inputs * x.outputs * x.count for x in shape.linears if x.role in FEED_FORWARD)
    share = in_tiles / sum(x.inputs * x.outputs * x.count for x in shape.linears)
    return passes * (1.0 - share) + (passes + micro.again) * share * math.ceil(micro.tokens / run.tile_tokens)


def compute_exchange_seconds(
    shape: Shape, run: Execution, rates: Rates, micro: MicroBatch, attention: float
) -> dict[str, float]:
    """What the parts of one copy of the model tell each other during a micro-batch."""
    tokens, again = micro.tokens, micro.again
    around = micro.blocks * compute_sequence_parallel_seconds(shape, run, rates, tokens, again)
    if run.cp > 1 and find_sequence_form(run).hides_behind_attention:  # a ring passes on while it multiplies
        around = compute_exposed_seconds(around, attention)
    return {
        "tensor parallel": micro.blocks * compute_tensor_parallel_seconds(shape, run, rates, tokens, again),
        "sequence parallel": around,
        "expert parallel": micro.blocks * compute_expert_parallel_seconds(shape, run, rates, tokens, again),
    }


def compute_matrix_product_seconds(shape: Shape, run: Execution, rates: Rates, micro: MicroBatch) -> float:
    """The blocks of a device, and the output layer."""
    size = BYTES[run.product_dtype]
    rate = rates.product(run.product_dtype, run.tf32)
    passes = count_product_passes(run)
    grouped = not run.expert_loop

    def parts(x: Linear) -> int:
        return run.tp if x.role in FEED_FORWARD else count_attention_parts(shape, run)

    # small activations come out of the L2 cache
    gain = rates.speed_up(micro.tokens * shape.hidden * size)
    each = [
        compute_linear_seconds(x, micro.tokens, rate, rates, size, parts(x), ep=run.ep, grouped=grouped, gain=gain)
        for x in shape.linears
    ]
    repeated = each[1::2] if run.checkpoint_operators else each
    linears = micro.blocks * (sum(each) * passes + sum(repeated) * micro.again)
    if run.tile_tokens:  # each tile runs forward once more
        in_tiles = (seconds for x, seconds in zip(shape.linears, each, strict=True) if x.role in FEED_FORWARD)
        linears += micro.blocks * micro.again * sum(in_tiles)
    return linears + compute_output_layer_seconds(shape, run, rates, micro)


def count_product_passes(run: Execution) -> float:
    """Backward: the gradient of the input, and of the weight where it is trained; each is as large a product as the forward."""
    return 3.0 if run.train == "full" else 2.0


def compute_output_layer_seconds(shape: Shape, run: Execution, rates: Rates, micro: MicroBatch) -> float:
    """Of one micro-batch, all passes."""
    trained = count_scored(shape, micro.tokens) * run.trained_share
    if not trained:
        return 0.0
    size = BYTES[run.product_dtype]
    rate = rates.product(run.product_dtype, run.tf32)
    width = shape.head_outputs / run.tp
    overlaps = not rates.on_cpu
    if overlaps:  # the loop waits for the part with the odd word (Transformers' plans cut as torch.chunk does), vTrain leaves it out
        rate /= find_alignment_factor(math.ceil(width) if run.own_loop else int(width), size)
    once = compute_product_seconds(trained, width, shape.hidden, rate, rates.bytes_per_s, size, overlaps=overlaps)
    passes = 3.0 if shape.classifies else count_product_passes(run)  # adapters or not, a head for labels is trained
    # else they are made again in the backward pass
    once_only = run.loss_kernel not in ("chunked", "tiled") or scores_at_once(shape, run, trained)
    return once * (passes + (0.0 if once_only else 1.0))


def find_alignment_factor(width: int, size: float) -> float:
    """How many times as long a product takes whose rows of ``width`` elements of ``size`` bytes begin at no multiples of 16 bytes, such
    as logits of GPT-2's 50,257 words."""
    return c.UNALIGNED_PRODUCT[max(2, math.gcd(width * int(size), 16))]


def compute_bubble_seconds(shape: Shape, run: Execution, rates: Rates, micro: MicroBatch, stage: float) -> float:
    """The last stage waits for the first micro-batch to come through the pp - 1 others, and the first at the end for the last to
    return. ``stage``: seconds of the last stage and micro-batch without its loss; the others have no output layer either."""
    if run.pp == 1:
        return 0.0
    return (run.pp - 1) * (stage - compute_output_layer_seconds(shape, run, rates, micro))


def compute_arithmetic_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float) -> float:
    """Of all products of a step alone, nothing twice, with ``tokens`` for each copy of the model: no step is faster."""
    passes = count_product_passes(run)
    blocks = shape.layers * sum(x.count * x.share * x.inputs * x.outputs for x in shape.linears)
    head = count_scored(shape, 1.0) * shape.head_outputs * shape.hidden * run.trained_share
    rate = rates.product(run.product_dtype, run.tf32)
    return passes * 2 * tokens * (blocks + head) / (rate * run.tp * run.pp * run.cp)


def compute_product_seconds(
    m: float, n: float, k: float, rate: float, bytes_per_s: float, size: float, *, overlaps: bool = True
) -> float:
    """An m x n x k product. Its arithmetic and the reading and writing of its matrices hide behind each other, but not wholly near
    where they take as long: the root of the squares (``benchmarks/published_operators.py``: 4 to 12 % median error; their sum is
    11 to 53 % off). Not ``overlaps``: a CPU's cores do one or the other, and start at once.
    """
    arithmetic, moved = 2 * m * n * k / rate, size * (m * k + k * n + m * n) / bytes_per_s
    return c.PRODUCT_SECONDS + math.hypot(arithmetic, moved) if overlaps else arithmetic + moved


def compute_linear_seconds(
    linear: Linear,
    tokens: float,
    rate: float,
    rates: Rates,
    size: float,
    tp: int = 1,
    *,
    ep: int = 1,
    grouped: bool = True,
    gain: float = 1.0,
) -> float:
    """Tensor parallelism splits inputs of the row-parallel linears (o, down) and outputs of the others. ``grouped``: routed experts
    are one product, whose parts are of unequal size; ``gain``: how much faster than from memory its matrices come.

    Expert parallelism leaves each device whole experts, fewer of them, which get the tokens of all."""
    rows, count = tokens * linear.share, linear.count
    if count > 1 and ep > 1:
        rows, count, tp = rows * ep / tp, count / ep, 1
    split_inputs = linear.role in ROW_PARALLEL
    outputs = linear.outputs if split_inputs else linear.outputs / tp
    inputs = linear.inputs / tp if split_inputs else linear.inputs
    overlaps = not rates.on_cpu
    together = linear.count > 1 and grouped and overlaps
    if together:
        rate *= c.GROUPED_REALISED
    each = compute_product_seconds(rows, outputs, inputs, rate, rates.bytes_per_s * gain, size, overlaps=overlaps)
    return count * each - ((count - 1) * c.PRODUCT_SECONDS if together else 0.0)


def compute_stall_seconds(host: float, device: float, tp: int = 1) -> float:
    """How long the device waits for the host to issue work, beyond its own ``device`` seconds.

    Were both evenly paced, a step would take the longer of the two; they are not, so that near the crossing either waits for
    the other. A p-norm rounds the corner.
    """
    p = c.OVERLAP_POWER if tp == 1 else c.TENSOR_OVERLAP_POWER
    return (host**p + device**p) ** (1 / p) - device


def compute_emulation_factor(run: Execution, rates: Rates) -> float:
    """How much slower every operator is on a CPU that has no arithmetic in the compute dtype (it converts each element)."""
    if not rates.on_cpu:
        return 1.0
    return max(1.0, rates.product("float32", False) / rates.product(run.compute_dtype, False))


def compute_adapter_seconds(static: StaticMemory, run: Execution, rates: Rates, micro: MicroBatch) -> float:
    """The low-rank products of a block, all passes: bound by reading inputs and adding outputs, not by arithmetic."""
    if run.train == "full":
        return 0.0
    size = BYTES[run.compute_dtype] if run.autocast_dtype else 4.0
    # input: read in 16 bits, and its cast written; output: written, read back in float32, added to the linear's in 16 bits
    cast = 2.0 if run.lora_casts else 0.0
    moved = sum((cast + size) * x.inputs + (size + 6.0) * x.outputs for x in static.adapted)
    if run.lora_dropout:
        moved += sum(c.ADAPTER_DROPOUT_BYTES * x.inputs for x in static.adapted)
    if run.fused_kernels.startswith("foak") and run.quant != "none":
        moved *= c.FUSED_ADAPTER_TRAFFIC
    norms = compute_norm_seconds(static.adapted, run, rates, 1.0 + micro.again)
    return norms + micro.tokens * moved / rates.elementwise_bytes_per_s * (3.0 + micro.again)


def compute_attention_seconds(shape: Shape, run: Execution, rates: Rates, micro: MicroBatch) -> float:
    """Scores and their weighted sum, the mean block; flash kernels skip what a causal or sliding mask hides, eager ones do not."""
    if run.shared_tokens:  # rows are attended to whole
        run = run.but(seq_len=run.seq_len + run.shared_tokens)
        micro = describe_micro_batch(shape, run)
    total = sum(kind.layers * compute_scores_seconds(shape, run, rates, micro, kind) for kind in shape.attended)
    return total / shape.layers


def compute_scores_seconds(shape: Shape, run: Execution, rates: Rates, micro: MicroBatch, kind: Attended) -> float:
    """All passes of one block of a ``kind``."""
    eager = run.attention == "eager"
    reach = float(run.seq_len) if eager or not kind.window else min(float(run.seq_len), float(kind.window))
    # two products of tokens x reach x width, two operations each, less what the mask hides
    work = 4.0 * micro.tokens * reach * compute_visible_share(shape, run, reach) * kind.width
    rate = rates.product(run.compute_dtype, run.tf32)
    if eager:
        scores = micro.tokens * reach * shape.heads
        gain = rates.speed_up(scores * BYTES[run.compute_dtype])
        if rates.on_cpu:  # products of one head are too small for more
            rate = min(rate, rates.product("float32", False))
            cached = min(1.0, c.CPU_CACHED_SCORES / (scores * BYTES["float32"]))
            gain = 1.0 + cached * (c.CPU_CACHED_SCORES_GAIN - 1.0)
        forward = work / rate + scores * count_score_traffic(shape, run) / (rates.elementwise_bytes_per_s * gain)
        return forward * (3.0 + micro.again)
    # a ring calls its kernel for one part of the keys after the other
    divided = run.cp > 1 and not find_sequence_form(run).exchanges_heads
    called = min(reach, run.seq_len / run.cp) if divided else reach
    # in 16 bits; rows one after the other are FlashAttention-2's everywhere (torch.nn.attention.varlen)
    own = run.rows != "varlen" and BYTES[run.compute_dtype] < BYTES["float32"]
    kernel = run.attention_kernel if own else "flash2"
    forward_rate, backward_rate = rates.flash(called, kernel, run.attention_biased)
    forward = work / min(rate, forward_rate)
    # FlashAttention's backward pass multiplies five times where the forward pass does twice: it computes the scores again
    backward = 2.5 * work / min(rate, backward_rate)
    again = 0.0 if run.checkpoint_operators else micro.again
    return forward * (1.0 + again) + backward + compute_head_seconds(shape, run, rates, micro)


def compute_head_seconds(shape: Shape, run: Execution, rates: Rates, micro: MicroBatch) -> float:
    """What the backward pass of a CPU's kernel takes in bf16 for each head of each row, however short it is; rows one after the
    other are attended to in float32 (templates/fragments/row_attention.py)."""
    if not rates.on_cpu or run.rows == "sdpa" or BYTES[run.compute_dtype] >= BYTES["float32"]:
        return 0.0
    heads = shape.heads * micro.tokens / run.seq_len
    return heads * c.CPU_HALF_HEAD_SECONDS / (run.threads or 1)


def compute_visible_share(shape: Shape, run: Execution, reach: float) -> float:
    """Of a query's ``reach``, the keys that a kernel does not skip, on average."""
    if reach < run.seq_len:  # only the first queries, up to the window, see less than all of it
        return 1.0 - 0.5 * reach / run.seq_len
    return 1.0 if shape.encoder or run.attention == "eager" else 0.5


def fuses_softmax(shape: Shape, run: Execution) -> bool:
    """Whether Megatron-LM's kernel takes the scores: only where a device has a multiple of 4 matrices of them, each a head of a
    sequence (megatron/model/fused_softmax.py, is_kernel_available); PyTorch's operators scale, mask and sum the others, in float32."""
    matrices = run.micro_batch * shape.heads // run.tp
    return run.fused_kernels == "pretraining" and matrices % 4 == 0


def count_score_traffic(shape: Shape, run: Execution) -> float:
    """Bytes read and written per score of a forward pass."""
    size = BYTES[run.compute_dtype]
    if fuses_softmax(shape, run):  # scale, mask and softmax in one kernel
        return c.FUSED_SCORE_PASSES * size
    softmax = c.EAGER_SCORE_BYTES if size < BYTES["float32"] else 2 * size  # in float32 there is nothing to cast
    return c.EAGER_SCORE_PASSES * size + softmax


def compute_traffic_seconds(shape: Shape, run: Execution, rates: Rates, micro: MicroBatch) -> float:
    """Norms, rotary embedding, activation, residuals of a block, all passes: bytes read and written by each operator."""
    divided, repeated = count_traffic_bytes(shape, run)
    moved = divided / run.tp + repeated / (run.tp if run.sequence_parallel else 1)
    if run.compile:
        moved *= c.COMPILE_TRAFFIC_SHARE
    # what an operator wrote is still in the L2 cache when the next one reads it, where the tensors are small enough
    hidden_bytes = micro.tokens * shape.hidden * BYTES[run.compute_dtype]
    bandwidth = rates.elementwise_bytes_per_s * rates.speed_up(hidden_bytes)
    again = micro.again * (2.0 if run.tile_tokens else 1.0)
    started = compute_start_seconds(shape, run, rates, micro.again)
    return started + micro.tokens * moved * (1.0 + again + c.BACKWARD_TRAFFIC) / bandwidth


def compute_start_seconds(shape: Shape, run: Execution, rates: Rates, again: float) -> float:
    """What the operators of a block beside its products take however little they move; a product's own start is in its seconds. The
    backward pass has two for each."""
    if rates.on_cpu:
        return 0.0
    operators = count_forward_operators(shape, run) - len(shape.linears)
    kept = c.COMPILED_LAUNCH_SHARE if run.compile else 1.0
    return operators * kept * (3.0 + again) * c.PRODUCT_SECONDS


def count_traffic_bytes(shape: Shape, run: Execution) -> tuple[float, float]:
    """Bytes per token of a block's forward pass beside its products: of heads and feed-forward, which tensor parts divide, and of
    the hidden states, which they divide with sequence parallelism only."""
    residual, compute = find_element_bytes(shape, run)
    fused = run.fused_kernels != "none"
    h, q, k, f = shape.hidden, shape.query, shape.key, shape.ffn_active
    norm = 2 * residual if fused or not shape.rms_norm else c.NORM_PASSES * 4.0 + 4 * residual
    rotary = 2 * compute if fused else c.ROTARY_PASSES * compute
    # gate and up read, activation written and read, product written; fused: two read, one written; ungated: one each
    activation = (3.0 if run.fused_kernels == "liger" else 5.0) if shape.gated else 2.0
    wide = residual if run.quant in ("nf4", "int8") else compute  # bitsandbytes returns the dtype of its input
    divided = f * wide * activation
    # two norms, and two residual sums that read two tensors and write one
    repeated = 2 * h * norm + 2 * 3 * residual * h
    if divides_attention(shape, run):
        divided += (q + k) * rotary
    else:
        repeated += (q + k) * rotary
    for x in shape.linears:
        read, written = (0.0, 0.0)
        if residual != compute:  # autocast casts each linear's input
            read = (residual + compute) * x.share * x.count * x.inputs
        if wide != compute:  # and bitsandbytes each output
            written = (wide + compute) * x.share * x.count * x.outputs
        splits_inputs = x.role in ROW_PARALLEL
        if run.product_dtype == "float8":
            read += c.FLOAT8_CAST_BYTES * x.share * x.count * x.inputs
        divided += read if splits_inputs else written
        repeated += written if splits_inputs else read
    if shape.experts:
        routing = c.ROUTING_PASSES if run.expert_loop else c.GROUPED_ROUTING_PASSES
        exchanges = run.ep > 1 and run.own_loop
        routing += c.EXCHANGE_ROUTING_PASSES if exchanges else 0.0
        moved = routing * shape.moe_layers / shape.layers * shape.experts_per_token * h * wide
        if exchanges:  # tensor parts that share their tokens send slices of them
            divided += moved
        else:
            repeated += moved
    return divided, repeated


def compute_loss_seconds(shape: Shape, run: Execution, rates: Rates, tokens: float) -> float:
    fused = run.loss_kernel == "fused" or run.fused_kernels.startswith("foak")
    native = run.loss_copies == "native" and run.fused_kernels == "none" and BYTES[run.product_dtype] < BYTES["float32"]
    plain = c.NATIVE_LOSS_BYTES if native and not run.autocast_dtype else c.LOSS_BYTES
    if run.loss_copies == "vocab-parallel":
        plain = c.VOCAB_PARALLEL_LOSS_BYTES
    per_logit = c.FUSED_LOSS_BYTES if fused else plain
    if shape.classifies:  # the zeros around each sequence's gradient
        per_logit = BYTES[run.compute_dtype]
    moved = count_scored(shape, tokens) * shape.head_outputs * per_logit
    if run.loss_kernel == "chunked" and not run.autocast_cache:  # each chunk casts the output layer again
        moved += (tokens / c.CHUNK_TOKENS) * shape.head_params * (BYTES[run.weights_dtype] + BYTES[run.compute_dtype])
    return moved / rates.elementwise_bytes_per_s


def compute_dequantize_seconds(shape: Shape, run: Execution, rates: Rates) -> float:
    """Of all packed weights, once."""
    if run.quant == "none":
        return 0.0
    return count_packed_params(shape, run) * c.DEQUANT_BYTES / (rates.bytes_per_s * c.DEQUANT_REALISED)


def compute_issue_seconds(shape: Shape, static: StaticMemory, run: Execution, rates: Rates, again: float) -> float:
    """Time the host needs to issue a micro-batch, with pipeline stages that of the last; it shows where the device is faster."""
    passes = 1.0 + again + c.BACKWARD_LAUNCH_SHARE
    operators = count_forward_operators(shape, run) * passes
    if run.train == "lora":
        operators += c.ADAPTER_OPERATORS * len(static.adapted) * passes
    operators += count_routing_operators(shape, run) * passes
    if run.tp > 1:  # two all-reduces per block and pass, at which each host waits for the slowest of more of them
        operators += 2 * (2.0 + again) * c.COLLECTIVE_OPERATORS * math.log2(run.tp)
    if run.compile in CAPTURED:  # a pass is one launch
        return (1.0 + c.BACKWARD_LAUNCH_SHARE) * rates.launch_seconds
    if run.compile:
        operators *= c.COMPILED_LAUNCH_SHARE
    operators += count_sharding_operators(run, static, again)  # hooks stay outside of what is compiled
    outside = c.OUTSIDE_OPERATORS * (1.0 + c.BACKWARD_LAUNCH_SHARE)
    return (shape.layers / run.pp * operators + outside) * rates.launch_seconds


def count_forward_operators(shape: Shape, run: Execution) -> float:
    """PyTorch operators that a block issues in a forward pass, counted in profiles of Transformers 5 blocks."""
    if run.fused_kernels == "pretraining":
        unfused = run.attention == "eager" and not fuses_softmax(shape, run)
        return c.FUSED_BLOCK_OPERATORS + (c.EAGER_SCORE_OPERATORS if unfused else 0.0)
    separate = run.fused_kernels == "none"
    norm = c.RMS_NORM_OPERATORS if shape.rms_norm and separate else 1.0
    rotary = (c.ROTARY_OPERATORS if separate else c.FUSED_ROTARY_OPERATORS) if shape.rotary else 0.0
    norms = norm * (2 + shape.post_norms + 2 * shape.qk_norm)
    scores = (
        c.EAGER_SCORE_OPERATORS if run.attention == "eager" else c.VARLEN_OPERATORS if run.rows == "varlen" else 0.0
    )
    activation = 2.0 if shape.gated else 1.0
    if run.autocast_dtype and run.mode == "train" and run.train == "full" and not run.sharding.casts_itself:
        activation += len(shape.linears) * (c.AUTOCAST_OPERATORS + (0.0 if shape.rms_norm else 1.0))
    return c.BLOCK_OPERATORS + len(shape.linears) + norms + rotary + scores + activation


def count_routing_operators(shape: Shape, run: Execution) -> float:
    """What routing adds to a block: sort, gather and grouped products, or a loop over all experts."""
    if not shape.experts:
        return 0.0
    operators = c.EXPERT_LOOP_OPERATORS * shape.experts if run.expert_loop else c.GROUPED_EXPERT_OPERATORS
    return shape.moe_layers / shape.layers * operators


def count_sharding_operators(run: Execution, static: StaticMemory, again: float) -> float:
    """What the hooks of a sharding issue for a block, forward and backward: FSDP's hang on the block, ZeRO-3's on each module in it."""
    hooks = find_hooks(run)
    if hooks is None or run.sharding.by_fsdp:
        return hooks or 0.0
    return hooks * (c.BLOCK_MODULES + c.ADAPTER_MODULES * len(static.adapted)) * (2.0 + again)


def find_hooks(run: Execution) -> c.Constant | None:
    """How long those of a sharding take; ZeRO-3 has them on one device, too."""
    if run.sharding.deepspeed_stage == 3:
        return c.ZERO_MODULE_OPERATORS
    return c.FSDP_BLOCK_OPERATORS if run.sharding.by_fsdp and run.shards > 1 else None


def compute_update_seconds(static: StaticMemory, run: Execution, rates: Rates) -> float:
    """The optimizer's reads and writes, on the device or, offloaded, on the host beside the traffic to it."""
    kind = run.optimizer
    unfused = c.CPU_UNFUSED_UPDATE_PASSES if rates.on_cpu else c.UNFUSED_UPDATE_PASSES
    passes = kind.step_passes + (0.0 if run.optimizer_fused else unfused)
    # bytes of one parameter-sized array of this device
    one = static.gradients if static.gradients else static.trained / run.owners * 4.0
    if not kind.stores_gradients:  # each is read as it comes, in the dtype that it has
        one = static.trained / run.owners * find_parameter_bytes(run).gradient
    summed = one
    if sums_whole_gradients(run):  # reduced to a share of them before the update
        one = summed / run.shards
    sums = one
    if run.sharding.float32_masters:
        one = static.trained / run.owners * 4.0
        # 16-bit gradients become 32-bit ones, and the updated master weights 16-bit weights
        passes += 2.0 if BYTES[run.compute_dtype] < 4 else 0.0
    # the host's: a CPU's operators have it already, and a pre-training framework updates all tensors by a few kernels
    steps = kind.step_passes > 0 and not rates.on_cpu and run.fused_kernels != "pretraining"
    issued = c.STEP_OVERHEAD_SECONDS if run.optimizer_fused else c.UNFUSED_STEP_SECONDS
    overhead = issued if steps else 0.0
    # each further micro-batch reads the sum and its own gradient, and writes the sum
    added_up = 3 * summed * max(run.accumulation - 1, 0) / rates.elementwise_bytes_per_s
    if run.offload_optimizer == "none":
        clipped = c.CLIP_PASSES * sums if kind.step_passes and kind.stores_gradients else 0.0
        updated = (passes * one + clipped) / rates.bytes_per_s  # in place: on a CPU no page is fresh
        if borrows_states(run):  # in and out at once: the link has two directions
            updated = max(updated, static.state_bytes / rates.host_link_bytes_per_s)
        return overhead + added_up + updated
    return overhead + added_up + compute_host_update_seconds(static, run, rates)


def compute_host_update_seconds(static: StaticMemory, run: Execution, rates: Rates) -> float:
    """The update of offloaded states: Adam where they are, and the weights back."""
    owned = static.trained / run.owners
    moved = count_host_traffic(run)
    back = owned * moved.weights / rates.host_link_bytes_per_s
    of_node = owned * run.per_node  # the processes of a node share its memory and its disk
    disk = of_node * c.NVME_ADAM_BYTES / rates.nvme_bytes_per_s if run.offload_optimizer == "nvme" else 0.0
    # one process alone does not fill the memory's channels
    memory = min(run.per_node * c.HOST_BYTES_PER_S, c.HOST_NODE_BYTES_PER_S)
    return back + disk + of_node * moved.memory / memory


def compute_gradient_transfer_seconds(static: StaticMemory, run: Execution, rates: Rates, computed: float) -> float:
    """Gradients on their way to the host, of a whole step, beyond what hides behind a micro-batch's ``computed`` seconds:
    both libraries copy on a stream beside the backward pass and wait for it at its end."""
    if run.offload_optimizer == "none":
        return 0.0
    step = static.trained / run.owners * count_host_traffic(run).gradients / rates.host_link_bytes_per_s
    return run.accumulation * compute_exposed_seconds(step / run.accumulation, computed)


def compute_offloaded_input_seconds(
    shape: Shape, run: Execution, rates: Rates, static: StaticMemory, micro: MicroBatch
) -> float:
    """Both copies run on the stream that computes, so that nothing hides them (transformers 5.23)."""
    if not run.checkpoint_offload:
        return 0.0
    moved = micro.tokens / run.tp * micro.again * micro.blocks * static.block.kept
    return 2.0 * moved / rates.host_link_bytes_per_s


def compute_fetch_seconds(shape: Shape, run: Execution, rates: Rates, again: float) -> float:
    """Weights that are kept on the host or on disk come over once for each pass of a micro-batch, as they are stored: FSDP
    casts its float32 shards on the device."""
    if run.offload_params == "none":
        return 0.0
    share = shape.params * find_parameter_bytes(run).base / count_shards(run).weights
    if run.offload_params == "cpu":
        return share * (2.0 + again) / rates.host_link_bytes_per_s
    return share * run.per_node * (2.0 + again) / rates.nvme_bytes_per_s
