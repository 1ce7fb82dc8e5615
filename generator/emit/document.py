"""The plan document: everything that plan.json holds and that a template may print. Computed here, printed there."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.sources import Work
from generator.decide.candidates import Candidate
from generator.decide.device_count import DeviceCount
from generator.decide.notes import Note
from generator.decide.plan import Plan, Planned
from generator.decide.reasons import Decision, Rejected, list_changes
from generator.emit.compilers import builds_deepspeed_ops, list_compilers
from generator.emit.config_yaml import build_config
from generator.emit.container import dump_compose, list_scratch, reach_devices
from generator.emit.deploy import PodNeeds, dump_deployment
from generator.emit.environment import complete_environment
from generator.emit.evaluation import count_untrained_rows, note_few_rows, note_no_rows, plan_evaluation
from generator.emit.figures import (
    describe_estimate,
    list_candidate_costs,
    round_floats,
    summarize_candidate,
)
from generator.emit.fixed import write_fixed
from generator.emit.launch import describe_launch, list_launch_files
from generator.emit.modules import choose_modules
from generator.emit.parallel import describe_processes, select_visible_devices
from generator.emit.plan_document import (
    ABSENT,
    SCHEMA,
    BatchRecord,
    CaseRecord,
    ConfigRecord,
    DecisionRecord,
    DeviceCountRecord,
    DeviceRecord,
    HardwareRecord,
    LayoutRecord,
    PlanDocument,
    ProjectPart,
    RejectedCostRecord,
    RejectedRecord,
    RunnerUpRecord,
    ServerRecord,
    ServingRecord,
    SplitRecord,
)
from generator.emit.plan_json import to_json
from generator.emit.project import describe_project, read_version
from generator.emit.provenance import trace_edits
from generator.emit.requirements import describe_image, dump_pyproject, pin_requirements
from generator.emit.run_total import describe_run
from generator.emit.saving import describe_saving
from generator.emit.server import describe_server, find_chosen_engine, is_server, measure_filled, measure_read_files
from generator.emit.skeleton import keep_known, list_skeleton_modules
from generator.emit.sources import describe_sources, localize, place_sources
from generator.emit.user_values import describe_workload, list_defaults, list_user_values
from generator.techniques.edits import Edits
from hwdetect.types import Device, Hardware


def build_document(planned: Planned, name: str | None = None, dest: Path | None = None) -> PlanDocument:
    """The plan document: complete, so that rendering needs nothing else. ``name`` is the project's, ``dest`` its folder, if known."""
    placed = place_sources(planned.work, dest)
    planned = localize(planned, placed)
    plan, work = planned.plan, planned.work
    skeleton = plan.case.skeleton
    project = describe_project(planned, name, describe_sources(placed))
    parallel = None if skeleton else describe_processes(plan)
    saving = describe_saving(plan) if plan.case.workload.mode == "train" else None
    evaluation = plan_evaluation(planned, saving) if saving else None
    if evaluation and skeleton:
        evaluation = replace(evaluation, keeps_best=False)  # its loop keeps the last one
    if evaluation and evaluation.keeps_best:
        saving = describe_saving(plan, evaluation.interval)  # the best model is one that was saved
    config = build_config(planned, parallel, saving, evaluation)
    config = keep_known(config, plan) if skeleton else config
    asks_kernel = config.first_step is not ABSENT and config.first_step.kernel is not ABSENT
    compilers = list_compilers(plan)
    visible_devices = select_visible_devices(plan)
    container = reach_devices(plan, visible_devices)
    image = describe_image(plan, compilers, saving, container)
    merged = Edits() if skeleton else merge_edits(plan, plan.serving)
    edits, yours = complete_environment(plan, merged), list_user_values(plan.case.workload)
    engine = find_chosen_engine(plan) if is_server(plan) else None
    server = describe_server(plan) if engine else None
    launch = describe_launch(plan, project, edits, parallel, saving, server)
    launched = dict(list_launch_files(plan, project, config, launch, saving)) if launch and saving else ABSENT
    return PlanDocument(
        schema=SCHEMA,
        perfgen=read_version(),
        project=project,
        case=describe_case(plan.case, work),
        choice=plan.best.choice,
        layout=describe_layout(plan),
        batch=describe_batch(plan),
        estimate=describe_estimate(plan.best.estimate),
        decisions=tuple(describe_decision(d) for d in plan.decisions),
        runners_up=tuple(describe_runner_up(plan, c) for c in plan.runners_up),
        devices=tuple(describe_device_count(plan, count) for count in plan.counts),
        edits=edits,
        fixed=() if skeleton else write_fixed(project, edits, parallel),
        parallel=parallel,
        modules=list_skeleton_modules(project, skeleton)
        if skeleton
        else choose_modules(project, edits, parallel, compilers, server, engine, asks_kernel, plan.best.layout),
        visible_devices=visible_devices,
        provenance=() if skeleton else trace_edits(plan) + (trace_edits(plan.serving) if plan.serving else ()),
        yours=yours,
        defaults=list_defaults(yours, work.origins),
        serving=describe_serving(plan.serving) if plan.serving else None,
        config=config,
        requirements=pin_requirements(planned),
        versions=dict(plan.case.stack.packages),
        saving=saving,
        compilers=compilers,
        docker=image,
        files=list_deployment(plan, project, config, server)
        | {
            "pyproject.toml": dump_pyproject(planned, name),
            "compose.yaml": dump_compose(project, config, image, plan.best.layout, container, list_scratch(plan)),
        },
        untested=list_untested(plan),
        notes=(*list_notes(planned), *note_few_rows(evaluation), *note_no_rows(planned, evaluation)),
        evaluation=evaluation or ABSENT,
        server=server or ABSENT,
        launch=launch or ABSENT,
        launched=launched,
        run=describe_run(planned, count_untrained_rows(planned, evaluation))
        if plan.case.workload.mode == "train"
        else ABSENT,
    )


def list_deployment(
    plan: Plan, project: ProjectPart, config: ConfigRecord, server: ServerRecord | None
) -> dict[str, str]:
    """The files that only a server on one node has: Kubernetes' own objects know no group of pods that compute together."""
    if server is None or plan.best.layout.nodes > 1:
        return {}
    resource = plan.case.vendor.kubernetes
    needs = PodNeeds(
        devices={resource: plan.best.layout.devices} if resource else {},
        cpus=plan.case.hardware.cpu.budget,
        memory_gib=plan.best.estimate.peak_memory_gib,
        filled_gib=measure_filled(plan),
        files_gib=measure_read_files(plan),
        group_file=plan.case.vendor.group_file,
    )
    return {"serve.k8s.yaml": dump_deployment(project, config, server, needs)}


def describe_case(case: Case, work: Work) -> CaseRecord:
    return CaseRecord(
        device=describe_device(case.device),
        device_memory_bytes=case.device_memory_bytes,
        model=case.model,
        workload=describe_workload(case.workload, work.origins),
        hardware=keep_stable(case.hardware),
    )


def describe_device(device: Device) -> DeviceRecord:
    kept = {f.name: getattr(device, f.name) for f in fields(device)}
    return DeviceRecord(**round_floats(kept | {"sources": dict(device.sources)}))


def describe_layout(plan: Plan) -> LayoutRecord:
    """How the devices are divided."""
    best: Layout = plan.best.layout
    return LayoutRecord(**asdict(best), devices=best.devices, of_devices=plan.case.devices)


def describe_device_count(plan: Plan, count: DeviceCount) -> DeviceCountRecord:
    """The best plan on so many devices, in numbers and as what differs from the chosen one."""
    figures = dict.fromkeys(DEVICE_COUNT_FIGURES)
    changes: tuple[str, ...] = ()
    if count.best is not None:
        workload, seconds = plan.case.workload, count.best.estimate.step_seconds
        steps = workload.steps if workload.mode == "train" else None
        # a step of inference answers all prompts of a batch
        answers = 1 if workload.mode == "train" else count.best.execution.micro_batch
        hours = None if plan.case.on_cpu else seconds * count.count / 3600 / answers
        per_run = {
            "gpu_hours": hours * steps if hours and steps else None,
            "gpu_hours_per_1000_steps": hours * 1000 if hours else None,
        }
        figures = list_candidate_costs(count.best) | round_floats(per_run)
        changes = list_changes(plan.best, count.best, of_devices=False)
    return DeviceCountRecord(
        count=count.count,
        chosen=count.best is plan.best,
        fits=count.best is not None,
        changes=changes,
        why_not=None if count.best else count.why_not,
        **figures,
    )


COST_FIGURES = ("peak_memory_gib", "step_seconds", "tokens_per_second", "micro_batch", "accumulation")
DEVICE_COUNT_FIGURES = (*COST_FIGURES, "gpu_hours", "gpu_hours_per_1000_steps")


def describe_runner_up(plan: Plan, candidate: Candidate) -> RunnerUpRecord:
    changes = list_changes(plan.best, candidate)
    return RunnerUpRecord(choice=candidate.choice, changes=changes, estimate=summarize_candidate(candidate))


def list_notes(planned: Planned) -> tuple[Note, ...]:
    """What a reader must know, each with what it is about."""
    of_model, of_data = planned.work.source.notes, planned.work.data.notes if planned.work.data else ()
    inputs = [Note(kind="model", text=text) for text in of_model] + [Note(kind="data", text=text) for text in of_data]
    return (*planned.notes, *inputs)


def describe_batch(plan: Plan) -> BatchRecord:
    run = plan.best.execution
    return BatchRecord(
        micro_batch=run.micro_batch,
        accumulation=run.accumulation,
        global_batch=run.micro_batch * run.accumulation * run.dp,
        splits=tuple(SplitRecord(**list_candidate_costs(c), fits=c.fits) for c in plan.splits),
    )


def keep_stable(hardware: Hardware) -> HardwareRecord:
    """What was read of the machine, less what changes from minute to minute and what names it."""
    return HardwareRecord(
        cpu=hardware.cpu,
        memory=replace(hardware.memory, available_bytes=None, swap_used_bytes=None),
        boards=tuple(
            replace(b, uuid=None, pci_address=None, temperature_c=None, throttle_reasons=None, performance_state=None)
            for b in hardware.boards
        ),
        accelerators=tuple(replace(a, uuid=None, free_memory_bytes=None) for a in hardware.accelerators),
        links=hardware.links,
        nodes=hardware.nodes,
        software=replace(hardware.software, visible_devices=None),
        measured=hardware.measured,
    )


def describe_decision(decision: Decision) -> DecisionRecord:
    return DecisionRecord(
        axis=decision.axis,
        chosen=decision.chosen,
        open=decision.is_open,
        why=decision.why,
        quality_note=decision.quality_note,
        evidence=decision.evidence,
        basis=decision.basis,
        rejected=tuple(describe_rejected(r) for r in decision.rejected),
    )


def describe_rejected(rejected: Rejected) -> RejectedRecord:
    rival, cost = rejected.rival, None
    if rival is not None:
        cost = RejectedCostRecord(fits=rejected.fits, devices=rival.layout.devices, **list_candidate_costs(rival))
    return RejectedRecord(name=rejected.name, why=rejected.why, cost=cost, changes=rejected.changes)


INFER_PLACES = tuple(f.name for f in fields(Edits) if f.name.startswith("infer_"))


def merge_edits(plan: Plan, serving_plan: Plan | None) -> Edits:
    """The merged edits; a training plan takes its infer places from the serving plan. An engine with its own code of the model has
    nothing to do with arguments of Transformers'."""
    if is_server(plan) and not find_chosen_engine(plan).baseline:
        return replace(plan.edits, **dict.fromkeys(INFER_PLACES, ()))
    if serving_plan is None:
        return plan.edits
    return replace(plan.edits, **{place: getattr(serving_plan.edits, place) for place in INFER_PLACES})


def describe_serving(plan: Plan) -> ServingRecord:
    return ServingRecord(
        choice=plan.best.choice,
        estimate=describe_estimate(plan.best.estimate),
        decisions=tuple(describe_decision(d) for d in plan.decisions),
    )


def list_untested(plan: Plan) -> tuple[str, ...]:
    """What nobody has run: the reader must know."""
    case = plan.case
    lines: list[str] = []
    if case.explain_unemitted():  # there is nothing to run
        return ()
    if case.skeleton:
        return (*case.skeleton.untested, *case.skeleton.beside)
    if not case.on_cpu:
        build = case.stack.build
        ran = f"ran {build.name} {build.ran}" if build.ran else f"never ran {build.name}"
        lines.append(f"perfgen's authors {ran}: smoke-run first")
    if case.stack.build.loads:
        lines.append(f"the engine's wheels load {case.stack.build.loads}: install it there, or use the container")
    if plan.edits.launcher and (not case.on_cpu or plan.best.layout.nodes > 1):
        never = (
            "between two machines, only between two network namespaces of one"
            if case.on_cpu
            else f"over {case.vendor.collectives}"
        )
        lines.append(f"several processes were run on CPUs over gloo, to the losses of one process, never {never}")
    if builds_deepspeed_ops(plan):
        lines.append(
            "DeepSpeed compiles what offloads on first use, with nvcc; neither that nor the image with it was tried"
        )
    if plan.best.execution.compute_dtype == "float16" and case.model.dtype in ("bfloat16", "torch.bfloat16"):
        lines.append(f"{case.model.name} was trained in bf16: in fp16, values above 65504 overflow, so watch for NaN")
    lines += [f"{t.id}: no measurement of ours" for t in plan.best.members if t.quality and not t.evidence]
    return tuple(lines)


def dump_answers(document: PlanDocument) -> str:
    """Answers for `copier copy --data-file`."""
    import yaml

    return yaml.safe_dump({"plan": to_json(document)}, sort_keys=False, width=1000)
