"""What first_step.py compares the trained thing with: dtypes, attention, and the bytes of each kind, from the plan's execution."""

from __future__ import annotations

import ast
from typing import Any

from generator.case.optimizer_states import OptimizerState
from generator.cost.estimate import GIB
from generator.cost.execution import BYTES, Execution
from generator.cost.of_case import build_cost_model
from generator.cost.sharding import count_adapter_shards, count_shards, sums_whole_gradients
from generator.cost.stages import compute_most_layers_share
from generator.cost.static_memory import compute_static_memory, find_parameter_bytes, mixes_in_16_bits
from generator.decide.plan import Plan
from generator.emit.figures import round_floats
from generator.emit.plan_document import ABSENT, FirstStepRecord, ParallelRecord
from generator.model.block_traits import groups_experts
from generator.techniques.padding import attends_without_mask

PACKED = {"nf4": "uint8", "int8": "int8"}
"""the dtype of a quantizer's packed weights, by ``Execution.quant`` (bitsandbytes)"""
BY_ROW = {"sdpa": "row_by_row", "varlen": "varlen"}
"""the attention that the project registers, by ``Execution.rows``"""
FLASH_HEAD_DIM = 256
"""the widest head of PyTorch's flash kernel (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp)"""


def expect_first_step(plan: Plan, parallel: ParallelRecord | None) -> FirstStepRecord:
    case, run = plan.case, plan.best.execution
    return FirstStepRecord(
        **expect_dtypes(run),
        device=ABSENT if parallel or case.portable else case.vendor.torch_device,
        **expect_attention(plan),
        experts=run.compute_dtype if groups_experts(case.model) else ABSENT,
        cached_casts=ABSENT if run.autocast_cache or run.shares_casts or run.attention != "sdpa" else False,
        shared_tokens=run.shared_tokens or ABSENT,
        gib=round_floats(expect_gib(plan)),
    )


def expect_dtypes(run: Execution) -> dict[str, Any]:
    """Names of torch dtypes. Bytes of the same are in ``find_parameter_bytes``."""
    mixed, full = mixes_in_16_bits(run), run.train == "full"
    stored = run.compute_dtype if mixed else run.weights_dtype
    # FSDP's mixed precision keeps float32 shards; adapters are float32 wherever DeepSpeed does not cast the model
    wide = bool(run.sharding.divides_weights and run.autocast_dtype) if full else True
    trained = "float32" if wide and not mixed else stored
    kept = run.optimizer.stores_gradients
    return {
        "trained": trained,
        "frozen": ABSENT if full else name_frozen_dtype(run, stored),
        "gradients": (run.sums_dtype if mixed and run.sums_dtype else trained) if kept else ABSENT,
        "states": name_states_dtype(run.optimizer, "float32" if mixed else trained),
    }


def name_frozen_dtype(run: Execution, stored: str) -> str:
    """Packed values lie in bytes; where FSDP divides them, in 16-bit numbers."""
    return "bfloat16" if run.quant == "nf4" and run.sharding.by_fsdp else PACKED.get(run.quant, stored)


def name_states_dtype(kind: OptimizerState, trained: str) -> Any:
    """Of the states that grow with the parameters; absent where there are none."""
    if kind.full_states or kind.rank:
        return trained
    if kind.fixed_bytes:
        return "uint8" if kind.fixed_bytes < BYTES["float32"] else "float32"
    return "float32" if kind.factored else ABSENT


def expect_attention(plan: Plan) -> dict[str, Any]:
    """The implementation that the plan names, and for PyTorch's own what it must be called with."""
    case, run = plan.case, plan.best.execution
    named = [ast.literal_eval(a.code) for a in plan.edits.model_arguments if a.name == "attn_implementation"]
    if not named or not case.model.attended:
        return {}
    # attention over parts is the project's own, and calls PyTorch's; division.py looks whether the model has it
    divided = run.cp > 1
    maskless = run.attention == "sdpa" and (divided or attends_without_mask(case))
    narrow = case.model.head_dim <= FLASH_HEAD_DIM and BYTES[run.compute_dtype] == 2
    flash = (
        maskless
        and case.explain_missing("flash-check") is None
        and run.flash_kernels
        and narrow
        and run.rows not in BY_ROW
    )
    return {
        "attention": ABSENT if divided else BY_ROW.get(run.rows, named[0]),
        "dense_mask": False if maskless else ABSENT,
        "kernel": "flash" if flash else ABSENT,
    }


def expect_gib(plan: Plan) -> dict[str, float]:
    """By kind, on the device that holds most of it."""
    run, shape = plan.best.execution, build_cost_model(plan.case).shape
    static = compute_static_memory(shape, run)
    adapters = 0.0
    if run.train != "full" and static.weights:
        shards = count_adapter_shards(shape, run, count_shards(run).weights)
        each = find_parameter_bytes(run).trained * compute_most_layers_share(shape, run)
        adapters = static.trained * each / shards
    # looked at before the update, when what was added up whole is a share again
    gradients = static.gradients / (run.shards if sums_whole_gradients(run) else 1)
    parts = {
        "weights": static.weights - adapters,
        "adapters": adapters,
        "gradients": gradients,
        "states": static.states,
    }
    return {kind: size / GIB for kind, size in parts.items() if size}
