"""Bytes that an optimizer keeps per trained parameter, and the bytes that its step moves and allocates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from generator.errors import PerfgenError

BLOCKWISE8 = 4 / 256
"""bitsandbytes and torchao keep a float32 scale per block of 256 for each 8-bit state (Dettmers et al. 2022; torchao.optim)"""
BLOCKWISE4 = 4 / 128
"""torchao.optim keeps one per block of 128 for each 4-bit state"""
SMALLEST_PACKED = 4096
"""elements of a tensor whose states bitsandbytes (min_8bit_size) and torchao pack; those of smaller ones stay in 32 bits"""


class MissingOptimizer(PerfgenError, KeyError):
    """An optimizer that the cost model cannot price: a mistake in a technique, not of a user."""

    def __init__(self, name: str):
        super().__init__(
            f"the optimizer {name!r} has no row in OPTIMIZER_STATES (generator/cost/optimizers.py): add what it keeps per"
            " trained parameter (full_states in the parameter's dtype, or fixed_bytes), how often its step reads or writes an"
            " array as large as the parameters (step_passes), and the source of both"
        )


class OptimizerTable(dict[str, "OptimizerState"]):
    def __missing__(self, name: str) -> OptimizerState:
        raise MissingOptimizer(name)


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


ADAM = "Adam keeps two moments (Kingma and Ba), in the parameter's dtype in torch.optim"
BNB = "bitsandbytes 8-bit optimizers: one byte per state and a fp32 scale per block of 256 (Dettmers et al. 2022)"
_ADAM = OptimizerState(full_states=2, foreach=True, source=ADAM)
_ADAM_8BIT = OptimizerState(
    fixed_bytes=2 + 2 * BLOCKWISE8, unpacked_bytes=8, embedding_bytes=8, step_passes=5, source=BNB
)
TORCHTUNE = "Llama 3.1 8B on one RTX 4090: 18.9 GiB, and 16 GB of states are not among them (torchtune 0.3, README)"
_ONE_STATE_8BIT = OptimizerState(
    fixed_bytes=1 + BLOCKWISE8, unpacked_bytes=4, embedding_bytes=4, step_passes=4, source=BNB
)
_ADEMAMIX_8BIT = OptimizerState(
    fixed_bytes=3 + 3 * BLOCKWISE8, unpacked_bytes=12, embedding_bytes=12, step_passes=6, source=BNB
)
_SGD_MOMENTUM = OptimizerState(
    full_states=1, step_passes=5, foreach=True, source="one momentum buffer (torch.optim.SGD)"
)
_ADAMW_4BIT = OptimizerState(
    fixed_bytes=1 + 2 * BLOCKWISE4, unpacked_bytes=8, step_passes=5, source="torchao.optim AdamW4bit, block size 128"
)

OPTIMIZER_STATES: dict[str, OptimizerState] = OptimizerTable(
    {
        "adamw": _ADAM,
        "adam": _ADAM,
        "adamw-8bit": _ADAM_8BIT,
        "paged-adamw-8bit": replace(_ADAM_8BIT, paged=True),
        "in-backward-paged-adamw-8bit": replace(
            _ADAM_8BIT, paged=True, lives_on_host=True, stores_gradients=False, source=f"{BNB}; {TORCHTUNE}"
        ),
        "paged-adamw": OptimizerState(fixed_bytes=8, paged=True, source=BNB),
        "adamw-torchao-8bit": OptimizerState(
            fixed_bytes=2 + 2 * BLOCKWISE8,
            unpacked_bytes=8,
            step_passes=5,
            source="torchao.optim AdamW8bit, block size 256",
        ),
        "adamw-torchao-4bit": _ADAMW_4BIT,
        "adamw-4bit": _ADAMW_4BIT,
        "adafactor": OptimizerState(
            factored=True,
            step_passes=9,
            source="Adafactor without momentum: row and column means (Shazeer and Stern 2018)",
        ),
        "none": OptimizerState(step_passes=0, source="no update: forward and backward pass only"),
        "sgd": OptimizerState(step_passes=3, foreach=True, source="torch.optim.SGD without momentum keeps nothing"),
        "sgd-momentum": _SGD_MOMENTUM,
        "sgd_momentum": _SGD_MOMENTUM,
        "adagrad": OptimizerState(full_states=1, step_passes=5, source="one accumulator (torch.optim.Adagrad)"),
        "rmsprop": OptimizerState(full_states=1, step_passes=5, source="one accumulator (torch.optim.RMSprop)"),
        "rmsprop-8bit": _ONE_STATE_8BIT,
        "lion": OptimizerState(
            full_states=1, step_passes=5, foreach=True, source="Lion keeps one momentum (Chen et al. 2023)"
        ),
        "lion-8bit": _ONE_STATE_8BIT,
        "paged-lion-8bit": replace(_ONE_STATE_8BIT, paged=True),
        "ademamix": OptimizerState(
            fixed_bytes=12,
            step_passes=9,
            source="AdEMAMix keeps three moments (Pagliardini et al.), in 32 bits of any weights (bitsandbytes 0.50)",
        ),
        "ademamix-8bit": _ADEMAMIX_8BIT,
        "paged-ademamix-8bit": replace(_ADEMAMIX_8BIT, paged=True),
        "galore": OptimizerState(rank=128, step_passes=9, source="GaLore: two moments of rank r and a projection"),
        "galore-8bit": OptimizerState(rank=128, moments_8bit=True, step_passes=9, source="GaLore with 8-bit moments"),
        "apollo": OptimizerState(rank=256, step_passes=8, source="APOLLO: moments in a random projection of rank r"),
        "muon": OptimizerState(full_states=1, step_passes=12, source="Muon keeps one momentum (Jordan et al. 2024)"),
        "lomo": OptimizerState(stores_gradients=False, step_passes=3, source="LOMO updates in the backward pass"),
        "adalomo": OptimizerState(
            stores_gradients=False,
            factored=True,
            step_passes=6,
            source="AdaLomo: factored second moment, fused update",
        ),
        "schedule-free": OptimizerState(full_states=2, step_passes=8, source="AdamWScheduleFree: z and one moment"),
        "stable-adamw": OptimizerState(
            full_states=2,
            compensated=True,
            step_passes=8,
            source=f"{ADAM}; Kahan's sum of 16-bit weights (torch-optimi 0.3)",
        ),
        "grokadamw": OptimizerState(full_states=3, step_passes=9, source="AdamW and a gradient average"),
    }
)


def compute_state_bytes(name: str, params: float, dtype_bytes: float, hidden: int) -> float:
    """Bytes of optimizer state for ``params`` trained parameters stored with ``dtype_bytes`` each."""
    kind = OPTIMIZER_STATES[name]
    full_states = kind.full_states + (kind.compensated and dtype_bytes < 4)
    total = params * (full_states * dtype_bytes + kind.fixed_bytes)
    if kind.factored:
        # a float32 mean per row and one per column: of a matrix of hidden x hidden, 2 / hidden of its elements
        total += params * 2 * 4 / max(hidden, 1)
    return total + params * compute_projected_bytes(kind, dtype_bytes, hidden)


def compute_moment_bytes(kind: OptimizerState, dtype_bytes: float) -> float:
    """Both moments of an element, of a projection or of a weight that is not projected."""
    return 2 if kind.moments_8bit else 2 * dtype_bytes


def compute_projected_bytes(kind: OptimizerState, dtype_bytes: float, hidden: int) -> float:
    """Per parameter of a layer: both moments have ``rank`` of ``hidden`` columns, and so has the projection itself."""
    return min(1.0, kind.rank / max(hidden, 1)) * (compute_moment_bytes(kind, dtype_bytes) + dtype_bytes)
