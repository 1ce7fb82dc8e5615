"""What models are used for: one file a task, found by import (CONTRIBUTING.md)."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from generator.case.tasks.task import Task

__all__ = ["Task", "find_task", "list_tasks"]


@cache
def list_tasks() -> dict[str, Task]:
    """By name, those that are trained first: of each module of this folder its ``TASK``."""
    modules = (importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__))
    tasks = [module.TASK for module in modules if hasattr(module, "TASK")]
    return {task.name: task for task in sorted(tasks, key=lambda task: (not task.trained, task.name))}


def find_task(name: str) -> Task:
    """KeyError for one that there is not."""
    return list_tasks()[name]
