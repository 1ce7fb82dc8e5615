"""Bytes of an optimizer's states."""

from __future__ import annotations

from generator.case.optimizer_states import OptimizerState


def compute_state_bytes(kind: OptimizerState, params: float, dtype_bytes: float, hidden: int) -> float:
    """Bytes of optimizer state for ``params`` trained parameters stored with ``dtype_bytes`` each."""
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
