from collections.abc import Mapping
from typing import Any

from generator.case.case import Case
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.loading import list_pinning

START = 4
"""Where the guide starts; more only helps while the device waits for data."""


class Workers(Technique):
    """Worker processes prepare and pin the next batches while the device computes.

    What it does: hides the loading of data behind the step.
    When it loses: on a CPU-only machine, where a worker takes a core from the training; more workers are not always
    faster.
    Known problems: each costs a process and room in /dev/shm, which containers keep small.
    """

    axis = "data-loading"
    name = "workers"
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/v4.41.3/en/perf_train_gpu_one#data-preloading",
            "pinned memory and several workers keep the GPU busy; start with 4",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.on_cpu:
            return "the CPU is the device: a worker would take a core from the training"
        if case.hardware.cpu.budget is not None and case.hardware.cpu.budget < 2:
            return f"the process may use {case.hardware.cpu.budget} CPU: no core is free for a worker"
        return None

    def effects(self, case: Case) -> Mapping[str, Any]:
        return {"dataloader_workers": count_workers(case), "pin_memory": case.explain_missing("pinned-memory") is None}

    def edits(self, case: Case) -> Edits:
        budget = case.hardware.cpu.budget
        return Edits(
            training_arguments=(
                make_argument(
                    "dataloader_num_workers", count_workers(case), f"of {budget} usable CPUs" if budget else ""
                ),
                make_argument("dataloader_persistent_workers", True),
                make_argument("dataloader_prefetch_factor", 2),
                *list_pinning(case),
            )
        )


def count_workers(case: Case) -> int:
    """The guide's 4, or one less than the usable CPUs of a small machine."""
    budget = case.hardware.cpu.budget
    return START if budget is None else max(1, min(START, budget - 1))
