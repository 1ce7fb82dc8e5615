"""What a reader of the plan must know about its inputs and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from generator.case.case import Case
from generator.case.devices import is_mig_instance
from generator.case.request import Request
from generator.case.sources import Work, lacks_tokenizer
from generator.case.tasks import find_task
from generator.case.vendors import Vendor
from generator.case.workload import Workload
from generator.cost.constants import NVME_BYTES_PER_S
from generator.cost.device import find_coherent_link_rate
from generator.cost.interval import was_generation_measured
from generator.decide.candidates import Candidate
from generator.decide.device_count import MARGINAL_EFFICIENCY, DeviceCount, speed_up
from generator.decide.reasons import NOT_EMITTED, Decision
from generator.decide.shortfall import explain_unpacked_experts
from generator.decide.space import HEADROOM_SHARE
from generator.model import ModelSpec
from generator.model.block_traits import read_block_traits
from generator.techniques.base import find_technique
from generator.techniques.launch import explain_numa_binding, explain_ports, is_by_accelerate
from generator.techniques.router_loss import explain_missing_router_loss, has_router_loss
from hwdetect.types import MEASURED_BY, NOT_USED, Hardware

BUSY = 0.95
"""Less free memory than this share is worth a word: an idle board keeps 1 to 4 % for itself (recordings of nvidia-smi)."""


EQUAL = 0.95
"""from this share on, boards of one name are equal: retired pages take less (recordings of nvidia-smi)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A sentence for the reader of a plan. ``kind`` is what it is about: devices, length, evaluation, busy, hardware, rates, model,
    data, pins, precision, template, memory."""

    kind: str
    text: str


def note_clamped_length(request: Request, workload: Workload, spec: ModelSpec) -> tuple[Note, ...]:
    usual = find_task(request.task).seq_len
    if request.seq_len or request.prompt_tokens or workload.fill_shares or workload.seq_len == usual:
        return ()
    text = f"seq_len is {workload.seq_len}, all the positions that {spec.name} has; the usual is {usual}"
    return (Note(kind="length", text=text),)


def note_busy_device(case: Case) -> tuple[Note, ...]:
    """The plan is for the whole device; what other processes hold now is said."""
    if not case.hardware.accelerators or case.on_cpu:
        return ()
    first = next(a for a in case.hardware.accelerators if a.index == case.accelerators[0])
    if first.free_memory_bytes is None or not first.memory_bytes or first.free_memory_bytes > BUSY * first.memory_bytes:
        return ()
    free, total = first.free_memory_bytes / 2**30, first.memory_bytes / 2**30
    text = f"only {free:.1f} of {total:.1f} GiB of {case.device.name} are free now: the plan is for all of it, free it before a run"
    return (Note(kind="busy", text=text),)


def note_measurements(hardware: Hardware) -> tuple[Note, ...]:
    """What ``--measure`` told of its own figures: which are not used, which are unsteady, what it cannot see."""
    reasons = [n.why for n in hardware.notes if n.who == MEASURED_BY]
    unused = [why.partition(NOT_USED) for why in reasons if NOT_USED in why]
    texts = [f"measured: {why}" for why in reasons if NOT_USED not in why]
    if unused:
        texts.insert(0, f"measured and not used: {', '.join(name for name, _, _ in unused)}: {unused[0][2]}")
    return tuple(Note(kind="rates", text=text) for text in texts)


def explain_unused_devices(case: Case, best: Candidate, counts: tuple[DeviceCount, ...]) -> tuple[Note, ...]:
    """How many of the accelerators are used, and why not all."""
    used, have = best.layout.devices, len(case.hardware.accelerators) * case.nodes
    if case.on_cpu or have <= used:
        return ()
    boards = {board.index: board for board in case.hardware.boards}
    if any(a.index in case.accelerators and is_mig_instance(a, boards[a.board]) for a in case.hardware.accelerators):
        why = "one job cannot join MIG instances"
    elif used == case.devices:
        why = "the others are of another kind"
    else:
        why = why_not_more_devices(case, best, counts) + advise_batch(case, best)
    return (Note(kind="devices", text=f"uses {used} of your {have} accelerators: {why}"),)


NEAR_BATCH = 0.25
"""what a batch may differ to be worth a word: more is another run"""


def advise_batch(case: Case, best: Candidate) -> str:
    """Which global batch would divide over all devices, where the one that was asked for does not and another is near it."""
    batch, devices = case.workload.global_batch, case.devices
    near = max(1, round(batch / devices)) * devices
    if case.workload.mode == "infer" or not batch % devices or abs(near - batch) > NEAR_BATCH * batch:
        return ""
    return f"; a global batch of {near} would divide over all {devices}"


def note_resort(case: Case, best: Candidate, plain: Candidate | None) -> tuple[Note, ...]:
    """What is resorted to because a step is slow without it: ``plain`` is the best without."""
    if plain is None:
        return ()
    resorts = [t for t in best.members if t.rate_resort(case) and t not in plain.members]
    instead = [t for t in plain.members if t.axis in [resort.axis for resort in resorts]]
    pins = " ".join(case.workload.name_pin(t.axis, t.name) for t in instead)
    devices = f"{plain.layout.devices} device{'s' if plain.layout.devices > 1 else ''}"
    text = (
        f"{' and '.join(t.id for t in resorts)} {'are last resorts' if len(resorts) > 1 else 'is a last resort'}, taken because a step is "
        f"{speed_up(plain, best):.1f} times as fast as with {' and '.join(t.id for t in instead)} on {devices} ({pins})"
    )
    return (Note(kind="devices", text=text),)


def note_reduction(best: Candidate) -> tuple[Note, ...]:
    """FSDP2 by Accelerate adds up the devices' gradients in the dtype of the arithmetic: its mixed precision has one dtype for
    weights, reduction and outputs, and no key of its file says otherwise (accelerate utils/dataclasses.py, set_mixed_precision)."""
    run = best.execution
    if not is_by_accelerate(best.layout) or run.mode != "train" or not run.autocast_dtype:
        return ()
    text = f"gradients are added up over the devices in {run.autocast_dtype} (Accelerate's FSDP2), and kept in float32"
    return (Note(kind="precision", text=text),)


def note_experts(best: Candidate) -> tuple[Note, ...]:
    """Of a base in 4 bits, what is not."""
    why = explain_unpacked_experts(best) if best.execution.mode == "train" else None
    return (Note(kind="memory", text=why),) if why else ()


def note_adapted_experts(best: Candidate, model: ModelSpec) -> tuple[Note, ...]:
    """Which part of a mixture its adapters change."""
    if best.execution.train != "lora" or best.execution.mode != "train" or not model.experts:
        return ()
    if read_block_traits(model.model_type).get("adapted_experts"):
        text = (
            f"adapters of rank {best.execution.lora_rank} are made of each of its experts too (PEFT's target_parameters), and none "
            "of shared or dense feed-forwards beside them"
        )
    else:
        text = (
            "its experts stay as they are: PEFT makes adapters of linear layers, and the experts of a block are one tensor "
            "(target_parameters of LoraConfig in train.py would name them)"
        )
    return (Note(kind="model", text=text),)


def note_router_loss(case: Case, best: Candidate) -> tuple[Note, ...]:
    """A mixture learns from more than its tokens, or does not where its config says that it should."""
    case = replace(case, layout=best.layout)
    if not has_router_loss(case):
        return ()
    added = "a loss of its routers balances its experts, weighed as its config has it (router_loss in config.yaml)"
    return (Note(kind="model", text=explain_missing_router_loss(case) or added),)


def note_full_memory(
    case: Case, best: Candidate, splits: Sequence[Candidate], runners_up: Sequence[Candidate]
) -> tuple[Note, ...]:
    """Where one in ten published runs of a plan's kind would need more than the device has: by how much, and what leaves room."""
    need, limit = find_memory_p90(best), best.estimate.limit_gib
    if need <= limit:
        return ()
    text = (
        f"it needs {best.estimate.peak_memory_gib:.1f} of {limit:.1f} GiB by the estimate, and one in ten published runs of its kind "
        f"was so far above its own that this one would need {need:.1f}: if memory runs out, {advise_leaner(best, splits, runners_up, case.vendor)}"
    )
    return (Note(kind="memory", text=text),)


def find_memory_p90(candidate: Candidate) -> float:
    """GiB of one device; the estimate itself where nothing of the kind was measured."""
    known = candidate.estimate.peak_memory_range
    return known[1] if known else candidate.estimate.peak_memory_gib


def advise_leaner(best: Candidate, splits: Sequence[Candidate], runners_up: Sequence[Candidate], vendor: Vendor) -> str:
    """The largest smaller micro-batch of the same global batch that leaves room for nine of ten, else other techniques."""
    micro, trains = best.execution.micro_batch, best.execution.mode == "train"
    smaller = [c for c in splits if c.execution.micro_batch < micro and find_memory_p90(c) <= best.estimate.limit_gib]
    if trains and smaller:
        run = smaller[-1].execution
        options = f"--per_device_train_batch_size {run.micro_batch} --gradient_accumulation_steps {run.accumulation}"
        return f"`train.py {options}` is the same batch in {find_memory_p90(smaller[-1]):.1f} GiB at most"
    for other in runners_up:
        pins = [f"--pin {t.id}" for t in other.members if t not in best.members]
        leaner = find_memory_p90(other) <= best.estimate.limit_gib and other.execution.micro_batch <= micro
        if pins and leaner and other.layout == best.layout:
            return f"plan it with {' '.join(pins)} ({find_memory_p90(other):.1f} GiB at most)"
    shorter = "a smaller --seq-len" if trains else "a smaller --concurrency or fewer --prompt-tokens"
    more = "a machine with more memory" if vendor.why_alone else "more devices"
    return f"{shorter}, or {more}: nothing leaner is as good a plan"


def note_vain_allowances(case: Case, decisions: Sequence[Decision]) -> tuple[Note, ...]:
    """What was allowed and cannot be used here, in any plan: the reason, and what could be allowed in its place."""
    notes = []
    for name in case.workload.allow:
        named = [(d, r) for d in decisions for r in d.rejected if name in (r.name, f"{d.axis}={r.name}")]
        chosen = any(name in (d.chosen, f"{d.axis}={d.chosen}") for d in decisions)
        if chosen or any(r.rival for _, r in named):
            continue
        why = named[0][1].why if named else f"it is no technique of --mode {case.workload.mode}"
        alike = (
            f"{d.axis}={other.name}"
            for d, vain in named
            for other in d.rejected
            if other.fits and rate_quality(d.axis, other.name) == rate_quality(d.axis, vain.name) > 0
        )
        usable = sorted(alike)
        instead = f"; what is as near to it here: {' or '.join(usable)}" if usable else ""
        notes.append(Note(kind="pins", text=f"--allow {name} changes nothing here: {why}{instead}"))
    return tuple(notes)


def rate_quality(axis: str, name: str) -> int:
    technique = find_technique(axis, name)
    return technique.quality if technique else 0


def note_fabric(case: Case, best: Candidate) -> tuple[Note, ...]:
    """Why the processes are not left to what NCCL and Linux do by themselves, and what the defaults cannot know."""
    binding = None if is_by_accelerate(best.layout) else explain_numa_binding(replace(case, layout=best.layout))
    efa = best.layout.nodes > 1 and any(port.kind == "efa" for port in case.hardware.network)
    plugin = (
        "NCCL takes EFA only through the plugin aws-ofi-nccl, which neither PyTorch's wheels nor the image have: without "
        "it the nodes talk over TCP, without a word (preflight.py measures it)"
    )
    rack = (
        f"{case.device.name} is linked over the nodes of a rack of {case.device.link_rack}, and it is assumed that these nodes are of one: "
        "elsewhere what crosses nodes goes over their network, which is slower than planned (preflight.py measures it)"
        if case.device.link_rack and best.layout.nodes > 1
        else ""
    )
    ports = explain_ports(replace(case, layout=best.layout))
    texts = [
        *([binding] if binding else []),
        *([ports] if ports else []),
        *([rack] if rack else []),
        *([plugin] if efa else []),
    ]
    return tuple(Note(kind="fabric", text=text) for text in texts)


def note_offload(case: Case, best: Candidate) -> tuple[Note, ...]:
    """What an offloading plan takes for granted of a machine that was not read. The memory of the host decides whether it runs."""
    run = best.execution
    if {run.offload_optimizer, run.offload_params} == {"none"}:
        return ()
    assumed = [
        f"the host's memory is {n.why.removeprefix('not in the spec: assumed ')} (--host-memory)"
        for n in case.hardware.notes
        if (n.who, n.field) == ("spec", "memory.total_bytes")
    ]
    if not find_coherent_link_rate(case.device) and not (case.device.pcie_generation and case.device.pcie_width):
        assumed.append("it is joined to the devices by PCIe 4.0 x16 (--link)")
    if "nvme" in (run.offload_optimizer, run.offload_params) and not any(
        d.read_bytes_per_s for d in case.hardware.disks
    ):
        assumed.append(f"its disk makes {NVME_BYTES_PER_S / 1e9:g} GB/s (--disk nvme,RATEgb/s)")
    return (
        (Note(kind="hardware", text=f"the offloading rests on assumptions: {', and '.join(assumed)}"),)
        if assumed
        else ()
    )


def why_not_more_devices(case: Case, best: Candidate, counts: tuple[DeviceCount, ...]) -> str:
    """What more of them would bring, and the rule that they must meet."""
    more = [c for c in counts if c.count > best.layout.devices]
    faster = [c.best for c in more if c.best and speed_up(best, c.best) > 1.005]
    if not faster:
        return explain_no_gain(case, more)
    fair = [c for c in faster if c.standing <= best.standing]
    if not fair:
        return f"{describe_gains(best, faster[:1])}, and only with {name_last_resorts(case, best, faster[0])}"
    most = max(fair, key=lambda c: speed_up(best, c))
    gains = describe_gains(best, fair[:1] if most is fair[0] else [fair[0], most])
    rule = f"added devices must do at least {MARGINAL_EFFICIENCY:.0%} of their share"
    return f"{gains} ({rule}; --optimize-for time takes them)"


def describe_gains(best: Candidate, more: Sequence[Candidate]) -> str:
    """What plans with more devices bring: percents, or how many times as fast, where that is twice and more."""
    each = [(plan.layout.devices, speed_up(best, plan)) for plan in more]
    if all(gain < 2 for _, gain in each):
        return ", ".join(f"{count} would be only {gain - 1:.0%}" for count, gain in each) + " faster"
    times = [(count, gain, count / best.layout.devices) for count, gain in each]
    return ", ".join(
        f"{count} would be {gain:.3g} times as fast with {by:.3g} times as many" for count, gain, by in times
    )


def name_last_resorts(case: Case, best: Candidate, more: Candidate) -> str:
    """What a plan with more devices risks, resorts to or cannot emit, and the chosen one does not."""
    new = [t for t in more.members if t not in best.members]
    accepted = max(t.rate_resort(case) for t in best.members)
    unlike = [t.id for t in new if t.explain_unemitted(case) or t.quality or t.rate_resort(case) > accepted]
    planned = f" ({NOT_EMITTED})" if more.standing[0] > best.standing[0] else ""
    return " and ".join(unlike) + planned


def explain_no_gain(case: Case, more: list[DeviceCount]) -> str:
    batch = case.workload.global_batch
    if case.workload.mode == "infer":
        return "more would not answer faster"
    if more and not any(c.best for c in more) and batch % more[0].count:
        return f"a global batch of {batch} cannot be divided evenly over more of them"
    return f"with more, the exchange between them costs more than they compute ({case.devices} were costed)"


def note_virtual_board(case: Case) -> tuple[Note, ...]:
    used = {a.board for a in case.hardware.accelerators if a.index in case.accelerators}
    if not any(board.virtualization == "VGPU" for board in case.hardware.boards if board.index in used):
        return ()
    text = (
        f"{case.device.name} is a part of a board here (vGPU): the memory is its own, and the times are of the whole board, whose "
        "multiprocessors other guests may take turns on: --measure times what this one gets"
    )
    return (Note(kind="devices", text=text),)


def note_coherent_memory(case: Case) -> tuple[Note, ...]:
    rate = None if case.on_cpu else find_coherent_link_rate(case.device)
    if rate is None:
        return ()
    text = (
        f"{case.device.name} reaches its host's memory by NVLink-C2C ({rate / 1e9:.0f} GB/s each way), in one address space: what does not "
        "fit spills there only if it is allocated so, which PyTorch does not do by itself. The plan has the device's own "
        f"{case.device_memory_bytes / 2**30:.0f} GiB, and what it offloads goes over that link"
    )
    return (Note(kind="devices", text=text),)


def note_kept_memory(case: Case) -> tuple[Note, ...]:
    """Of a board whose driver gives PyTorch so much less than the board has that a person would miss it."""
    whole = case.device.memory_bytes
    if case.on_cpu or case.device.unified_memory or not whole:
        return ()
    # of an instance of a board nothing is kept
    if max(case.device_memory_bytes, case.vendor.reach_memory(case.device, whole)) >= (1 - HEADROOM_SHARE) * whole:
        return ()
    gib = case.device_memory_bytes / 2**30
    text = f"PyTorch has {gib:.1f} GiB of each {case.device.name}: its driver keeps the rest of the {whole / 2**30:.0f} GiB that are told of it"
    return (Note(kind="devices", text=text),)


def note_unequal_boards(case: Case) -> tuple[Note, ...]:
    """Of boards of one name: memory that a tool reports, slots and power limits that differ."""
    used = [a for a in case.hardware.accelerators if a.index in case.accelerators]
    boards = [b for b in case.hardware.boards if b.index in {a.board for a in used}]
    sizes = [a.memory_bytes for a in used if a.memory_bytes]
    unlike = []
    if sizes and min(sizes) < EQUAL * max(sizes):
        unlike.append(f"{min(sizes) / 2**30:.1f} to {max(sizes) / 2**30:.1f} GiB")
    slots = sorted({(b.pcie.generation_max, b.pcie.width) for b in boards if b.pcie.generation_max and b.pcie.width})
    if len(slots) > 1:
        unlike.append(" and ".join(f"PCIe {generation}.0 x{width}" for generation, width in slots))
    limits = [b.power_limit_watts for b in boards if b.power_limit_watts]
    if limits and min(limits) < EQUAL * max(limits):
        unlike.append(f"power limits of {min(limits):.0f} to {max(limits):.0f} W, which the times do not count")
    if not unlike:
        return ()
    text = f"the {len(boards)} boards are not equal ({'; '.join(unlike)}): planned for the smallest memory and the slowest slot"
    return (Note(kind="devices", text=text),)


def note_case(case: Case) -> tuple[Note, ...]:
    """What a reader of the plan must know about its inputs."""
    assumed = [n for n in case.hardware.notes if n.who in ("spec", "cgroup")]
    # "*" stands for the whole machine
    texts = [f"this machine is {n.why}" if n.field == "*" else f"{n.field}: {n.why}" for n in assumed]
    notes = [Note(kind="hardware", text=text) for text in texts]
    cpu, count = case.hardware.cpu, case.hardware.nodes.count
    if case.on_cpu and count > case.nodes:
        text = f"this plan is for one of the {count} nodes: no answers are divided over CPUs"
        notes.append(Note(kind="devices", text=text))
    if case.vendor.why_alone and count > case.nodes:
        text = f"this plan is for one of the {count} machines: {case.vendor.why_alone}"
        notes.append(Note(kind="devices", text=text))
    if case.on_cpu and case.devices_per_node < (cpu.numa_nodes or 1) and case.nodes > 1:
        text = (
            f"each node has {cpu.numa_nodes} NUMA nodes and one process: one for each keeps its memory near, "
            f"--hardware {count}x{cpu.numa_nodes}xcpu:{(cpu.budget or cpu.cores or 1) // (cpu.numa_nodes or 1)}"
        )
        notes.append(Note(kind="devices", text=text))
    notes.extend(note_busy_device(case))
    notes.extend(note_measurements(case.hardware))
    if case.device.basis == "assumed" and case.device.sources:
        text = f"rates of {case.device.name} are {case.device.basis}: {case.device.sources[0][1]}"
        notes.append(Note(kind="rates", text=text))
    notes.extend(note_virtual_board(case))
    notes.extend(note_coherent_memory(case))
    notes.extend(note_unequal_boards(case))
    if case.shared_memory_bytes and case.device_memory_bytes < case.shared_memory_bytes:
        gib, total = case.device_memory_bytes / 2**30, case.shared_memory_bytes / 2**30
        text = f"a process gets {gib:.0f} of the {total:.0f} GiB that {case.device.name} shares with its host: {case.vendor.more_memory}"
        notes.append(Note(kind="devices", text=text))
    notes.extend(note_kept_memory(case))
    if why := case.vendor.explain_doubt(case.device):
        notes.append(Note(kind="devices", text=why))
    if why := case.explain_unemitted():
        notes.append(Note(kind="devices", text=f"no project is made for {case.device.name}: {why}"))
    if not was_generation_measured(case.device, case.workload.mode):
        of = f"{'training' if case.workload.mode == 'train' else 'inference'} on a device like {case.device.name}"
        text = f"no published {of} was compared with the figures: they are assumed, and the intervals wider"
        notes.append(Note(kind="rates", text=text))
    notes.extend(Note(kind="model", text=text) for text in case.model.notes)
    return tuple(notes)


def note_chat_template(work: Work) -> tuple[Note, ...]:
    """Said where a project may write a chat template of its own: the tokenizer has none, or nobody could look."""
    name, known = work.request.tokenizer or work.source.name, work.source.has_chat_template
    if work.data is None or work.data.sft_format != "messages" or known:
        return ()
    plain = "a plain one (<|user|>, <|assistant|>), saved with the model"
    if known is None:
        text = (
            f"the tokenizer of {name} was not looked at: its own chat template is kept; if it has none, it gets {plain}"
        )
    else:
        text = f"the tokenizer of {name} has no chat template: it gets {plain}"
    return (Note(kind="template", text=text),)


def note_both_lengths(work: Work) -> tuple[Note, ...]:
    if not (work.request.max_steps and work.request.epochs):
        return ()
    text = f"--epochs {work.request.epochs:g} is not in force: --max-steps {work.request.max_steps:,} says how long"
    return (Note(kind="length", text=text),)


def note_row_task(workload: Workload) -> tuple[Note, ...]:
    if not workload.by_row:
        return ()
    text = f"{workload.task} is computed row by row: batch.py only, no server is emitted for it"
    return (Note(kind="model", text=text),)


def note_missing_tokenizer(work: Work) -> tuple[Note, ...]:
    if not lacks_tokenizer(work) or work.request.adapts:  # that there is nothing to adapt is said of the source
        return ()
    text = f"{work.source.name} has no tokenizer: the plan is for its size, a project needs one (--tokenizer FOLDER or hub id)"
    return (Note(kind="model", text=text),)


def collect_notes(work: Work, case: Case, of_plan: tuple[Note, ...]) -> tuple[Note, ...]:
    """What is said beside the plan: of the machine, the devices used, and a length that was cut."""
    of_work = (
        *note_clamped_length(work.request, work.workload, work.spec),
        *note_chat_template(work),
        *note_missing_tokenizer(work),
        *note_both_lengths(work),
        *note_row_task(work.workload),
    )
    return (*note_case(case), *of_plan, *of_work)
