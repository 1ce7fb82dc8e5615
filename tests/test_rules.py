"""The decision rules of the guides, one by one: cases that take a rule, and cases that do not (``tests/rules``)."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from making import case, gpu, llama
from rules import fit, gates, parallel, speed
from rules.outside import NEVER, OUT_OF_SCOPE
from rules.table import medium, on, pin, plan, refused, room, written

from generator.case.case import Case
from generator.case.strategies import STRATEGIES
from generator.errors import PerfgenError

RULES = (*gates.RULES, *fit.RULES, *parallel.RULES, *speed.RULES)
ROOT = Path(__file__).resolve().parents[1]
CHECKLIST = ROOT / "../shared/TECHNIQUES.md"
WRITERS = ("generator/techniques", "generator/emit", "templates")


@pytest.mark.parametrize("side", ["takes", "leaves"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rule(rule, side):
    for place, of in enumerate(rule.cases(side)):
        assert rule.look(of) is (side == "takes"), f"{rule.words}: case {place} of {side}: {what_is_done(of)}"


def what_is_done(of: Case) -> str:
    try:
        best = plan(of).best
    except PerfgenError as refusal:
        return f"refused: {refusal}"
    return f"{best.choice} on {best.layout}"


def test_every_rule_of_the_checklist_is_in_one_table():
    if not CHECKLIST.is_file():
        pytest.skip("the checklist of the guides is not beside this repository")
    rules = set(re.findall(r"^- \*\*(R\d{3})\*\*", CHECKLIST.read_text(encoding="utf-8"), re.MULTILINE))
    listed = Counter([*(rule.id for rule in RULES), *NEVER, *OUT_OF_SCOPE])
    assert set(listed) == rules
    assert not [name for name, times in listed.items() if times > 1]


@pytest.mark.parametrize("rule", [*NEVER, *OUT_OF_SCOPE])
def test_what_is_out_of_scope_is_not_written(rule):
    why, words = (NEVER | OUT_OF_SCOPE)[rule]
    assert why and words
    found = {word: [name for name, text in sources().items() if word in text] for word in words}
    assert not any(found.values()), f"{rule} needs its cases now: {found}"


@cache
def sources() -> dict[str, str]:
    paths = [
        p
        for name in WRITERS
        for p in (ROOT / name, *(ROOT / name).rglob("*"))
        if p.suffix in (".py", ".jinja", ".toml") and p.name != "elsewhere.toml"  # it says why they are not written
    ]
    return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths if p.is_file()}


# ---- what one look cannot say


def test_every_layout_of_every_form_adds_up():
    """The sizes multiply to the devices (R027), parts divide what they must, and pipelines keep whole gradients (R026)."""
    for devices, nodes in ((2, 1), (3, 1), (6, 1), (8, 1), (4, 2), (8, 3), (8, 4)):
        for model in (gates.PARTS_OF_3, llama(), gates.mixture(6, layers=4)):
            of = case(model=model, devices=devices, nodes=nodes, global_batch=48, seq_len=3072)
            for name, found in room(of).layouts.items():
                for x in found:
                    assert x.nodes * x.per_node == x.replicate * x.shard * x.tp * x.pp * x.cp, (name, x)
                    assert x.per_node <= devices and x.nodes <= nodes and of.workload.global_batch % x.dp == 0
                    assert all(n % x.tp == 0 for n in (model.heads, model.kv_heads, model.ffn)) and x.tp <= devices
                    assert of.workload.seq_len % x.cp == 0 and (x.dp * x.cp * x.tp) % x.ep == 0
                    assert x.pp == 1 or not STRATEGIES[x.strategy].reshards, (
                        name,
                        x,
                    )  # weights stay for every micro-batch


def test_r104_recomputes_no_more_than_it_must():
    """The more memory, the fewer layers are recomputed, down to none."""
    order = ("full", "every-2", "every-3", "every-4", "off")
    kinds = [
        plan(on(gpu("9.0", gib, 989, 3.35e12, "GPU"), llama(), train="lora", seq_len=8192, global_batch=1)).best.choice
        for gib in (24, 28, 32, 36, 40, 48, 64, 80)
    ]
    taken = [order.index(choice["checkpointing"]) for choice in kinds]
    assert taken == sorted(taken) and taken[-1] == order.index("off") and len(set(taken)) >= 3


def test_r108_weights_stay_on_the_device_while_they_fit():
    """The order of the guide: stage 2 or 3 with the optimizer offloaded, then the weights too, then a disk."""
    device, model = gpu("8.9", 24, 165, 1.0e12, "a 24 GiB GPU"), llama()
    taken = [plan(of).best.choice["offload"] for of in (on(device, medium()), on(device, model))]
    assert taken == ["optimizer-cpu", "all-cpu"]
    assert plan(on(device, model, host_gib=96, disks=fit.NVME)).best.choice["offload"].endswith("-nvme")


def test_r106_convergence_is_the_last_thing_touched():
    """More host memory: the states are offloaded and nothing is risked. Less of all: the least risk that is enough."""
    device = gpu("9.0", 22, 989, 3.35e12, "a 22 GiB GPU")
    risks = [plan(on(device, medium(), seq_len=1024, host_gib=gib)).best.risk for gib in (20, 256)]
    assert risks == [1, 0]


@pytest.mark.parametrize(("cores", "workers"), [(64, 4), (5, 4), (4, 3), (3, 2), (2, 1)])
def test_r401_workers_come_from_the_usable_cpus(cores, workers):
    told = written(pin(on(cores=cores), "data-loading=workers"))
    assert told["dataloader_num_workers"] == str(workers) and told["dataloader_prefetch_factor"] == "2"


def test_r401_r503_no_setting_where_it_is_of_no_use():
    assert refused("data-loading=workers", "no core is free")(on(cores=1))
    assert refused("data-loading=workers", "take a core")(on(gates.PLAIN_CPU))
    assert refused("cpu-threads=budget", "only the CPU that trains")(on())
    assert refused("cpu-threads=budget", "own count")(on(gates.PLAIN_CPU))


def test_r508_nothing_that_is_gone_is_emitted():
    gone = {"no_cuda", "use_ipex", "jit_mode_eval", "gradient_checkpointing", "group_by_length", "torch_dtype"}
    for device in (gates.H100, gates.T4, gates.PLAIN_CPU):
        for workload in ({}, {"train": "lora"}, {"task": "sft"}, {"mode": "infer"}):
            of = on(device, **workload)
            places = ("training_arguments", "model_arguments", "infer_model_arguments", "infer_generate_arguments")
            assert not gone & {name for place in places for name in written(of, place)}
