"""Every maker's devices: a plan or a refusal in their own terms, and projects whose arguments their builds of PyTorch take."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
from click.testing import CliRunner
from rules.table import tiny
from test_contract import keywords, know_words
from test_hardware_files import make_work

import hwdetect
from generator.case.case import Case
from generator.case.devices import group_equal_accelerators, make_case
from generator.case.layout import Layout
from generator.case.request import Request
from generator.case.stacks import list_builds
from generator.case.vendors import ABILITIES, CPU, find_vendor, list_vendors
from generator.case.vendors.amd import FLOAT8
from generator.case.workload import Workload
from generator.cli import perfgen
from generator.cost.activations import select_attention_kernel
from generator.cost.device import compute_host_link_rate
from generator.cost.execution import Execution
from generator.cost.of_case import build_cost_model
from generator.decide.device_group import choose_case
from generator.decide.ladder import list_larger_devices
from generator.decide.notes import note_case
from generator.decide.plan import Planned, decide
from generator.decide.space import HEADROOM_SHARE
from generator.decide.unemitted import check_emittable
from generator.emit.asked import record_request
from generator.emit.document import build_document
from generator.emit.parallel import select_visible_devices
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.emit.run_total import find_hourly_price
from generator.errors import NotEmitted, NothingFits, UsageError
from generator.pipeline import document_request, plan_request
from generator.run.process import list_device_variables
from generator.techniques.attention.sdpa import Sdpa
from hwdetect import catalog
from hwdetect.cloud import find_instance
from hwdetect.spec import parse_spec
from hwdetect.types import Accelerator, Board, Hardware, Memory

GIB = 1 << 30
ROOT = Path(__file__).resolve().parent.parent
WORKS = (
    {"task": "causal-lm", "train": "full"},
    {"task": "sft", "train": "lora"},
    {"task": "sft", "train": "qlora"},
    {"task": "text-classification", "train": "full"},
    {"mode": "infer"},
)
DATA = {
    "sft": ROOT / "examples/data/chats.jsonl",
    "causal-lm": next((ROOT / "templates" / "project").glob("*sample*")) / "text.txt",
    "text-classification": "stanfordnlp/imdb",
}
OTHERS = [d.id for d in catalog.list_devices() if d.vendor != "nvidia"]
OF_NVIDIA = [
    "gb10",
    "gh200-96gb",
    "jetson-agx-orin-64gb",
    "a100:3g.40gb",
    "b200-sxm-180gb",
    "vr200",
    "rtx-pro-4500-blackwell-server",
    "t4",
    "gtx-1080-ti",
    "k80",
    "l2",
]
SAMPLE = [
    "mi300x",
    "rx-7900-xtx",
    "rx-6700-xt",
    "arc-b580",
    "max-1550",
    "m1",
    "m4-max",
    "tpu-v5e",
    "gaudi3",
    "trainium2",
    "gb10",
    "ascend-910b3",
]
SERVED = {
    "nvidia": {"gh200-96gb", "a100-sxm-80gb", "l2", "t4", "rtx-pro-4500-blackwell-server"},
    "cdna3": {"mi300x", "mi308x", "mi325x"},
    "rdna3": {
        "rx-7600",
        "rx-7600-xt",
        "rx-7700-xt",
        "rx-7800-xt",
        "rx-7900-gre",
        "rx-7900-xt",
        "rx-7900-xtx",
        "radeon-pro-w7800",
    },
    "rdna3 of workstations": {"radeon-pro-w7800-48gb", "w7900"},
    "apple": {f"m{number}{size}" for number in (1, 2, 3, 4) for size in ("", "-pro", "-max", "-ultra")},
}
MEASURED = {"train": {"gh200-96gb", "a100-sxm-80gb", "l2"}, "infer": set().union(*SERVED.values())}
"""of those above, devices of a generation that published runs were compared with"""
ARE_NONE = re.compile(r"not supported|unsupported|use the cpu|--hardware cpu", re.IGNORECASE)


def ask(device: str, work: dict, weights: bool = True) -> Request:
    data = DATA.get(work.get("task", ""))
    chats = {"data": str(data)} if data else {}
    chats |= {"labels": 2} if work.get("task") == "text-classification" else {}
    named = {"model": "HuggingFaceTB/SmolLM2-135M"} if weights else {}
    config = str(ROOT / "examples/models/smollm2-135m.json")
    return Request(**named, config=config, hardware=device, offline=True, **chats, **work)


def check_answer(request: Request) -> Planned | None:
    """A plan with figures, or a refusal with a reason that is the device's own, of which nothing is left to check."""
    try:
        planned = plan_request(request)
    except NothingFits as error:
        assert error.code == 3 and len(error.message) > 60 and not ARE_NONE.search(str(error)), error
        return None
    plan, case = planned.plan, planned.plan.case
    assert (
        plan.best.estimate.step_seconds > 0 and 0 < plan.best.estimate.peak_memory_gib <= plan.best.estimate.limit_gib
    )
    reasons = [note.text for note in planned.notes if "no project is made" in note.text]
    assert bool(reasons) == bool(case.explain_unemitted())
    assert not any(ARE_NONE.search(text) for text in reasons)
    assumed = [note.text for note in planned.notes if "no published" in note.text]
    assert bool(assumed) == (case.device.id not in MEASURED[request.mode])
    return planned


@pytest.mark.parametrize(("device", "holds"), [("m4-max", True), ("arc-b580", True), ("t4", False), ("mi300x", False)])
def test_scores_are_counted_where_no_kernel_leaves_them_out(device, holds):
    """Of a model with a key head for each query head too: on a Mac torch takes the plain computation in training."""
    model = tiny(kv_heads=8)
    case = choose_case(parse_spec(f"1x{device}"), model, Workload(mode="train", seq_len=4096))
    run = replace(Execution(micro_batch=1, seq_len=4096, autocast_dtype="bfloat16"), **Sdpa().effects(case))
    assert select_attention_kernel(build_cost_model(case).shape, run) in (
        ("math",) if holds else ("flash", "efficient")
    )


@pytest.mark.parametrize("nodes", [2, 4])
def test_macs_are_planned_alone(nodes):
    """gloo takes no tensor of Metal: two Macs were planned, and their project written, with DDP and as a pipeline."""
    hardware = parse_spec(f"{nodes}x1xm4-max")
    case = choose_case(hardware, tiny(), Workload(mode="train"))
    assert case.nodes == 1 and case.devices == 1
    assert any(f"one of the {nodes} machines: Metal is one device" in note.text for note in note_case(case))
    assert choose_case(parse_spec(f"{nodes}x1xgb10"), tiny(), Workload(mode="train")).nodes == nodes


@pytest.mark.parametrize(("device", "work"), zip(SAMPLE, cycle(WORKS), strict=False))
def test_every_maker_gets_an_answer(device, work):
    check_answer(ask(device, work))


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS, ids=lambda work: "-".join(work.values()))
@pytest.mark.parametrize("device", OTHERS + OF_NVIDIA)
def test_every_device_gets_an_answer_and_a_project_or_a_reason(device, work, tmp_path):
    """What `plan` and `init --no-smoke` do: every file is parsed by what renders it, every keyword of the libraries is known there."""
    request = ask(device, work)
    planned = check_answer(request)
    if planned is None:
        return
    try:
        check_emittable(planned)
    except (NothingFits, NotEmitted) as error:
        assert error.code == 3 and len(error.message) > 60 and not ARE_NONE.search(str(error)), error
        return
    document = to_json(replace(build_document(planned, "demo"), request=record_request(request, None)))
    render(json.loads(json.dumps(document)), tmp_path / "demo")
    for name in ("train.py", "infer.py", "model.py"):
        if (tmp_path / "demo" / name).exists():
            tree = ast.parse((tmp_path / "demo" / name).read_text(encoding="utf-8"))
            assert {
                call: words - know_words(call) for call, words in keywords(tree).items() if words - know_words(call)
            } == {}
    assert {row["name"] for row in document["edits"].get("training_arguments", ())} <= know_words("set_defaults")


def test_there_are_enough_devices():
    assert len(OTHERS + OF_NVIDIA) >= 60


def test_torch_tpu_is_planned_and_says_why_no_project_is_made():
    request = ask("tpu-v5e-8", {"task": "sft", "train": "lora", "framework": "torch-tpu"})
    planned = plan_request(request)
    assert planned.plan.best.estimate.step_seconds > 0 and planned.plan.case.vendor.torch_device == "tpu"
    assert any("no project is made" in note.text and "Accelerate" in note.text for note in planned.notes)
    with pytest.raises(NotEmitted, match="moves the model there"):
        document_request(request, for_project=True)
    with pytest.raises(UsageError, match="--framework torch-tpu is not for NVIDIA GPUs"):
        plan_request(ask("h100", {"task": "sft", "train": "lora", "framework": "torch-tpu"}))


def test_accelerate_takes_the_cpu_where_only_torch_tpu_is():
    """What stands in the way of torch-tpu: a version that knows its device gets a project."""
    from accelerate.state import PartialState

    with mock.patch("transformers.training_args.is_torch_tpu_available", return_value=True):
        assert PartialState().default_device.type == "cpu"


@pytest.mark.parametrize(
    "device", ["8xtpu-v5e", "gaudi2", "trainium", "rx-6700-xt", "k80", "ascend-310p3", "ascend-910"]
)
def test_what_no_project_is_made_for_says_why(device):
    with pytest.raises(NotEmitted, match="is planned, and no project is made for it") as error:
        document_request(ask(device, {"mode": "infer"}), for_project=True)
    assert error.value.code == 3


@pytest.mark.parametrize(
    ("device", "said"), [("gaudi3", 0), ("trainium2", 0), ("ascend-910", 0), ("ascend-910b2", 1), ("mi300x", 1)]
)
def test_where_no_project_is_made_none_is_told_to_smoke_run(device, said):
    """It was "ran the CPU build only, not none: smoke-run first"."""
    plan = document_request(ask(device, {"task": "sft", "train": "lora"}))
    assert len(plan.untested) == said and not any("not none" in line for line in plan.untested)


@pytest.mark.parametrize(
    ("device", "engine"),
    [("gaudi3", "transformers"), ("trainium2", "transformers"), ("ascend-910b4", "transformers"), ("tpu-v5e", "transformers"),
     ("mi300x", "vllm"), ("mi100", "transformers"), ("rx-7600-xt", "transformers"), ("m4-max", "mlx"), ("h100", "vllm")],
)  # fmt: skip
def test_an_engine_is_planned_where_its_stack_has_a_build(device, engine):
    """Where no stack is pinned, none of an engine's is: a Gaudi was planned with Apple's MLX."""
    assert plan_request(ask(device, {"mode": "infer"})).plan.best.choice["engine"] == engine


@pytest.mark.parametrize(
    ("machine", "refused"),
    [("8xgaudi3", True), ("trainium2", True), ("m4-max", False), ("2xcpu:1", False), ("h100", False)],
)
def test_what_no_project_is_made_for_is_said_before_anything_is_asked(machine, refused):
    """Of a machine alone: who has a Gaudi need not look for data first."""
    answer = CliRunner().invoke(perfgen, ["init", "nowhere", "--hardware", machine])
    assert answer.exit_code == 0 or isinstance(answer.exception, (NotEmitted, UsageError)), answer
    assert isinstance(answer.exception, NotEmitted) == refused
    assert refused or "--model and --data must be given" in str(answer.exception)


@pytest.mark.parametrize(
    ("device", "said"), [("m4-max", True), ("mi300x", False), ("arc-b580", False), ("cpu:4", False), ("h100", False)]
)
def test_pinned_memory_is_asked_for_where_there_is_some(device, said):
    plan = to_json(document_request(ask(device, {"task": "sft", "train": "lora"}), "demo", for_project=True))
    rows = {row["name"]: row["code"] for row in plan["edits"]["training_arguments"]}
    assert rows.get("dataloader_pin_memory") == ("False" if said else None)


@pytest.mark.parametrize(("device", "said"), [("jetson-agx-orin-64gb", True), ("gb10", False), ("rtx-3090", False)])
def test_an_orin_is_told_that_wheels_are_not_made_for_it(device, said):
    notes = plan_request(ask(device, {"task": "sft", "train": "lora"})).notes
    assert any("kernels made for compute capability 8.7" in note.text for note in notes) == said


@pytest.mark.parametrize(
    ("device", "tegra"),
    [("jetson-agx-orin-64gb", True), ("jetson-agx-thor", True), ("gb10", False), ("rtx-3090", False)],
)
def test_a_jetson_has_a_driver_of_its_own(device, tegra, tmp_path):
    """Segments that grow end a run there at its first allocation, and the container toolkit refuses --gpus."""
    import yaml

    plan = document(device, ("task", "sft"), ("train", "full"))
    assert ("expandable_segments" in str(plan["edits"]["environment"])) != tegra
    render(plan, tmp_path / "demo")
    script = (tmp_path / "demo" / "container.sh").read_text(encoding="utf-8")
    assert ("--gpus" in script, "--runtime nvidia" in script) == (not tegra, tegra)
    (service,) = yaml.safe_load((tmp_path / "demo" / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert (service.get("runtime"), "deploy" in service) == (("nvidia", False) if tegra else (None, True))
    assert ("NVIDIA_VISIBLE_DEVICES=all" in service["environment"]) == tegra


@pytest.mark.parametrize(
    ("architecture", "able"), [("riscv64", False), ("ppc64le", False), ("aarch64", True), (None, True)]
)
def test_a_host_that_torch_has_no_wheels_for_is_planned_and_says_so(tmp_path, architecture, able):
    machine = parse_spec("cpu:8")
    file = tmp_path / "hw.json"
    file.write_text(json.dumps(hwdetect.to_json(replace(machine, cpu=replace(machine.cpu, architecture=architecture)))))
    request = ask(str(file), {"task": "causal-lm", "train": "full"})
    reasons = [note.text for note in plan_request(request).notes if f"torch for {architecture}" in note.text]
    assert bool(reasons) != able
    if not able:
        with pytest.raises(NotEmitted, match="built from source"):
            document_request(request, for_project=True)


@pytest.mark.parametrize("vendor", (*list_vendors(), CPU), ids=lambda vendor: vendor.name)
def test_a_vendor_speaks_of_abilities_that_exist(vendor):
    assert vendor.abilities.keys() <= ABILITIES.keys()
    devices = [d for d in catalog.list_devices() if find_vendor(d.vendor, d.kind) is vendor]
    for device in devices:
        for ability in ABILITIES:
            why = vendor.explain_missing(ability, device)
            assert why is None or len(why) > 10
        assert 0 < vendor.share_memory(device, device.memory_bytes) <= device.memory_bytes
        assert 0.9 * device.memory_bytes < vendor.reach_memory(device, device.memory_bytes) <= device.memory_bytes
        guards = ROOT / "templates/fragments/machine"
        assert vendor.explain_unemitted(device) or (guards / f"{vendor.guard}.py").is_file(), vendor.guard
        role = vendor.skeleton.role if vendor.skeleton else "train"
        if not vendor.explain_unemitted(device):
            try:
                assert vendor.choose_build(role, device, None) in list_builds(role)
            except UsageError as error:
                assert device.name in error.message  # older than every build


def test_no_other_makers_devices_are_told_of_compute_capability():
    """NVIDIA's word: a default of ``ABILITIES`` is said of all others, who may be told that a kernel needs an NVIDIA GPU."""
    for vendor in (*list_vendors(), CPU):
        for device in catalog.list_devices():
            if vendor.name != "nvidia" and find_vendor(device.vendor, device.kind) is vendor:
                for ability in ABILITIES:
                    why = vendor.explain_missing(ability, device) or ""
                    assert "compute capability" not in why or "NVIDIA GPU" in why, (device.id, why)


def test_every_device_of_the_catalogue_has_a_vendor():
    assert {d.id for d in catalog.list_devices() if find_vendor(d.vendor, d.kind) is None} == set()


def test_nothing_else_names_a_vendor():
    """Words of one maker stand in its file, in leaves that a plan chooses for it, and in texts; none is compared."""
    compared = re.compile(
        r"""(==|!=|\bin\b)\s*\(?["'](nvidia|amd|intel|apple|google|aws|habana|huawei|cuda|xpu|mps)["']"""
    )
    places = [ROOT / "generator", ROOT / "templates/project"]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for place in places
        for path in place.rglob("*")
        if path.is_file() and path.suffix in (".py", ".jinja") and "vendors" not in path.parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if compared.search(line)
    ]
    # DataParallel is Trainer's for "cuda" alone, whoever made the GPU
    assert [line for line in found if "set one_gpu" not in line] == []


# ---- what is known of a maker


@pytest.mark.parametrize(
    ("device", "ability", "able"),
    [
        ("mi300x", "bf16", True), ("mi300x", "fp8", True), ("mi300x", "tf32", False), ("mi210", "fp8", False),
        ("mi50-32gb", "bf16", False), ("mi50-32gb", "fp16", True), ("rx-7900-xtx", "bf16", True), ("rx-7900-xtx", "fp8", False),
        ("rx-9070-xt", "fp8", True), ("rx-7900-xtx", "flash", False), ("rx-6800-xt", "bf16", False),
        ("arc-b580", "bf16", True), ("arc-b580", "tf32", False), ("arc-b580", "fsdp", True),
        ("m1", "bf16", False), ("m2-ultra", "bf16", False), ("m3", "bf16", True), ("m4-max", "fsdp", False),
        ("ascend-910b4", "bf16", True), ("ascend-310p3", "bf16", False), ("ascend-910", "bf16", False),
        ("ascend-910", "fp16", True), ("ascend-310p3", "fp16", True), ("ascend-910c", "flash", False),
        ("t4", "bf16", False), ("h100-sxm-80gb", "fp8", True), ("a100-sxm-80gb", "fp8", False),
    ],
)  # fmt: skip
def test_gates(device, ability, able):
    board = catalog.load(device)
    assert (find_vendor(board.vendor, board.kind).explain_missing(ability, board) is None) == able


def test_macos_gives_a_share_of_its_memory():
    """Figures that people read on their machines, within a tenth (sources beside the shares)."""
    share = find_vendor("apple").share_memory
    for gib, read in ((16, 10.67), (24, 17.76), (64, 49.0)):
        assert share(catalog.load("m4"), gib << 30) / (1 << 30) == pytest.approx(read, rel=0.1)


@pytest.mark.parametrize(
    ("device", "reported"),
    [
        ("ascend-910b4", 29.50), ("ascend-910b2", 60.96), ("ascend-910c", 61.27), ("ascend-310p3", 44280 / 1024), ("tpu-v4", 30.75),
        ("arc-a770", 15473 / 1024), ("arc-b580", 11.33), ("arc-pro-b70", 30.3), ("mi300x", 191.98), ("h100-sxm-80gb", 79.18),
        ("rtx-4090", 23.64), ("rtx-3080", 9.61),
    ],
)  # fmt: skip
def test_a_plan_has_what_pytorch_reports_and_not_what_the_board_has(device, reported):
    """Figures that people printed (sources beside the shares): a plan for 32 GiB of a 910B4 stopped at its own check, which sees 29.5."""
    case = make_case_of(device)
    gib = case.device_memory_bytes / GIB
    assert gib == pytest.approx(reported, rel=0.01)
    said = [note.text for note in note_case(case) if "PyTorch has" in note.text]
    assert bool(said) == (case.device_memory_bytes < (1 - HEADROOM_SHARE) * case.device.memory_bytes)


def make_case_of(device: str) -> Case:
    machine = parse_spec(device)
    return make_case(machine, machine.accelerators, *make_work())


@pytest.mark.parametrize(("device", "said"), [("arc-pro-b70", True), ("arc-pro-b60", False), ("arc-b580", False)])
def test_a_board_younger_than_the_images_drivers_is_told_so(device, said):
    assert any("Debian 13" in note.text for note in note_case(make_case_of(device))) == said


def test_no_device_is_larger_than_itself():
    for device in ("ascend-910b4", "arc-b580", "tpu-v4"):
        assert device not in [larger.id for larger in list_larger_devices(make_case_of(device))]


@pytest.mark.parametrize(
    ("device", "total", "told", "usable", "whole"),
    [
        ("m1-pro", 16, None, 10.67, 16), ("m3-ultra", 96, None, 72, 96), ("m2-max", 64, 56, 56, 56), ("gb10", 119, None, 98.8, 119),
        ("jetson-orin-nano-8gb", 7.4, None, 6.1, 7.4), ("strix-halo", 124.9, 0.5, 62.5, 124.9), ("strix-halo", 31, 96, 96, 31),
        ("mi300a", 512, 128, 128, 128), ("rtx-4090", 64, 24, 24, None),
    ],
)  # fmt: skip
def test_memory_of_a_machine_that_was_read_is_its_hosts_where_both_share_one(device, total, told, usable, whole):
    """A catalogue has the largest that is sold: a MacBook of 16 GB was planned with 24 GiB."""
    known = catalog.load(device)
    read = round(told * GIB) if told else None
    board = Board(index=0, vendor=known.vendor, name=known.name, device=known.id, memory_bytes=read, compute_capability=known.compute_capability,
                  unified_memory=known.unified_memory, integrated=known.architecture == "rdna3.5")  # fmt: skip
    part = Accelerator(index=0, board=0, name=known.name, memory_bytes=read, compute_share=1.0)
    machine = Hardware(boards=(board,), accelerators=(part,), memory=Memory(total_bytes=round(total * GIB)))
    case = make_case(machine, (part,), *make_work())
    assert case.device_memory_bytes / GIB == pytest.approx(usable, rel=0.02)
    assert (
        (case.shared_memory_bytes and case.shared_memory_bytes / GIB) == pytest.approx(whole)
        if whole
        else case.shared_memory_bytes is None
    )


def test_memory_of_a_spec_is_that_of_the_device_where_both_share_one():
    case = plan_request(ask("m4-max,64gb", WORKS[0])).plan.case
    assert case.device_memory_bytes == 48 << 30


def test_tiles_and_partitions_are_devices_that_one_job_joins(tmp_path):
    """Two cards of two tiles are four devices of half the memory, spelled or read; MIG instances stay alone."""
    cards = parse_spec("2xmax-1550")
    assert [(a.board, a.profile) for a in cards.accelerators] == [
        (0, "tile 0"),
        (0, "tile 1"),
        (1, "tile 0"),
        (1, "tile 1"),
    ]
    case = plan_request(ask("2xmax-1550", WORKS[0])).plan.case
    assert (case.devices_per_node, case.device_memory_bytes) == (4, 64 << 30)
    assert dict(case.device.peak_flops)["bf16"] == dict(catalog.load("max-1550").peak_flops)["bf16"] / 2
    assert {(link.a, link.b) for link in case.links} == {(a, b) for a in range(4) for b in range(a + 1, 4)}
    assert plan_request(ask("2xa100-mig-3g.40gb", WORKS[0])).plan.case.devices_per_node == 1


def test_a_part_of_a_board_that_others_share_says_so():
    board = Board(
        index=0,
        vendor="nvidia",
        name="GRID P4-8Q",
        device="p4",
        memory_bytes=8 * GIB,
        virtualization="VGPU",
        compute_capability="6.1",
    )
    part = Accelerator(index=0, board=0, name=board.name, memory_bytes=8 * GIB, compute_share=1.0)
    case = make_case(Hardware(boards=(board,), accelerators=(part,)), (part,), *make_work())
    assert any("other guests" in note.text for note in note_case(case))
    assert not any("other guests" in note.text for note in plan_request(ask("p4", WORKS[1])).notes)


def test_slices_without_a_name_stay_alone_too():
    """nvidia-smi's log tells no names, and NCCL joins no slices."""
    board = Board(index=0, vendor="nvidia", device="a100-sxm-80gb", mig_enabled=True)
    slices = tuple(Accelerator(index=i, board=0, gpu_instance=3 + i, compute_units=14) for i in range(4))
    groups = group_equal_accelerators(Hardware(boards=(board,), accelerators=slices))
    assert [len(group) for group in groups] == [1, 1, 1, 1]


RESERVED = re.compile(r"<fb_memory_usage>\s*<total>(\d+) MiB</total>\s*<reserved>(\d+) MiB</reserved>")


def read_reserved() -> list[tuple[str, int, int]]:
    """Of whole boards of recorded machines, what the driver keeps in MiB."""
    texts = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (ROOT / "tests/hwdetect/machines").glob("nvidia-smi-*.toml")
    }
    found = [(name, *map(int, match)) for name, text in texts.items() for match in RESERVED.findall(text)]
    return [(name, total, kept) for name, total, kept in found if kept and total > 2048]  # slices, and a virtual GPU


@pytest.mark.parametrize(("name", "total", "kept"), read_reserved(), ids=lambda value: str(value))
def test_what_nvidias_driver_keeps_is_planned_for_nobody(name, total, kept):
    """A plan had all that nvidia-smi shows: on boards of 8 and 10 GiB its own guard would have refused a device that was filled."""
    torch_has = total - kept
    reached = find_vendor("nvidia").reach_memory(catalog.load("rtx-3090"), total << 20) / (1 << 20)
    assert (1 - HEADROOM_SHARE) * reached < torch_has and reached == pytest.approx(torch_has, rel=0.006)


@pytest.mark.parametrize(
    ("device", "mib"), [("rtx-3080", 9820), ("rtx-4090", 24115), ("a100:3g.20gb", 19968), ("gb10", 103428)]
)
def test_an_instance_of_a_board_is_whole(device, mib):
    case = plan_request(ask(device, WORKS[0])).plan.case
    assert case.device_memory_bytes >> 20 == pytest.approx(mib, rel=0.002)


def test_a_slice_of_unknown_memory_is_not_given_its_boards():
    """All 80 GiB of the board were planned for it."""
    board = Board(
        index=0, vendor="nvidia", name="A100", device="a100-sxm-80gb", memory_bytes=80 * GIB, mig_enabled=True
    )
    part = Accelerator(index=0, board=0, profile="1c.3g.40gb")
    with pytest.raises(UsageError, match="memory of the MIG instance 1c"):
        make_case(Hardware(boards=(board,), accelerators=(part,)), (part,), *make_work())


def test_a_part_of_a_board_has_no_price_of_the_whole():
    """A MIG slice whose share no tool said was priced as its board."""
    whole, part = parse_spec("h100-sxm-80gb"), parse_spec("h100-mig-1g.10gb")
    unknown = replace(part, accelerators=tuple(replace(a, compute_share=None) for a in part.accelerators))
    unnamed = replace(unknown, accelerators=tuple(replace(a, profile=None) for a in unknown.accelerators))
    virtual = replace(whole, boards=tuple(replace(board, virtualization="VGPU") for board in whole.boards))
    prices = [
        find_hourly_price(None, make_case(machine, machine.accelerators[:1], *make_work()), Layout())
        for machine in (whole, part, unknown, unnamed, virtual)
    ]
    assert prices[0] is not None and prices[1:] == [None] * 4


def test_linked_devices_are_priced_by_a_machine_that_has_them():
    """Four chips of a slice were priced as 4 of the devices of ct5lp-hightpu-1t, which has one."""
    machine = parse_spec("8xtpu-v5e")
    for per_node, cheapest in ((1, 1), (2, 4), (4, 4), (8, 8)):
        case = make_case(machine, machine.accelerators[:per_node], *make_work())
        price = find_hourly_price(None, case, Layout(per_node=per_node, replicate=per_node))
        assert price is not None
        instance = find_instance(price.of.removeprefix(f"{per_node} of the devices of ").split(",")[0])
        assert instance.devices == cheapest and price.usd == instance.price.usd_per_hour / cheapest * per_node
    assert find_hourly_price(None, case, Layout(per_node=512, replicate=512)) is None


def test_a_superchip_says_how_its_host_is_reached():
    """GH200's offloading was priced over a PCIe 4.0 slot, which it has not."""
    planned = plan_request(ask("gh200", {"task": "causal-lm", "train": "full"}))
    assert any("NVLink-C2C (450 GB/s each way), in one address space" in note.text for note in planned.notes)
    rates = {name: compute_host_link_rate(catalog.load(name)) for name in ("gh200-96gb", "gb300", "h100-sxm-80gb")}
    assert rates == {"gh200-96gb": 450e9, "gb300": 225e9, "h100-sxm-80gb": pytest.approx(63e9, rel=0.01)}


@pytest.mark.parametrize(
    ("memory", "width", "watts", "said"),
    [(24, 16, 450, None), (23.6, 16, 440, None), (20, 16, 450, "20.0 to 24.0 GiB"), (24, 4, 450, "PCIe 4.0 x4 and PCIe 4.0 x16"),
     (24, 16, 250, "power limits of 250 to 450 W")],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_boards_of_one_name_that_are_not_equal_are_said(memory, width, watts, said, first):
    machine = parse_spec("2xrtx-4090")
    odd = 0 if first else 1
    boards, parts = list(machine.boards), list(machine.accelerators)
    boards[odd] = replace(boards[odd], power_limit_watts=watts, pcie=replace(boards[odd].pcie, width=width))
    parts[odd] = replace(parts[odd], memory_bytes=round(memory * GIB))
    machine = replace(machine, boards=tuple(boards), accelerators=tuple(parts))
    case = make_case(machine, machine.accelerators, *make_work())
    told = [note.text for note in note_case(case) if "boards are not equal" in note.text]
    assert (told == []) == (said is None) and (said is None or said in told[0])
    smallest = min(a.memory_bytes for a in parts)
    assert case.device.pcie_width == width
    assert case.device_memory_bytes == find_vendor("nvidia").reach_memory(case.device, smallest)


# ---- projects


@cache
def document(device: str, *work: tuple[str, object]) -> dict:
    return json.loads(json.dumps(to_json(document_request(ask(device, dict(work)), "demo"))))


@pytest.fixture(scope="module", params=["mi300x", "arc-b580", "m4-max", "ascend-910b2"])
def project(request, tmp_path_factory):
    """Its device and folder, every file of it parsed by what renders it."""
    folder = tmp_path_factory.mktemp(request.param) / "demo"
    render(document(request.param, ("task", "sft"), ("train", "lora")), folder)
    return request.param, folder


def test_a_project_speaks_of_its_own_devices(project):
    device, folder = project
    contained = device in CONTAINED
    for name in ("Dockerfile", "container.sh", "compose.yaml", ".dockerignore"):
        assert (folder / name).exists() == contained
    files = ("train.py", "infer.py", "machine.py", "README.md", "Makefile", "pyproject.toml", "config.yaml")
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in files)
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    assert not re.search(r"nvidia|CUDA_|cu1\d\d|nvcc|backends\.cuda", text + scripts, re.IGNORECASE)
    assert ("whl/cpu" in text) == (device == "ascend-910b2")
    words = {
        "mi300x": ("whl/rocm", "gfx942", "an AMD GPU", 'device_map="cuda"'),
        "arc-b580": ("whl/xpu", "an Intel GPU", 'device_map="xpu"'),
        "m4-max": ("an Apple GPU", 'device_map="mps"', "PYTORCH_ENABLE_MPS_FALLBACK"),
        "ascend-910b2": (
            "torch-npu==2.13.0",
            "an Ascend NPU",
            'device_map="npu"',
            "CANN 9.1",
            "quay.io/ascend/cann:9.1.0",
        ),
    }[device]
    assert [word for word in words if word not in text] == []
    assert ("docker" in text.lower()) == contained


CONTAINED = ("mi300x", "arc-b580")


def test_a_shell_that_does_not_know_the_makers_toolkit_is_told(project):
    """`import torch` loads torch-npu, and that CANN: it ended with "libhccl.so: cannot open shared object file"."""
    device, folder = project
    for variables, said in (({}, device == "ascend-910b2"), ({"ASCEND_HOME_PATH": "/usr/local/Ascend/cann"}, False)):
        done = subprocess.run(
            ["sh", "-c", ". ./env.sh"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **variables},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0
        assert ("/usr/local/Ascend/ascend-toolkit/set_env.sh" in done.stderr) == said and bool(done.stderr) == said


def test_who_needs_a_driver_beside_pytorch_is_told(project):
    """`import torch` of an XPU build ends with "libze_loader.so.1: cannot open shared object file" without it."""
    device, folder = project
    said = "apt-get install libze-dev libze-intel-gpu1`" in (folder / "README.md").read_text(encoding="utf-8")
    assert said == (device == "arc-b580")


def test_uv_finds_beside_torch_what_its_build_needs(project):
    """uv asks an explicit index for direct dependencies alone; pip asks the index for all that torch needs, and passes groups over."""
    device, folder = project
    made = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {"mi300x": ("triton-rocm", "torch-rocm7.2"), "arc-b580": ("triton-xpu", "torch-xpu")}.get(device)
    if needed is None:
        assert ("uv" in made["tool"]) == (device == "ascend-910b2") and "dependency-groups" not in made
        return
    name, index = needed
    assert made["dependency-groups"] == {index: [name]} and made["tool"]["uv"]["default-groups"] == [index]
    assert made["tool"]["uv"]["sources"] == {"torch": [{"index": index}], name: [{"index": index}]}
    assert not any(name in line for line in made["project"]["dependencies"])


@pytest.mark.parametrize(
    ("device", "hours"),
    [("8xmi300x", "GPU"), ("m4-max", "GPU"), ("ascend-910b2", "NPU"), ("tpu-v5e-8", "TPU"), ("gaudi3", "Gaudi"), ("trainium2", "device")],
)  # fmt: skip
def test_hours_are_of_what_the_maker_calls_its_devices(device, hours, tmp_path):
    """And whoever has none is told of no GPU, save as the reason why something is not for them."""
    plan = to_json(document_request(ask(device, {"task": "causal-lm", "train": "full"}), "demo"))
    assert f" {hours}-hours" in plan["run"]["summary"]
    if hours == "GPU" or device in ("gaudi3", "trainium2"):
        return
    render(json.loads(json.dumps(plan)), tmp_path / "demo")
    texts = [
        path
        for path in (tmp_path / "demo").rglob("*")
        if path.suffix in (".py", ".sh", ".toml") or path.name in ("README.md", "Makefile", "config.yaml")
    ]
    lines = [
        f"{path.name}: {line}"
        for path in texts
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bGPUs?\b", line)
    ]
    assert lines == []


@pytest.mark.parametrize(("device", "says"), [("8xmi300x", True), ("4xmax-1550", False)])
def test_nccl_is_named_where_it_is_spoken(device, says, tmp_path):
    folder = tmp_path / "demo"
    render(document(device, ("task", "sft"), ("train", "full"), ("optimize_for", "time")), folder)
    assert ("NCCL_" in (folder / "README.md").read_text(encoding="utf-8")) == says


def test_devices_reach_a_container(project):
    import yaml

    device, folder = project
    if device not in CONTAINED:
        return
    needed = {"mi300x": ["/dev/kfd", "/dev/dri"], "arc-b580": ["/dev/dri"]}[device]
    script = (folder / "container.sh").read_text(encoding="utf-8")
    assert all(f"--device {path}" in script for path in needed)
    (service,) = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert service["devices"] == needed and "deploy" not in service


@pytest.mark.parametrize(
    ("device", "string", "resource"),
    [
        ("2xmi300x", "cuda", "amd.com/gpu"),
        ("arc-pro-b60", "xpu", "gpu.intel.com/xe"),
        ("m4-max", "mps", None),
        ("ascend-910c", "npu", None),
    ],
)
def test_a_server_of_its_own_devices(device, string, resource, tmp_path):
    folder = tmp_path / "demo"
    render(document(device, ("mode", "infer"), ("pins", (("engine", "transformers"),))), folder)
    text = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.[psy]*") if path.name != "plan.json")
    assert f'device_map="{string}"' in (folder / "model.py").read_text(encoding="utf-8")
    assert "nvidia.com" not in text and "CUDA_VISIBLE" not in text
    deployment = folder / "serve.k8s.yaml"
    told = deployment.read_text(encoding="utf-8") if deployment.exists() else ""
    file = {"cuda": "/dev/kfd", "xpu": "/dev/dri/renderD128"}.get(string)
    assert (f"%g' {file}` on a node" in told and "supplementalGroups: [NUMBER]" in told) == bool(file)
    assert deployment.exists() == (resource is not None)
    assert resource is None or f"{resource}: 1" in deployment.read_text(encoding="utf-8")


# ---- the contract: what is written to TrainingArguments is taken by a process that sees such a device


def see_nothing(stack: ExitStack) -> None:
    import torch

    for place in ("torch.cuda.is_available", "torch.xpu.is_available", "torch.backends.mps.is_available"):
        stack.enter_context(mock.patch(place, return_value=False))
    stack.enter_context(mock.patch.object(torch.accelerator, "is_available", return_value=True))


def see_rocm(stack: ExitStack) -> None:
    import torch

    gpu = SimpleNamespace(
        major=9, minor=4, name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+", total_memory=192 << 30
    )
    stack.enter_context(mock.patch.object(torch.version, "hip", "7.2"))
    stack.enter_context(mock.patch.object(torch.version, "cuda", None))
    for name, value in {
        "is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True,
        "get_device_properties": gpu, "set_device": None,
    }.items():  # fmt: skip
        stack.enter_context(mock.patch(f"torch.cuda.{name}", return_value=value))


def see_xpu(stack: ExitStack) -> None:
    gpu = SimpleNamespace(name="Intel Arc B580", total_memory=12 << 30)
    for name, value in {
        "is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True,
        "get_device_properties": gpu, "set_device": None,
    }.items():  # fmt: skip
        stack.enter_context(mock.patch(f"torch.xpu.{name}", return_value=value))


def see_mps(stack: ExitStack) -> None:
    for name in ("is_available", "is_built", "is_macos_or_newer"):
        stack.enter_context(mock.patch(f"torch.backends.mps.{name}", return_value=True))
    stack.enter_context(mock.patch("torch.mps.recommended_max_memory", return_value=96 << 30))


def see_npu(stack: ExitStack) -> None:
    """What torch-npu adds to torch as it is imported, and the libraries that ask whether it is there."""
    import torch

    torch.utils.rename_privateuse1_backend(
        "npu"
    )  # which torch-npu does first; the name means nothing without its kernels
    npu = ModuleType("torch.npu")
    gpu = SimpleNamespace(name="Ascend910B2", total_memory=64 << 30)
    for name, value in {
        "is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True,
        "get_device_properties": gpu, "set_device": None,
    }.items():  # fmt: skip
        setattr(npu, name, mock.Mock(return_value=value))
    stack.enter_context(mock.patch.object(torch, "npu", npu, create=True))
    stack.enter_context(mock.patch.dict(sys.modules, {"torch_npu": ModuleType("torch_npu")}))
    for module in ("transformers.training_args", "transformers.utils.import_utils"):
        stack.enter_context(mock.patch(f"{module}.is_torch_npu_available", return_value=True))
    stack.enter_context(mock.patch("accelerate.state.is_npu_available", return_value=True))


OWN = "PERFGEN_TEST_SEES_NPU"
"""set in the process that sees an Ascend NPU: PyTorch names its place for another maker's device once, for all that follows"""
SEES = (
    {"ascend-910b2": (see_npu, "npu")}
    if OWN in os.environ
    else {"mi300x": (see_rocm, "cuda"), "arc-b580": (see_xpu, "xpu"), "m4-max": (see_mps, "mps")}
)


@pytest.mark.skipif(OWN in os.environ, reason="this is that process")
def test_an_ascend_is_seen_in_a_process_of_its_own():
    words = ["-q", "-n0", "-p", "no:cacheprovider", __file__, "-k", "taken_where_they_run or takes_the_planned_machine"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=os.environ | {OWN: "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]  # 5 where nothing ran


@pytest.fixture
def seen(request):
    """A process that sees such a device; what Transformers and Accelerate remember of the real one is forgotten."""
    import trl  # what it imports looks at the machine, too: before it is another one
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import imports
    from transformers import TrainingArguments
    from transformers.utils import import_utils

    assert trl.SFTConfig and TrainingArguments

    kept = [
        f
        for module in (import_utils, imports)
        for f in vars(module).values()
        if hasattr(f, "cache_clear") and "available" in getattr(f, "__name__", "")
    ]
    forget = [AcceleratorState._reset_state, PartialState._reset_state, *(function.cache_clear for function in kept)]
    for function in forget:
        function()
    with ExitStack() as stack:
        see_nothing(stack)
        SEES[request.param][0](stack)
        yield request.param
    for function in forget:
        function()


@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
@pytest.mark.parametrize(
    "work", [w for w in WORKS if w.get("mode") != "infer"], ids=lambda work: "-".join(work.values())
)
@pytest.mark.parametrize("seen", SEES, indirect=True)
def test_emitted_arguments_are_taken_where_they_run(seen, work, tmp_path, monkeypatch):
    from transformers import TrainingArguments
    from trl import SFTConfig

    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    try:
        plan = document(seen, *work.items())
    except NothingFits:
        assert work["train"] == "qlora" and seen in ("m4-max", "ascend-910b2")
        return
    written = {a["name"]: ast.literal_eval(a["code"]) for a in (*plan["edits"]["training_arguments"], *plan["fixed"])}
    kind = SFTConfig if work["task"] == "sft" else TrainingArguments
    args = kind(output_dir=str(tmp_path), per_device_train_batch_size=plan["batch"]["micro_batch"], **written)
    assert args.device.type == plan["project"]["device"] == SEES[seen][1]
    assert args.n_gpu == 1 and "tf32" not in written


@pytest.mark.parametrize("seen", SEES, indirect=True)
def test_the_guard_takes_the_planned_machine_and_no_smaller_one(seen, load):
    plan = document(seen, ("task", "sft"), ("train", "lora"))
    machine, planned = load(f"machine/{plan['project']['guard']}"), plan["config"]["machine"]
    machine.check_machine(planned)
    with pytest.raises(SystemExit, match="GiB"):
        machine.check_machine(planned | {"needs_gib": 10_000.0})


@pytest.mark.skipif(OWN in os.environ, reason="it sees another device")
@pytest.mark.parametrize("seen", ["mi300x"], indirect=True)
def test_another_target_is_not_the_planned_one(seen, load):
    plan = document(seen, ("task", "sft"), ("train", "lora"))
    with pytest.raises(SystemExit, match="gfx950, and AMD Instinct MI300X is gfx942"):
        load("machine/rocm").check_machine(plan["config"]["machine"] | {"targets": ["gfx950"]})


def choose_beside(*specs: str, pins: tuple = ()) -> Case:
    """The case of one machine that has the devices of each spec, numbered in that order as a detection does."""
    first, *others = (parse_spec(spec) for spec in specs)
    for other in others:
        at, number = len(first.boards), len(first.accelerators)
        boards = (replace(b, index=b.index + at) for b in other.boards)
        devices = (replace(a, index=a.index + number, board=a.board + at) for a in other.accelerators)
        first = replace(first, boards=(*first.boards, *boards), accelerators=(*first.accelerators, *devices))
    return choose_case(first, tiny(), Workload(seq_len=512, global_batch=12, pins=pins))


@pytest.mark.parametrize(
    ("specs", "visible"),
    [
        (("rx-7900-xtx", "2xrtx-4090"), "0"),
        (("rx-7900-xtx", "rtx-4090"), None),
        (("rtx-3090", "rtx-4090"), "1"),
        (("rtx-3090", "rx-6700-xt", "rtx-4090"), "1"),
    ],
)
def test_devices_have_the_numbers_of_their_own_makers_variable(specs, visible):
    """CUDA counts NVIDIA's alone: an AMD GPU before them is no device 0 there."""
    case = choose_beside(*specs, pins=(("parallelism", "single"),))
    assert case.device.id == "rtx-4090"
    assert select_visible_devices(decide(case, build_cost_model(case))) == visible


@pytest.mark.parametrize(
    ("device", "variables"),
    [
        ("2xmi300x", {"HIP_VISIBLE_DEVICES": "0"}), ("4xarc-b580", {"ZE_AFFINITY_MASK": "0"}),
        ("8xascend-910b4", {"ASCEND_RT_VISIBLE_DEVICES": "0"}),
        ("2xrtx-4090", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}),
        ("tpu-v5e-8", {"TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_VISIBLE_CHIPS": "0"}),
    ],
)  # fmt: skip
def test_devices_are_hidden_in_the_words_of_their_maker(device, variables, tmp_path):
    """The smoke run of any maker's project hid devices from CUDA, and a TPU's runtime waits for chips that no bounds leave out."""
    work = (("task", "sft"), ("train", "full"), ("pins", (("parallelism", "single"),)))
    plan = document(device, *work)
    assert list_device_variables(plan) == variables
    render(plan, tmp_path / "demo")
    line = " ".join(f"{name}={value}" for name, value in variables.items())
    assert f"{line} $(BIN)/python train.py" in (tmp_path / "demo" / "Makefile").read_text(encoding="utf-8")


def test_some_chips_of_a_host_are_shown_to_the_one_process_that_takes_all():
    """Two of eight chips: the runtime divided rows over all that it saw."""
    plan = document(
        "tpu-v5e-8", ("task", "sft"), ("train", "full"), ("pins", (("parallelism", "spmd"),)), ("global_batch", 2)
    )
    assert list_device_variables(plan) == {
        "TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,2,1", "TPU_VISIBLE_CHIPS": "0,1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("specs", "chosen"),
    [
        (("gaudi3", "gtx-1650"), "gtx-1650"),
        (("gtx-1650", "rx-6700-xt"), "gtx-1650"),
        (("gtx-1650", "rx-7900-xtx"), "rx-7900-xtx"),
    ],
)
def test_of_unequal_devices_one_that_projects_are_made_for_comes_first(specs, chosen):
    assert choose_beside(*specs).device.id == chosen


@pytest.mark.parametrize("device", [d.id for d in catalog.list_devices() if d.vendor == "amd"])
def test_boards_with_an_fp8_rate_have_a_form_of_it_and_no_others(device):
    """gfx942 multiplies fnuz, gfx950 and gfx12xx the form of the Open Compute Project; what has none is told which have."""
    found = catalog.load(device)
    why = find_vendor("amd", "gpu").explain_missing("fp8", found)
    assert (why is None) == (found.architecture in FLOAT8) == (found.flops("fp8") is not None)
    assert why is None or ("gfx942: fnuz" in why and "gfx950: OCP" in why)
