"""How a run divides its devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a run divides its devices: ``nodes`` × ``per_node`` = replicate × shard × tp × pp × cp.

    ``replicate`` counts copies of the (sharded) model, ``shard`` the devices that one copy's states are divided over;
    ``cp`` divides sequences in the way of ``sequence_form``. ``ep`` divides experts over devices that are already counted.
    ``strategy`` is ``Execution.strategy``. ``at_load``: the model is sharded while it is read, not by Accelerate after it.
    """

    strategy: str = "none"
    nodes: int = 1
    per_node: int = 1
    replicate: int = 1
    shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    at_load: bool = False
    sequence_form: str | None = None
    """a row of ``generator.case.strategies.SEQUENCE_FORMS``; None where sequences are whole"""

    @property
    def devices(self) -> int:
        return self.nodes * self.per_node

    @property
    def dp(self) -> int:
        """Devices (groups of them, with tp, pp or cp) that each train on their own part of the batch."""
        return self.replicate * self.shard


ONE_DEVICE = Layout()
