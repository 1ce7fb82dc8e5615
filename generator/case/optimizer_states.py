"""What an optimizer keeps per trained parameter and moves in a step: said by its technique, read by the cost model."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKWISE8 = 4 / 256
"""bitsandbytes and torchao keep a float32 scale per block of 256 for each 8-bit state (Dettmers et al. 2022; torchao.optim)"""
BLOCKWISE4 = 4 / 128
"""torchao.optim keeps one per block of 128 for each 4-bit state"""
SMALLEST_PACKED = 4096
"""elements of a tensor whose states bitsandbytes (min_8bit_size) and torchao pack; those of smaller ones stay in 32 bits"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """``full_states`` are kept in the parameter's dtype, ``fixed_bytes`` per parameter whatever its dtype.

    ``factored`` states grow with rows + columns instead of their product; ``rank`` is that of projected states.
    ``stores_gradients`` is False where the update is fused into the backward pass. ``paged`` states may move to the host.
    ``step_passes`` is how many times the step reads or writes a parameter-sized array.
    """

    full_states: float = 0.0
    fixed_bytes: float = 0.0
    factored: bool = False
    rank: int = 0
    """of the projection of a layer's matrix, as emitted (optim_args); embedding and output layer keep two whole moments. 0: none"""
    moments_8bit: bool = False
    """the projected moments take a byte each"""
    stores_gradients: bool = True
    compensated: bool = False
    """weights of 16 bits have one full state more: what rounding took from them"""
    paged: bool = False
    lives_on_host: bool = False
    """the device borrows the states of one weight at a time (not a CPU, which has one memory)"""
    unpacked_bytes: float = 0.0
    """of a parameter in a tensor that is too small to pack (``SMALLEST_PACKED``)"""
    embedding_bytes: float | None = None
    """of a parameter of the embedding, which the Trainer lets bitsandbytes keep in 32 bits (Transformers 5.23, create_optimizer)"""
    step_passes: float = 7.0
    foreach: bool = False
    """torch.optim's: unless it is fused, its step makes one temporary as large as the parameters"""
    source: str


ADAM = OptimizerState(
    full_states=2,
    foreach=True,
    source="Adam keeps two moments (Kingma and Ba), in the parameter's dtype in torch.optim",
)
"""of ``Execution`` where nothing says otherwise"""
NO_UPDATE = OptimizerState(step_passes=0, source="no update: forward and backward pass only")
LEAST_STATES = OptimizerState(stores_gradients=False, source="neither states nor gradients")
"""no other needs less memory at any moment of a step"""


def pack_in_8_bits(states: int) -> OptimizerState:
    """What an optimizer of bitsandbytes keeps whose ``states`` are all packed; its kernel reads gradient and weight beside them."""
    return OptimizerState(
        fixed_bytes=states * (1 + BLOCKWISE8),
        unpacked_bytes=4.0 * states,
        embedding_bytes=4.0 * states,
        step_passes=3.0 + states,
        source="bitsandbytes 8-bit optimizers: one byte per state and a fp32 scale per block of 256 (Dettmers et al. 2022)",
    )
