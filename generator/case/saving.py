"""Checkpoints: how fast the run's folder takes them, how often they are worth it, how long the last one may take."""

from __future__ import annotations

import math

from hwdetect.types import Hardware

ASSUMED_BYTES_PER_S = 1e9
"""where the disk is not known: between a cloud volume and a local NVMe disk"""
WRITE_BYTES_PER_S = {
    "nvme": 1.5e9,  # half of the 3 GB/s of Transformers' docs (deepspeed): one file after the other, serialized and synced
    "memory": 2e9,  # serializing is what takes the time
    "ssd": 0.5e9,  # SATA, 6 Gb/s
    "hdd": 0.15e9,
    "network": 0.5e9,
    "virtual": 0.25e9,  # AWS gp3: 0.125 GB/s unless more is paid for
    "overlay": 0.5e9,
}
"""Assumed, by ``Disk.kind``."""

HASH_BYTES_PER_S = 1.8e9
"""of a core, for the seal: SHA-256 by the processor's own instructions (0.91 CPU seconds of 1.61 GB, AMD EPYC, OpenSSL 3). Those
from before 2020 without them take four times as long."""
HASH_CORES = 16
"""at most, on each node (templates/fragments/seals.py)"""

INTERVAL_SECONDS = 25 * 60.0
"""what an interruption may cost: 20 to 30 minutes"""
TIME_SHARE = 0.05
"""of a run that its saves may take"""
LONGEST_SECONDS = 2 * 3600.0
"""nobody loses more than that, whatever the disk"""

STATE_BYTES = 16
"""of a checkpoint per trained parameter, at most: 16-bit weights twice (DeepSpeed's and the model's own), and in float32
weights and Adam's two moments"""
GRACE_MARGIN = 1.5
STEP_SECONDS = 300.0
"""for the step that runs when SIGTERM comes"""
LEAST_GRACE_SECONDS = 600


def read_disk_rate(hardware: Hardware) -> tuple[float, str]:
    """Bytes per second that the working folder takes, and what they stand on: the lower of its kind's rate and its own
    measured rate of reading."""
    disk = next((disk for disk in hardware.disks if disk.role == "work"), None)
    if disk is None or disk.kind not in WRITE_BYTES_PER_S:
        return ASSUMED_BYTES_PER_S, "assumed, the disk is not known"
    rate = WRITE_BYTES_PER_S[disk.kind]
    if disk.read_bytes_per_s is not None and disk.read_bytes_per_s < rate:
        return disk.read_bytes_per_s, f"it was measured to read at that rate ({disk.kind})"
    return rate, f"assumed for {disk.kind}"


def compute_save_seconds(checkpoint_bytes: float, hardware: Hardware, writers: int) -> float:
    """Until a checkpoint has its seal: ``writers`` nodes share its bytes, and read what they have written once more to hash it."""
    cpu = hardware.cpu
    cores = min(cpu.budget or cpu.cores or 1, HASH_CORES)
    return checkpoint_bytes / read_disk_rate(hardware)[0] + checkpoint_bytes / (writers * cores * HASH_BYTES_PER_S)


def choose_save_steps(step_seconds: float, steps: int | None, save_seconds: float) -> int:
    """Optimizer steps from one checkpoint to the next.

    So many that an interruption costs ``INTERVAL_SECONDS``, or as many more as keep saves at ``TIME_SHARE`` of the time, up to
    ``LONGEST_SECONDS``. ``steps`` of the whole run (``None``: unknown) are divided evenly, and never exceeded. The Trainer
    saves after the last step in any case.
    """
    seconds = min(max(INTERVAL_SECONDS, save_seconds * (1 / TIME_SHARE - 1)), LONGEST_SECONDS)
    interval = seconds / step_seconds
    if steps is None:
        return max(math.ceil(interval), 1)
    return math.ceil(steps / max(round(steps / max(interval, 1)), 1))


def choose_grace_seconds(save_seconds: float) -> int:
    """How long after SIGTERM the last save may take: the end of the step, the save, and room; full minutes."""
    seconds = STEP_SECONDS + GRACE_MARGIN * save_seconds
    return max(LEAST_GRACE_SECONDS, 60 * math.ceil(seconds / 60))
