"""What each of four processes really keeps under DDP, FSDP2, HSDP and ZeRO, against the model's division of the states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from generator.cost.execution import Execution
from generator.cost.shape import build_shape
from generator.cost.static_memory import compute_static_memory
from tests.cost.models import spec

WORLD = 4
TORCH = ("ddp", "fsdp_full_shard", "fsdp_shard_grad_op", "hsdp")
ZERO = ("zero1", "zero2", "zero3")
CASES = [(s, mixed, n) for s in (*TORCH, *ZERO) for mixed in (True, False) for n in (1, 2)]
pytestmark = pytest.mark.slow


def _run(strategies: tuple[str, ...], out: Path) -> dict[tuple, dict]:
    script = Path(__file__).with_name("ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [*command, str(script), str(out), *strategies], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(out.read_text())
    assert report["world"] == WORLD
    return {(r["strategy"], r["mixed"], r["accumulation"]): {**r, "params": report["params"]} for r in report["rows"]}


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict[tuple, dict]:
    folder = tmp_path_factory.mktemp("ranks")
    return _run(TORCH, folder / "torch.json")


@pytest.fixture(scope="module")
def measured_zero(tmp_path_factory) -> dict[tuple, dict]:
    pytest.importorskip("deepspeed")
    return _run(ZERO, tmp_path_factory.mktemp("ranks") / "zero.json")


def fixed(strategy: str, mixed: bool, accumulation: int, params: int):
    """A model whose blocks hold everything: ends of one row."""
    sizes = spec("llama", 8, 256, 4, 4, 1024, 1, params, gated=False)
    zero = strategy in ZERO
    run = Execution(
        weights_dtype="bfloat16" if zero and mixed else "float32",
        autocast_dtype="bfloat16" if mixed and not zero else None,
        strategy=strategy,
        dp=WORLD,
        dp_shard=WORLD // 2 if strategy == "hsdp" else 0,
        accumulation=accumulation,
    )
    return compute_static_memory(build_shape(sizes, "causal-lm", 0), run)


@pytest.mark.parametrize(("strategy", "mixed", "accumulation"), CASES)
def test_what_a_process_keeps(strategy: str, mixed: bool, accumulation: int, request):
    row = request.getfixturevalue("measured_zero" if strategy in ZERO else "measured")[strategy, mixed, accumulation]
    params = row["params"]
    model = fixed(strategy, mixed, accumulation, params)
    held = model.weights + model.states + (model.reduce_buckets if strategy == "ddp" else 0.0)
    held += model.gradients if strategy == "zero3" else 0.0  # it never frees its part of the gradients
    room = 0.55 * params  # bytes: the float32 copy of a block (FSDP holds on to the last one), a bucket
    assert row["kept"] == pytest.approx(held, abs=room)
    divided = WORLD if strategy == "zero1" else 1
    gradients = 0.0 if strategy == "zero3" else model.gradients / divided
    late = 0.2 * params if strategy in ZERO else 0.0  # buckets whose reduction, beside the backward pass, has not ended
    assert row["before step"] == pytest.approx(held + gradients, abs=room + late)
    if strategy in ZERO:
        assert row["step"] <= held + gradients + model.step_temporary + 0.65 * params
