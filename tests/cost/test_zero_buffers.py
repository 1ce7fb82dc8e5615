"""The parts of ZeRO's memory, on the device and on the host, against the buffers that DeepSpeed's optimizers hold by name.

Two processes on the CPU train 21M parameters with the deepspeed.json that is emitted; zero_buffers.py says where each buffer lies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from making import H100, SMALL, case, llama

from generator.case.layout import Layout
from generator.cost.deepspeed import count_host_traffic
from generator.cost.estimate import GIB
from generator.cost.execution import Execution
from generator.cost.host import compute_offloaded
from generator.cost.shape import build_shape
from generator.cost.static_memory import compute_static_memory
from generator.emit.parallel import nest_keys
from generator.techniques.base import find_technique
from generator.techniques.edits import merge_edits
from tests.cost.models import spec

WORLD, HIDDEN, LAYERS = 2, 1024, 20
OFFLOADS = {"none": ("none", "none"), "optimizer-cpu": ("cpu", "none"), "all-cpu": ("cpu", "cpu")}
FORMS = (
    ("zero1", "none"),
    ("zero2", "none"),
    ("zero2", "optimizer-cpu"),
    ("zero3", "none"),
    ("zero3", "optimizer-cpu"),
    ("zero3", "all-cpu"),
)
ROWS = [(*form, "bf16", n) for form in FORMS for n in (1, 2)]
ROWS += [(*form, "fp32", 2) for form in (("zero2", "optimizer-cpu"), ("zero3", "all-cpu"))]


def emit_settings(stage: str, offload: str, precision: str) -> dict:
    """The deepspeed.json of a project."""
    layout = Layout(strategy=stage, per_node=WORLD, shard=WORLD)
    of = replace(case(H100, llama(**SMALL), train="full", devices=WORLD), layout=layout)
    names = {"parallelism": stage, "offload": offload, "precision": precision}
    techniques = [find_technique(axis, name) for axis, name in names.items()]
    assert all(techniques)
    return nest_keys(merge_edits([(t.id, t.edits(of)) for t in techniques if t]).deepspeed)


def describe(stage: str, offload: str, precision: str, accumulation: int) -> Execution:
    """That run as the cost model sees it."""
    states, weights = OFFLOADS[offload]
    mixed = {"weights_dtype": "float32", "autocast_dtype": "bfloat16", "sums_dtype": "float32"}
    return Execution(
        **(mixed if precision == "bf16" else {}),
        strategy=stage,
        dp=WORLD,
        accumulation=accumulation,
        offload_optimizer=states,
        offload_params=weights,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[tuple, dict]:
    pytest.importorskip("deepspeed")
    folder = tmp_path_factory.mktemp("buffers")
    rows = [
        {"config": emit_settings(stage, offload, precision), "bf16": precision == "bf16", "accumulation": n}
        for stage, offload, precision, n in ROWS
    ]
    (folder / "in.json").write_text(json.dumps(rows))
    script = Path(__file__).with_name("zero_buffers.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [*command, str(script), str(folder / "in.json"), str(folder / "out.json")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((folder / "out.json").read_text())
    assert report["world"] == WORLD
    assert report["params"] == LAYERS * HIDDEN**2
    return dict(zip(ROWS, report["rows"], strict=True))


def add_up(buffers: dict[str, int]) -> float:
    return float(sum(buffers.values()))


def cost(stage: str, offload: str, precision: str, accumulation: int):
    """The static parts of a model of linears only, and what is on the host for each process, in bytes."""
    params = LAYERS * HIDDEN**2
    sizes = spec("llama", LAYERS, HIDDEN, 8, 8, 256, 1, 12 * params, gated=False)  # room for all that it has linears of
    shape = replace(build_shape(sizes, "causal-lm", 0), params=params, embedding=0, head=0)
    largest = max(float(x.inputs * x.outputs) for x in shape.linears)
    assert largest == HIDDEN**2
    run = describe(stage, offload, precision, accumulation)
    static = compute_static_memory(shape, run)
    host = sum(compute_offloaded(shape, run, static, WORLD).values()) * GIB / WORLD
    return static, host


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "offload", "precision", "accumulation"), ROWS)
def test_parts_agree_with_the_named_buffers(measured, stage: str, offload: str, precision: str, accumulation: int):
    row = measured[stage, offload, precision, accumulation]
    static, host = cost(stage, offload, precision, accumulation)
    buckets = cost(stage, "none", precision, accumulation)[0].reduce_buckets  # they are gone before the step
    before = static.weights + static.states + static.gradients + static.reduce_buckets - buckets
    assert add_up(row["before step"]["device"]) == pytest.approx(before, rel=0.02, abs=1e5), row["before step"]
    assert add_up(row["before step"]["host"]) == pytest.approx(host, rel=0.02, abs=1e5), row["before step"]
    kept = before - static.gradients + static.lasting_gradients
    assert add_up(row["kept"]["device"]) == pytest.approx(kept, rel=0.02, abs=1e5), row["kept"]
    assert add_up(row["kept"]["host"]) == pytest.approx(host, rel=0.02, abs=1e5), row["kept"]
    # nothing else is alive that no name has
    named = add_up(row["before step"]["device"]) + add_up(row["before step"]["host"])
    if stage != "zero3":  # its reduce bucket stays, and the engine's hooks keep old models
        assert row["live"] <= 1.02 * named  # less, where something of the run before has gone meanwhile


def test_what_offloading_takes_of_the_host():
    """Bytes per parameter in 16 bits with float32 sums: 18 and 20 with the optimizer there, 22 with the weights too."""
    params = LAYERS * HIDDEN**2
    expected = {("zero2", "optimizer-cpu"): 18, ("zero3", "optimizer-cpu"): 20, ("zero3", "all-cpu"): 22}
    for (stage, offload), each in expected.items():
        static, host = cost(stage, offload, "bf16", 4)
        assert WORLD * host / params == pytest.approx(each, rel=0.02), (stage, offload)
        # stage 2 sums on the device, wherever the optimizer is
        assert static.gradients == (4.0 * params / WORLD if stage == "zero2" else 0.0)


def test_gradients_cross_the_link_once_a_step_or_in_every_micro_batch():
    once = [count_host_traffic(describe("zero2", "optimizer-cpu", "bf16", n)).gradients for n in (1, 8)]
    assert once == [4.0, 4.0]
    # there in 16 bits and back in 32, then both ways in 32 for each further one, and to the master at the end
    each = [count_host_traffic(describe("zero3", "optimizer-cpu", "bf16", n)).gradients for n in (1, 2, 8)]
    assert each == [10.0, 18.0, 66.0]
    # weights come back unless they stay on the host
    back = [count_host_traffic(describe("zero3", where, "bf16", 1)).weights for where in ("optimizer-cpu", "all-cpu")]
    assert back == [2.0, 0.0]


def test_the_emitted_settings():
    """Float32 sums everywhere; at stage 1, where they are of the whole model, 16-bit gradients go as they come."""
    for stage, offload in FORMS:
        settings = emit_settings(stage, offload, "bf16")
        assert settings["data_types"] == {"grad_accum_dtype": "fp32"}
        assert settings["bf16"].get("immediate_grad_update", False) == (stage == "zero1")
