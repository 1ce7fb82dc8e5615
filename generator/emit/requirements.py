"""What is installed: pinned distributions, pyproject.toml, the base image."""

from __future__ import annotations

from generator.case.limits import GRACE_SECONDS
from generator.case.tasks import list_tasks
from generator.case.vendors import Container
from generator.case.workload import TRACKERS
from generator.decide.plan import Plan, Planned
from generator.emit.compilers import NVCC, list_debian_packages, list_image_packages
from generator.emit.container import STOP_MARGIN_SECONDS
from generator.emit.plan_document import CompilerRecord, ImageRecord, SavingRecord
from generator.emit.project import describe_project
from generator.emit.server import is_server

OPTIONAL = {"bitsandbytes", "peft", "pytest", "torchao"}
"""Of a stack that serves: what a technique must ask for, and the tests."""
BASE = ("torch", "transformers", "accelerate", "datasets", "pyyaml", "matplotlib")


def pin_requirements(planned: Planned) -> tuple[str, ...]:
    """Pinned distributions, from the tested stack; the tracker too that the log goes to."""
    plan, tracker = planned.plan, planned.work.request.report_to
    workload = plan.case.workload
    if is_server(plan) or workload.by_row:
        others = set().union(*(task.packages for task in list_tasks().values())) - workload.task_facts.packages
        given = {name for name, _ in plan.case.stack.packages} - OPTIONAL - others
        return pin(plan, given | set(plan.edits.requirements))
    if plan.case.skeleton:
        return pin(plan, set(plan.case.skeleton.packages))
    wanted = {
        *BASE,
        *dict(plan.case.stack.build.plugins),
        *plan.edits.requirements,
        *(plan.serving.edits.requirements if plan.serving else ()),
    }
    if workload.task == "sft":
        wanted.add("trl")
    if workload.mode == "train" and tracker in TRACKERS:
        wanted.add(tracker)
    return pin(plan, wanted)


RDMA_PACKAGES = ("ibverbs-providers", "libibverbs1")
"""What NCCL loads to reach other nodes by InfiniBand or RoCE; without them it goes over TCP (its user guide, NCCL_IB_DISABLE)."""


def pin(plan: Plan, wanted: set[str]) -> tuple[str, ...]:
    """Each with its version of the stack."""
    return tuple(f"{name}=={plan.case.stack.version(name)}" for name in sorted(wanted))


def describe_image(
    plan: Plan, compilers: CompilerRecord, saving: SavingRecord | None, container: Container
) -> ImageRecord:
    """The base image, what it lacks, and the shared memory that data-loading workers need."""
    build = plan.case.stack.build
    toolkit = NVCC in compilers.train
    fabric = () if plan.best.layout.nodes == 1 or plan.case.on_cpu else RDMA_PACKAGES
    return ImageRecord(
        base=(build.toolkit_image or build.image) if toolkit else build.image,
        torch_index=build.index,
        engine_index=build.engine_index,
        toolkit=toolkit,
        packages=tuple(sorted({*list_image_packages(compilers), *build.packages, *fabric})),
        compiler_packages=list_debian_packages(compilers),
        driver_packages=tuple(build.packages),
        flags=container.flags,
        shm_size="8g" if plan.best.execution.dataloader_workers or plan.best.layout.devices > 1 else "1g",
        stop_seconds=choose_stop_seconds(plan, saving),
    )


def choose_stop_seconds(plan: Plan, saving: SavingRecord | None) -> int:
    """For a training's last save, or the answers that a server is writing; else Docker's default."""
    if is_server(plan):
        return GRACE_SECONDS + STOP_MARGIN_SECONDS
    return saving.grace_seconds if saving else 10


def list_extras(plan: Plan) -> dict[str, list[str]]:
    """What can be installed beside: the tests, and for a training whatever its log can be written to, and what searches for values."""
    beside = {"search": "optuna"} | {name: name for name in TRACKERS}
    trained = {extra: name for extra, name in beside.items() if plan.case.stack.version(name)}
    trained = trained if plan.case.workload.mode == "train" else {}
    return {
        extra: [f"{name}=={plan.case.stack.version(name)}"] for extra, name in ({"test": "pytest"} | trained).items()
    }


def dump_pyproject(planned: Planned, name: str | None) -> str:
    """The project's pyproject.toml, dumped from data."""
    import tomli_w

    plan, stack = planned.plan, planned.plan.case.stack
    index = {"name": f"torch-{stack.build.name}", "url": stack.build.index, "explicit": True}
    # an engine's own index comes before PyPI: its torch is of a version that PyPI has too, and is another
    own = {"uv": {"index": [{"name": f"engine-{stack.build.name}", "url": stack.build.engine_index}]}}
    # an engine without torch asks no index of its own, and a wheel of PyPI's none
    asked = stack.version("torch") and stack.build.index
    sources = {name: [{"index": index["name"]}] for name in ("torch", *stack.build.beside)}
    # uv asks that index for direct dependencies alone: those of torch stand in a group, which pip passes over
    group = {index["name"]: list(stack.build.beside)} if asked and stack.build.beside else {}
    default = {"default-groups": [index["name"]]} if group else {}
    uv = {"uv": {**default, "sources": sources, "index": [index]}} if asked else own if stack.build.engine_index else {}
    return tomli_w.dumps(
        {
            "build-system": {"requires": ["setuptools>=77"], "build-backend": "setuptools.build_meta"},
            "project": {
                "name": describe_project(planned, name).name,
                "version": "0.1.0",
                "description": "Generated by perfgen; yours from here on.",
                "requires-python": stack.python,
                "dependencies": list(pin_requirements(planned)),
                "optional-dependencies": list_extras(plan),
            },
            **({"dependency-groups": group} if group else {}),
            "tool": {
                "setuptools": {"py-modules": []},
                **uv,
                "ruff": {"line-length": 120},
            },
        }
    )
