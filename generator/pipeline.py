"""Every stage in order: machine, model, workload, case, plan. The edges are read here; what lies between is pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from generator import stacks
from generator.bundle import sample_file
from generator.candidates import space
from generator.cost import CostModel
from generator.datafiles import CHARACTERS_A_TOKEN, DataSource, read_data
from generator.errors import NotEmitted, NothingFits, SourceError, UsageError
from generator.ladder import ladder
from generator.model import ModelSpec
from generator.plan import NOT_EMITTED, Plan, decide, with_serving
from generator.search import search
from generator.sources import ModelSource, read_model, read_tokenizer, spec_of
from generator.workload import (
    DEFAULT_GLOBAL_BATCH,
    DEFAULT_LEARNING_RATE,
    DEFAULT_SEQ_LEN,
    FROM_SCRATCH_LEARNING_RATE,
    Case,
    Workload,
    check,
)
from hwdetect import catalog, detect, from_json
from hwdetect.spec import SpecError, parse_spec
from hwdetect.types import Accelerator, Device, Hardware, Link

PORTABLE = "portable"
"""--hardware portable: a plan that runs anywhere, because nothing is assumed of the machine but in its estimate."""
BUSY = 0.95
"""Less free memory than this share is worth a word: an idle board keeps 1 to 4 % for itself (recordings of nvidia-smi)."""
PORTABLE_ESTIMATE = "cpu:4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for, as text and numbers; ``None`` = not said. ``model=None`` is the embedded sample."""

    model: str | None = None
    config: str | None = None
    tokenizer: str | None = None
    data: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    skip_bad: bool = False
    hardware: str | None = None
    measure: bool = False
    mode: str = "train"
    task: str = "causal-lm"
    train: str = "full"
    seq_len: int | None = None
    global_batch: int | None = None
    learning_rate: float | None = None
    epochs: float | None = None
    max_steps: int | None = None
    lora_rank: int = 16
    labels: int | None = None
    new_tokens: int = 128
    concurrency: int = 1
    packing: bool = True
    from_scratch: bool = False
    allow: tuple[str, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan and the outside values that its project reads from config.yaml."""

    plan: Plan
    request: Request
    source: ModelSource
    data: DataSource | None
    notes: tuple[str, ...] = ()


def build(request: Request) -> Planned:
    """Read the machine, the model and the data, and decide. Raises ``PerfgenError`` for whatever a user can cause."""
    check_text(request)
    hardware = read_hardware(request.hardware, request.measure)
    request, source, data = read_sources(request)
    spec = spec_of(source)
    workload = workload_of(request, spec, source, data)
    check(workload, spec)
    check_sources(request, workload, source, data)
    case = portable_case(spec, workload) if request.hardware == PORTABLE else case_of(hardware, spec, workload)
    plan = plan_case(case)
    notes = (*case_notes(case), *device_notes(plan), *clamp_note(request, workload, spec))
    return Planned(plan=plan, request=request, source=source, data=data, notes=notes)


def check_text(request: Request) -> None:
    """Refuse what no file and no command line can hold, whatever it was meant for. Raises ``UsageError``."""
    for field in fields(request):
        value = getattr(request, field.name)
        texts = [value] if isinstance(value, str) else value if isinstance(value, tuple) else []
        for text in [t for pair in texts for t in (pair if isinstance(pair, tuple) else [pair])]:
            option = f"--{field.name.removesuffix('s').replace('_', '-')}"
            if not text.strip():
                raise UsageError(f"{option} is empty", "give a value, or leave the option out")
            if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
                raise UsageError(f"{option} {text!r} holds bytes that are no text", "give it in UTF-8, without NUL")


def read_hardware(text: str | None, measure: bool = False) -> Hardware:
    """This machine, a `detect --json` file, or a device spec."""
    if text is None:
        return detect(measure=measure)
    if measure:
        raise UsageError(
            f"--measure times this machine, and --hardware {text} is another",
            "measure there: perfgen detect --measure --json",
        )
    if text == PORTABLE:
        return Hardware()
    path = Path(text)
    if text.endswith(".json") or path.is_file():
        hint = "give a file written by `perfgen detect --json`"
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            json.dumps(told, ensure_ascii=False).encode()  # half a surrogate pair: ValueError
            if not isinstance(told, dict) or "schema" not in told:
                raise UsageError(f"--hardware {text} says no schema: no machine", hint)
            return from_json(told)
        except OSError as error:
            raise UsageError(f"--hardware {text}: {error.strerror}", hint) from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--hardware {text}: {error}", hint) from error
    try:
        return parse_spec(text)
    except SpecError as error:
        raise UsageError(f"--hardware {text}: {error}", "`perfgen devices` lists what is known") from error


def read_sources(request: Request) -> tuple[Request, ModelSource, DataSource | None]:
    """The request with its tokenizer's full path, the model and the data."""
    if request.model is None:
        model = replace(read_model(str(sample_file("config.json")), offline=True), name="sample")
        data = request.data or str(sample_file("text.txt"))
    else:
        model = read_model(request.model, offline=request.offline, config=request.config)
        data = request.data
    columns = {"text_column": request.text_column, "label_column": request.label_column}
    found = read_data(data, task=request.task, skip_bad=request.skip_bad, **columns) if data else None
    if request.config and model.kind != "hub":
        raise UsageError(f"--config {request.config} stands for a hub id's own, and --model names none", "drop one")
    tokenizer = request.tokenizer or model.tokenizer
    return replace(request, tokenizer=read_tokenizer(tokenizer) if tokenizer else None), model, found


def check_sources(request: Request, workload: Workload, source: ModelSource, data: DataSource | None) -> None:
    """Refuse what the files cannot give. Raises ``SourceError``."""
    tokenizer = source.has_tokenizer or request.tokenizer
    if request.label_column and workload.task != "text-classification":
        raise UsageError(
            f"--label-column {request.label_column!r} is not used by --task {workload.task}",
            "drop it, or use --task text-classification",
        )
    if not tokenizer and (source.has_weights or workload.task != "causal-lm"):
        raise SourceError(f"{source.name} has no tokenizer", "give one: --tokenizer FOLDER or hub id")
    if data is None or workload.mode == "infer":
        return
    if workload.task == "causal-lm":
        # the file's tokens are an estimate: refuse only what cannot be enough even at one character a token
        most = None if data.tokens is None else int(data.tokens * CHARACTERS_A_TOKEN) // workload.seq_len
        unit = f"sequences of {workload.seq_len} tokens"
    else:
        most, unit = data.rows, "examples"
    if most is not None and most < workload.global_batch:
        raise SourceError(
            f"{data.path} holds {most} {unit}, fewer than one global batch of {workload.global_batch}: no step could be made",
            f"add data, or give --global-batch {max(most, 1)} or less",
        )


def workload_of(request: Request, spec: ModelSpec, source: ModelSource, data: DataSource | None) -> Workload:
    """The user's numbers, and the field's usual ones where nothing was said."""
    from_scratch = request.from_scratch or not source.has_weights
    seq_len = request.seq_len or min(DEFAULT_SEQ_LEN.get(request.task, 2048), spec.max_positions or 1 << 30)
    rate = FROM_SCRATCH_LEARNING_RATE if from_scratch else DEFAULT_LEARNING_RATE.get(request.train, 2e-5)
    fill = fill_of(data, seq_len)
    workload = Workload(
        mode=request.mode,
        task=request.task,
        train=request.train,
        seq_len=seq_len,
        global_batch=request.global_batch or DEFAULT_GLOBAL_BATCH,
        learning_rate=request.learning_rate or rate,
        epochs=request.epochs or 1.0,
        max_steps=request.max_steps,
        lora_rank=request.lora_rank,
        lora_alpha=2 * request.lora_rank,
        labels=request.labels or (data.labels if data and data.labels else 2),
        new_tokens=request.new_tokens,
        concurrency=request.concurrency,
        from_scratch=from_scratch,
        packing=request.packing,
        fill_mean=fill[0],
        fill_long=fill[1],
        allow=request.allow,
        pins=request.pins,
    )
    return replace(workload, steps=request.max_steps or steps_of(workload, data))


def clamp_note(request: Request, workload: Workload, spec: ModelSpec) -> tuple[str, ...]:
    usual = DEFAULT_SEQ_LEN.get(request.task, 2048)
    if request.seq_len or workload.seq_len == usual:
        return ()
    return (f"seq_len is {workload.seq_len}, all the positions that {spec.name} has; the usual is {usual}",)


def fill_of(data: DataSource | None, seq_len: int) -> tuple[float | None, float | None]:
    """Mean and 90th percentile of the rows' lengths as shares of ``seq_len``, rows cut there."""
    if data is None or not data.token_quantiles:
        return None, None
    shares = [min(1.0, n / seq_len) for n in data.token_quantiles]
    return sum(shares) / len(shares), shares[90]


def steps_of(workload: Workload, data: DataSource | None) -> int | None:
    """Optimizer steps of the whole run, from the data's size; ``None`` where that is not known."""
    if data is None or data.rows is None:
        return None
    sequences = data.rows
    if workload.task == "causal-lm":
        if data.tokens is None:
            return None
        sequences = data.tokens // workload.seq_len
    return max(1, int(sequences / workload.global_batch * workload.epochs))


def case_of(hardware: Hardware, spec: ModelSpec, workload: Workload) -> Case:
    """The work on the machine's devices; of unequal ones, on the kind that does it best."""
    cases = [case_with(hardware, used, spec, workload) for used in alike(hardware)]
    if len(cases) == 1:
        return cases[0]
    return min(cases, key=promise)


def promise(case: Case) -> tuple:
    """How well a case does: whether it fits at all, then the best plan's rank."""
    found = search(space(case, cost_model(case)), kept=1)
    return (not found, found[0].key if found else ())


def case_with(hardware: Hardware, used: tuple[Accelerator, ...], spec: ModelSpec, workload: Workload) -> Case:
    """The work on ``used`` accelerators (none: the CPU), which build of torch they run, and what joins them."""
    device, memory_bytes = device_of(hardware, used) if used else cpu_of(hardware)
    build = "cpu"
    if device.vendor == "nvidia":
        build = stacks.cuda_build("train", device.compute_capability, hardware.software.driver, device.name)
    return Case(
        hardware=hardware,
        device=device,
        device_memory_bytes=memory_bytes,
        model=spec,
        workload=workload,
        stack=stacks.load("train", build),
        devices_per_node=len(used) or 1,
        nodes=hardware.nodes.count if used else 1,
        accelerators=tuple(a.index for a in used),
        links=links_between(hardware, used),
        network_bytes_per_s=network_of(hardware),
    )


def alike(hardware: Hardware) -> list[tuple[Accelerator, ...]]:
    """Accelerators that one job can use together: boards of one kind, whole (NCCL joins no MIG instances). ``[()]``: the CPU.

    Raises ``UsageError`` where there are boards and perfgen cannot plan for any.
    """
    boards = {b.index: b for b in hardware.boards}
    groups: dict[tuple, list[Accelerator]] = {}
    for accelerator in hardware.accelerators:
        board = boards[accelerator.board]
        slice_of = (accelerator.index,) if accelerator.profile is not None else ()
        if board.vendor == "nvidia":
            groups.setdefault((board.device or board.name, *slice_of), []).append(accelerator)
    if groups:
        return [tuple(group) for group in groups.values()]
    names = ", ".join(sorted({b.name or b.vendor for b in hardware.boards}))
    if hardware.accelerators:
        raise UsageError(
            f"{names}: perfgen plans for CPUs and NVIDIA GPUs so far",
            "use --hardware cpu to plan for the CPU of this machine",
        )
    if hardware.boards:
        raise UsageError(
            f"no job can be given {names}: {hardware_note(hardware)}", "use --hardware cpu to plan for the CPU"
        )
    return [()]


def links_between(hardware: Hardware, used: tuple[Accelerator, ...]) -> tuple[Link, ...]:
    """The links of the node, its ends numbered by place among ``used``."""
    place = {accelerator.board: number for number, accelerator in enumerate(used)}
    inside = [x for x in hardware.links if x.a in place and x.b in place and x.a != x.b]
    return tuple(replace(x, a=place[x.a], b=place[x.b]) for x in inside)


FABRICS = ("infiniband", "roce", "efa")


def network_of(hardware: Hardware) -> float | None:
    """Bytes per second that a node's ports give together: those of its fabric, or else its fastest Ethernet port."""
    ports = [p for p in hardware.network if p.rate_bytes_per_s and p.state not in ("down", "DOWN")]
    fabric = [p.rate_bytes_per_s for p in ports if p.kind in FABRICS and p.rate_bytes_per_s]
    if fabric:
        return sum(fabric)
    return max((p.rate_bytes_per_s for p in ports if p.rate_bytes_per_s), default=None)


def portable_case(spec: ModelSpec, workload: Workload) -> Case:
    """No machine: the techniques that work everywhere, with the numbers of a small one."""
    small = parse_spec(PORTABLE_ESTIMATE)
    device, memory_bytes = cpu_of(small)
    return Case(
        hardware=small,
        device=replace(device, id=PORTABLE, name="a 4-core CPU (assumed)"),
        device_memory_bytes=memory_bytes,
        model=spec,
        workload=workload,
        stack=stacks.load("train", "cpu"),
    )


def device_of(hardware: Hardware, used: tuple[Accelerator, ...]) -> tuple[Device, int]:
    """What equal accelerators are, and the memory in bytes of the smallest of them."""
    board = next(b for b in hardware.boards if b.index == used[0].board)
    device = catalog.load(board.device) if board.device else unknown_device(board)
    known = [a.memory_bytes for a in used if a.memory_bytes]
    memory_bytes = min(known, default=board.memory_bytes or device.memory_bytes)
    if memory_bytes is None:
        raise UsageError(
            f"the memory of {board.name} could not be read", "give the device by name: --hardware 1x<device>"
        )
    share = used[0].compute_share
    if share is not None and share < 1.0:
        device = sliced(device, share, memory_bytes)
    return device, memory_bytes


def cpu_of(hardware: Hardware) -> tuple[Device, int]:
    memory = hardware.memory
    known = [b for b in (memory.total_bytes, memory.limit_bytes) if b is not None]
    if not known:
        raise UsageError("the memory of this machine could not be read", "give it: --hardware cpu:CORES,MEMORYgb")
    return catalog.describe_cpu(hardware.cpu, hardware.measured, min(known)), min(known)


def hardware_note(hardware: Hardware) -> str:
    return "; ".join(f"{note.field}: {note.why}" for note in hardware.notes) or "no usable instance or partition"


def unknown_device(board) -> Device:
    """A board that the catalogue does not have: rates of the nearest relative by compute capability, marked assumed."""
    relatives = [d for d in catalog.list_devices() if d.vendor == board.vendor and d.compute_capability]
    wanted = tuple(int(x) for x in (board.compute_capability or "0.0").split("."))
    memory = board.memory_bytes or 0

    def distance(device: Device) -> tuple:
        have = tuple(int(x) for x in (device.compute_capability or "0.0").split("."))
        return (
            have > wanted,
            abs(have[0] - wanted[0]),
            abs(have[1] - wanted[1]),
            abs((device.memory_bytes or 0) - memory),
        )

    nearest = min(relatives, key=distance)
    return replace(
        nearest,
        id="unknown",
        name=board.name or "unknown GPU",
        compute_capability=board.compute_capability,
        memory_bytes=board.memory_bytes,
        basis="assumed",
        sources=(("*", f"assumed to run like {nearest.name}"),),
    )


def sliced(device: Device, share: float, memory_bytes: int) -> Device:
    """A MIG instance: its share of the compute units, and of the bandwidth by its memory."""
    memory_share = memory_bytes / device.memory_bytes if device.memory_bytes else share
    return replace(
        device,
        name=f"{device.name} ({share:.0%} slice)",
        memory_bytes=memory_bytes,
        memory_bytes_per_s=device.memory_bytes_per_s * memory_share if device.memory_bytes_per_s else None,
        peak_flops=tuple((k, v * share) for k, v in device.peak_flops),
        vector_flops=tuple((k, v * share) for k, v in device.vector_flops),
        basis="derived",
    )


def cost_model(case: Case) -> CostModel:
    memory = case.hardware.memory
    host = [b for b in (memory.total_bytes, memory.limit_bytes) if b is not None]
    return CostModel(
        case.device,
        case.model,
        device_memory_bytes=case.device_memory_bytes,
        host_memory_bytes=min(host, default=None),
        cpu_budget=usable_cores(case),
        links=case.links,
        devices_per_node=case.devices_per_node,
        network_bytes_per_s=case.network_bytes_per_s,
        measured=case.hardware.measured,
        accelerators=case.accelerators,
        num_labels=case.workload.labels if case.workload.task == "text-classification" else 0,
        task=case.workload.task,
    )


def usable_cores(case: Case) -> int | None:
    """Physical cores that this process may use: two threads of one core share its arithmetic units."""
    known = [n for n in (case.hardware.cpu.budget, case.hardware.cpu.cores) if n]
    return min(known, default=None)


def plan_case(case: Case) -> Plan:
    """Decide for the asked mode; a training plan also decides how infer.py serves the result."""
    try:
        plan = decide(case, cost_model(case))
    except NothingFits as error:
        error.ladder = ladder(case, cost_model)
        raise
    if case.workload.mode == "infer":
        return plan
    serve = replace(case, workload=serving_workload(case.workload))
    try:
        return with_serving(plan, decide(serve, cost_model(serve)))
    except NothingFits:
        return plan


def refuse_unemitted(plan: Plan) -> None:
    """Raises ``NotEmitted`` for a plan that no project can be made of, with the best one that can."""
    if not plan.unemitted:
        return
    names = {t.axis: t.id for t in plan.unemitted}
    what = f"{', '.join(names.values())}: {NOT_EMITTED}"
    workload = plan.case.workload
    pins = tuple(pin for pin in workload.pins if pin[0] not in names)
    free = replace(plan.case, workload=replace(workload, pins=pins))
    found = search(space(free, cost_model(free)), kept=1)
    if not found or not all(t.emitted for t in found[0].members):
        raise NotEmitted(what, "nothing that can be emitted fits", ladder=ladder(plan.case, cost_model))
    best = found[0]
    offer = " ".join(f"--pin {axis}={best.choice[axis]}" for axis in names)
    slower = best.estimate.step_seconds / plan.best.estimate.step_seconds
    raise NotEmitted(
        what,
        f"the best plan that can be emitted is {offer}: {best.estimate.step_seconds:.3g} s a step "
        f"({slower:.2f} times the time), {best.estimate.peak_memory_gib:.1f} GiB",
    )


def serving_workload(workload: Workload) -> Workload:
    """infer.py answers one prompt at a time; a QLoRA adapter is served on the 4-bit base that it was trained on."""
    axes_of_both = ("precision", "attention", "cpu-threads")
    pins = tuple(p for p in workload.pins if p[0] in axes_of_both)
    if workload.train == "qlora":
        pins = (*pins, ("quantization", "bnb-nf4"))
    return replace(workload, mode="infer", concurrency=1, pins=pins, allow=(), steps=None, max_steps=None)


def busy_note(case: Case) -> tuple[str, ...]:
    """The plan is for the whole device; what other processes hold now is said."""
    if not case.hardware.accelerators or case.on_cpu:
        return ()
    first = next(a for a in case.hardware.accelerators if a.index == case.accelerators[0])
    if first.free_memory_bytes is None or not first.memory_bytes or first.free_memory_bytes > BUSY * first.memory_bytes:
        return ()
    free, whole = first.free_memory_bytes / 2**30, first.memory_bytes / 2**30
    return (
        f"only {free:.1f} of {whole:.1f} GiB of {case.device.name} are free now: the plan is for all of it, free it before a run",
    )


def device_notes(plan: Plan) -> tuple[str, ...]:
    """How many of the accelerators are used, and why not all."""
    case, layout = plan.case, plan.best.layout
    have = len(case.hardware.accelerators) * case.nodes
    if case.on_cpu or have <= layout.devices:
        return ()
    first = f"uses {layout.devices} of your {have} accelerators"
    if any(a.profile and a.index in case.accelerators for a in case.hardware.accelerators):
        return (f"{first}: one job cannot join MIG instances",)
    if layout.devices == case.devices:
        return (f"{first}: the others are of another kind",)
    return (f"{first}: {fewer(plan)}",)


def fewer(plan: Plan) -> str:
    """Why more devices are not worth it."""
    case = plan.case
    batch = case.workload.global_batch
    if case.workload.mode == "train" and batch % case.devices:
        return f"a global batch of {batch} cannot be divided evenly over more of them as fast"
    if case.workload.mode == "infer":
        return "more would not answer faster"
    return f"with more, the exchange between them costs more than they compute ({case.devices} were costed)"


def case_notes(case: Case) -> tuple[str, ...]:
    """What a reader of the plan must know about its inputs."""
    notes = [f"{n.field}: {n.why}" for n in case.hardware.notes if n.who == "spec"]
    notes.extend(busy_note(case))
    if case.device.basis == "assumed" and case.device.sources:
        notes.append(f"rates of {case.device.name} are {case.device.basis}: {case.device.sources[0][1]}")
    notes.extend(case.model.notes)
    return tuple(notes)
