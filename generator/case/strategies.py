"""One table of the ways in which the devices of a run share a model: what each divides, gathers and reduces, and who runs it.

``STRATEGIES`` has a row for each way to treat the copies of a model; ``SEQUENCE_FORMS`` and ``MESH_AXES`` say what is divided
inside a copy. Cost model, layouts, launch and emission read the rows: outside of this file a strategy's name is only passed on,
never compared (tests/test_strategies.py). A new strategy is a row here and a technique whose layouts name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

TRAINER, LOOP = "trainer", "loop"
"""the skeletons that a project's train.py can be built from: the Trainer, or a training loop of its own"""
RING, GATHER, ULYSSES = "ring", "gather", "ulysses"
EVERY_PROCESS, ONE_OF_A_NODE, EACH_ITS_SHARD = "every process", "one process of a node", "each process its shard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How the copies of a model share weights, gradients and optimizer states. What is not stated is not done.

    ``divides_*``: a device holds only its shard of them, of a group of ``Execution.shards`` devices.
    """

    name: str
    library: str = ""
    """torch, accelerate, deepspeed; empty where nothing is exchanged"""
    wrapper: str = ""
    """class of the prepared model: the emitted project asserts it at the first step"""
    skeletons: tuple[str, ...] = (TRAINER, LOOP)
    """what can run it and save it, optimizer included"""
    # what is divided
    divides_weights: bool = False
    divides_gradients: bool = False
    divides_states: bool = False
    layers_in_turn: bool = False
    """consecutive layers on different devices, one of which works at a time; ``Layout.pp`` counts them"""
    # what is gathered
    reshards: bool = False
    """weights are let go after the forward pass and gathered anew for the backward pass (reshard_after_forward)"""
    live_elements: float = 0.0
    """weights that stay gathered for their next use (stage3_max_live_parameters); 0: one block ahead is gathered"""
    # what is reduced
    reduces_stored_dtype: bool = False
    """gradients travel in the dtype of the weights; otherwise in that of the arithmetic"""
    reduces_every_micro_batch: bool = False
    """gradients go to their owners after each micro-batch, not once an optimizer step"""
    reduces_at_end: bool = False
    """only when the last backward pass has ended, so that nothing hides it"""
    buckets_every_gradient: bool = False
    """the reducer's buckets have a place for every gradient, beside the gradient itself"""
    summed_elements: float = 0.0
    """gradients that are put together, summed over the copies and taken apart again at once"""
    bucket_elements: float = 0.0
    """of the reduce and of the all-gather bucket, where they are buffers of one size"""
    # in which precision
    casts_itself: bool = False
    """the library casts weights and inputs to the dtype of the arithmetic; otherwise autocast does, operator by operator"""
    float32_masters: bool = False
    """each device keeps its part of the weights in float32 beside the optimizer states, and updates that"""
    # who runs it
    loads: str = EVERY_PROCESS
    """whose host memory holds the model while it is read"""
    by_fsdp: bool = False
    """PyTorch's FSDP: units of weights, DTensors, settings in accelerate.yaml"""
    deepspeed_stage: int = 0
    sequence_form: str = ""
    """what its library brings to divide sequences; a row of ``SEQUENCE_FORMS``"""

    @property
    def exchanges(self) -> bool:
        """Whether the devices have anything to tell each other."""
        return bool(self.library)

    @property
    def by_deepspeed(self) -> bool:
        return self.deepspeed_stage > 0


EMITTED_BUCKET_ELEMENTS = 5e7
"""of the emitted deepspeed.json: DeepSpeed's own 5e8 would take 9 GB with overlap_comm (Transformers docs, deepspeed)"""
EMITTED_SUMMED_ELEMENTS = 25e6
"""of the emitted divided_states.py (SENT_ELEMENTS)"""
EMITTED_LIVE_ELEMENTS = 1e9
"""of the emitted deepspeed.json, and DeepSpeed's default (its docs, config-json)"""

_FSDP = Strategy(
    name="",
    library="accelerate",
    wrapper="FSDPModule",
    divides_weights=True,
    divides_gradients=True,
    divides_states=True,
    reduces_every_micro_batch=True,
    casts_itself=True,
    loads=ONE_OF_A_NODE,  # Accelerate's cpu_ram_efficient_loading
    by_fsdp=True,
    sequence_form=RING,
)
_ZERO1 = Strategy(
    name="zero1",
    library="deepspeed",
    wrapper="DeepSpeedEngine",
    skeletons=(TRAINER,),
    deepspeed_stage=1,
    divides_states=True,
    bucket_elements=EMITTED_BUCKET_ELEMENTS,
    casts_itself=True,
    float32_masters=True,
    sequence_form=ULYSSES,
)
_ZERO2 = replace(_ZERO1, name="zero2", deepspeed_stage=2, divides_gradients=True, reduces_every_micro_batch=True)

STRATEGIES: Mapping[str, Strategy] = {
    row.name: row
    for row in (
        Strategy(name="none"),
        Strategy(
            name="ddp",
            library="torch",
            wrapper="DistributedDataParallel",
            reduces_stored_dtype=True,
            buckets_every_gradient=True,
        ),
        Strategy(  # of the loop: no reducer, every gradient is summed where it lies (templates/fragments/divided_states.py)
            name="summed_copies",
            library="torch",
            wrapper="loop",
            skeletons=(LOOP,),
            reduces_stored_dtype=True,
            reduces_at_end=True,
            summed_elements=EMITTED_SUMMED_ELEMENTS,
        ),
        _ZERO1,
        _ZERO2,
        replace(
            _ZERO2,
            name="zero3",
            deepspeed_stage=3,
            divides_weights=True,
            reshards=True,
            bucket_elements=0.0,  # they grow with the model's width, and are small beside what stays gathered
            live_elements=EMITTED_LIVE_ELEMENTS,
            loads=EACH_ITS_SHARD,  # deepspeed.zero.Init
        ),
        replace(_FSDP, name="fsdp_full_shard", reshards=True),
        replace(_FSDP, name="fsdp_shard_grad_op"),
        replace(_FSDP, name="hsdp", reshards=True),
        replace(
            _FSDP,
            name="spmd",
            library="torch_xla",
            wrapper="",
            reshards=True,
            by_fsdp=False,
            sequence_form="",
            skeletons=(),
        ),
        Strategy(  # of published rows only: Megatron-LM's and nanotron's own optimizer, each copy's the same
            name="undivided_masters",
            library="megatron",
            wrapper="DistributedDataParallel",
            skeletons=(),
            casts_itself=True,
            float32_masters=True,
            reduces_at_end=True,
        ),
        Strategy(name="device_map_auto", library="accelerate", layers_in_turn=True, skeletons=()),  # only serves
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceForm:
    """How devices share one sequence: each has its part of the tokens, and attention needs the others'."""

    name: str
    exchanges_heads: bool
    """queries, keys, values and outputs change from parts of the sequence to parts of the heads and back (all-to-all);
    otherwise every other part's keys and values come here, one after the other (a ring) or at once (all-gather)"""
    hides_behind_attention: bool
    """what comes next travels while attention computes"""
    skeletons: tuple[str, ...]


SEQUENCE_FORMS: Mapping[str, SequenceForm] = {
    row.name: row
    for row in (
        SequenceForm(name=RING, exchanges_heads=False, hides_behind_attention=True, skeletons=(LOOP,)),
        SequenceForm(name=GATHER, exchanges_heads=False, hides_behind_attention=False, skeletons=(LOOP,)),
        SequenceForm(name=ULYSSES, exchanges_heads=True, hides_behind_attention=False, skeletons=(LOOP,)),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAxis:
    """A size of a ``Layout`` that divides one copy of the model: what of it, and what can run and save that.

    The Trainer runs tensor and expert parts of a model that was sharded at load, and cannot save their optimizer (trainer.py).
    """

    size: str
    divides: tuple[str, ...]
    inside_node: bool
    """nothing hides what it exchanges, so it stays on the links of a node"""
    skeletons: tuple[str, ...] = (LOOP,)


MESH_AXES: Mapping[str, MeshAxis] = {
    row.size: row
    for row in (
        MeshAxis(size="tp", divides=("weights", "gradients", "states"), inside_node=True),
        MeshAxis(size="pp", divides=("weights", "gradients", "states"), inside_node=False),
        MeshAxis(size="ep", divides=("experts",), inside_node=False),
    )
}


def find_skeletons(strategy: str, sequence_form: str | None, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """What can run and save a layout: the skeletons that every one of its forms has. ``sizes``: of ``MESH_AXES``."""
    rows: list[Strategy | SequenceForm | MeshAxis] = [STRATEGIES[strategy]]
    rows += [SEQUENCE_FORMS[sequence_form]] if sequence_form else []
    rows += [MESH_AXES[size] for size, count in sizes.items() if count > 1]
    return tuple(name for name in (TRAINER, LOOP) if all(name in row.skeletons for row in rows))
