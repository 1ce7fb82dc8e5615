"""How the weights of a model are stored: plain, or packed by a quantizer. Bytes of the whole model, before it is divided."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from generator.cost import constants as c
from generator.cost.engines import find_engine
from generator.cost.estimate import GIB
from generator.cost.execution import BYTES, Execution
from generator.cost.shape import Shape

PLAIN = "parameters by storage dtype (config.json; quantizer's block sizes)"


def compute_stored_bytes(shape: Shape, run: Execution) -> float:
    """Bytes of the stored model: packed linears, and the rest in its own dtype (float32 where PEFT upcasts it)."""
    stored = BYTES[run.weights_dtype]
    if shape.stored_bytes is not None:
        return float(shape.stored_bytes)
    if run.quant == "none":
        return shape.params * stored
    if packs_whole_model(run):
        ends = shape.embedding + shape.head
        return (shape.params - ends) * compute_bytes_per_packed_weight(run) + ends * compute_bytes_per_head_weight(run)
    packed = count_packed_params(shape, run)
    filled = measure_filled_inputs(shape) if multiplies_by_tinygemm(run) else 1.0
    # FSDP wants shards of one dtype: PEFT leaves out the upcast there
    upcast = run.lora_upcast and run.mode == "train" and not run.sharding.by_fsdp
    return packed * filled * compute_bytes_per_packed_weight(run) + (shape.params - packed) * (
        4.0 if upcast else stored
    )


def compute_held_bytes(shape: Shape, run: Execution) -> float:
    """Of a served model on one device. Experts over more devices than tensor parts: each has whole ones of all copies' (vLLM's
    --enable-expert-parallel with --data-parallel-size)."""
    engine = find_engine(run.engine)
    copies = engine.weight_copies * (run.packed_copies if run.quant != "none" else 1.0)
    stored = compute_stored_bytes(shape, run) * copies + compute_embedding_bytes_beyond(shape, run)
    if shape.stored_bytes is None:  # a file of the owner's has other formats, of which it repacks few
        stored += engine.repacked_bytes.get(run.quant, 0.0) * shape.layers * sum(x.params for x in shape.linears)
    return stored * compute_placed_share(shape, run) / (run.tp * run.pp)


def compute_placed_share(shape: Shape, run: Execution) -> float:
    """Of what a device holds where copies share nothing: what is left where each of ``ep`` copies has other experts (vLLM's
    --enable-expert-parallel, Megatron-core's expert_model_parallel_size, over copies beyond tensor parts)."""
    if run.ep <= run.tp:
        return 1.0
    experts = shape.expert_params * shape.layers / max(shape.params, 1)
    return 1.0 - experts * (1.0 - run.tp / run.ep)


def compute_embedding_bytes_beyond(shape: Shape, run: Execution) -> float:
    """Of copies of the input embedding on a CPU, beyond those of the other weights."""
    engine, each = find_engine(run.engine), BYTES[run.weights_dtype]
    each = each if run.quant == "none" else compute_bytes_per_head_weight(run)
    kind = run.compute_dtype if run.quant == "none" else run.quant
    if not shape.head:
        return engine.tied_copies.get(kind, 0.0) * shape.embedding * each
    return (engine.embedding_copies.get(kind, engine.weight_copies) - engine.weight_copies) * shape.embedding * each


class Places(NamedTuple):
    """Bytes of a served model, of one device's part: there, in the host's memory, on its disk."""

    device: float
    host: float
    disk: float


def place_weights(shape: Shape, run: Execution) -> Places:
    """Of a model whose weights are offloaded as far as the device has no room for them."""
    held = compute_held_bytes(shape, run)
    if run.offload_params == "none":
        return Places(held, 0.0, 0.0)
    device = min(held, run.resident_gib * GIB)
    host = min(held - device, run.host_weights_gib * GIB / run.pp)
    return Places(device, host, held - device - host)


FORMATS: Mapping[str, tuple[float, c.Constant]] = {
    "gptq-4bit": (0.5, c.GPTQ_EXTRA_BYTES),  # AWQ's too
    "gptq-8bit": (1.0, c.GPTQ_EXTRA_BYTES),
    "int8": (1.0, c.INT8_EXTRA_BYTES),
    "int4": (0.5, c.INT4_EXTRA_BYTES),
    "torchao-int8": (1.0, c.TORCHAO_INT8_EXTRA_BYTES),
    "torchao-int4": (0.5, c.TORCHAO_INT4_EXTRA_BYTES[128]),
    "torchao-int4-g32": (0.5, c.TORCHAO_INT4_EXTRA_BYTES[32]),
    "mxfp4": (0.5, c.MXFP4_EXTRA_BYTES),
    "nvfp4": (0.5, c.NVFP4_EXTRA_BYTES),
    "gguf-4bit": (0.0, c.GGUF_Q4_BYTES),
    "gguf-8bit": (0.0, c.GGUF_Q8_BYTES),
}
"""formats of packed weights: bytes of the weight itself, and of its scales and zeros beside it (of GGUF both together)"""
BY_TINYGEMM = ("torchao-int4", "torchao-int4-g32")
"""formats of PyTorch's own product of 4-bit weights"""
OF_TORCHAO = ("torchao-int8", *BY_TINYGEMM)
OF_ALL_TENSORS = ("gguf-4bit", "gguf-8bit", "int4")
"""formats whose converters pack the embedding and the output layer too"""


def packs_whole_model(run: Execution) -> bool:
    return run.quant in OF_ALL_TENSORS or run.quant in find_engine(run.engine).packed_bytes


def compute_bytes_per_weight(shape: Shape, run: Execution) -> float:
    """As it is read, on average over the model."""
    if packs_whole_model(run) and shape.stored_bytes is None:
        return compute_bytes_per_packed_weight(run)
    return compute_stored_bytes(shape, run) / max(shape.params, 1)


def compute_bytes_per_packed_weight(run: Execution) -> float:
    """Its scales included."""
    if run.quant == "nf4":
        return c.NF4_VALUE_BYTES + (c.NF4_DOUBLE_SCALE_BYTES if run.double_quant else c.NF4_SCALE_BYTES)
    if run.quant == "float8":
        return 1.0
    if run.quant in find_engine(run.engine).packed_bytes:
        return find_engine(run.engine).packed_bytes[run.quant]
    if run.quant in FORMATS:
        weight, beside = FORMATS[run.quant]
        return weight + beside
    return BYTES[run.weights_dtype]


def compute_bytes_per_head_weight(run: Execution) -> float:
    """The same of the embedding and the output layer, where they are packed."""
    return find_engine(run.engine).packed_head_bytes.get(run.quant, compute_bytes_per_packed_weight(run))


def compute_undivided_scales(shape: Shape, run: Execution, weights_here: bool) -> float:
    """FSDP divides packed values alone: their scales are no parameters, and stay whole on every device, offloaded or not
    (bitsandbytes' QuantState). Beyond this device's share of them, which is counted with the weights that are here."""
    if run.quant != "nf4" or not run.sharding.by_fsdp or run.shards == 1:
        return 0.0
    scales = count_packed_params(shape, run) * (compute_bytes_per_packed_weight(run) - c.NF4_VALUE_BYTES) / run.parts
    return scales * (1.0 - 1.0 / run.shards) if weights_here else scales


def count_packed_params(shape: Shape, run: Execution) -> float:
    """Parameters that the quantizer packs."""
    return (shape.linear_params + (shape.expert_params if packs_experts(run) else 0.0)) * shape.layers


def packs_experts(run: Execution) -> bool:
    """bitsandbytes and torchao replace ``Linear`` layers only: experts that Transformers 5 fuses into one tensor stay as they are; as
    separate modules, or in a quantized checkpoint, they are packed too."""
    if run.quant in OF_TORCHAO and not run.engine:
        return run.expert_loop
    return run.expert_loop or run.quant not in ("nf4", "int8") or bool(run.compile or run.engine)


def measure_filled_inputs(shape: Shape) -> float:
    """Weights that tinygemm packs over those of the model: inputs are filled up with zeros."""
    dense = [x for x in shape.linears if x.share == 1.0]
    packed = sum(
        math.ceil(x.inputs / c.TORCHAO_INT4_INPUTS) * c.TORCHAO_INT4_INPUTS * x.outputs * x.count for x in dense
    )
    return packed / max(sum(x.params for x in dense), 1)


def multiplies_by_tinygemm(run: Execution) -> bool:
    """PyTorch's own product of 4-bit weights."""
    return run.quant in BY_TINYGEMM


def compute_stored_expert_bytes(shape: Shape, run: Execution) -> float:
    """Of one block's experts."""
    packed = run.quant != "none" and packs_experts(run)
    return shape.expert_params * (compute_bytes_per_packed_weight(run) if packed else BYTES[run.weights_dtype])


def compute_dequantized_bytes(shape: Shape, run: Execution) -> float:
    """The largest layer in 16 bits: these quantizers unpack one layer at a time, just before it multiplies."""
    if run.quant not in ("nf4", "gptq-4bit", "gptq-8bit", "torchao-int8"):
        return 0.0
    return float(max(x.inputs * x.outputs for x in shape.linears)) * BYTES[run.compute_dtype]


def name_stored_source(run: Execution) -> str:
    if packed := c.CPU_PACKED_BYTES.get((run.engine, run.quant)):
        return packed.source
    if run.quant == "nf4":
        return (c.NF4_DOUBLE_SCALE_BYTES if run.double_quant else c.NF4_SCALE_BYTES).source
    return FORMATS[run.quant][1].source if run.quant in FORMATS else PLAIN


def compute_unpacked_expert_bytes(shape: Shape, run: Execution) -> float:
    """Of the whole model's experts, where the rest is packed and they are not."""
    if run.quant == "none" or packs_experts(run):
        return 0.0
    return compute_stored_expert_bytes(shape, run) * shape.layers
