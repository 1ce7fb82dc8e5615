"""Projects planned for NVIDIA's GPUs, run as they are on CUDA devices whose memory is the host's (host_cuda/device.cpp).

A tensor left on the host, a generator of the wrong device, a collective that NCCL does not take: what every run on a CPU forgives ends
here as on a GPU. Losses are those of one process on the CPU. It cannot show what kernels compute, how streams race or how NCCL waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from host_cuda.build import build, explain_obstacle
from test_loop_projects import SAVES, compare_models, count_seeds, describe_run, make, read_report, run_all
from test_loop_projects import inputs as inputs

pytestmark = pytest.mark.host_cuda
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "perfgen-host-cuda"
GPU = "h100-sxm-80gb"
FORMS = {
    "tensor": (2, "dense"),
    "pipeline": (2, "dense"),
    "context": (2, "dense"),
    "context-fsdp2": (2, "dense"),
    "ulysses": (2, "dense"),
    "expert": (2, "mixture"),
    "expert-fsdp2": (2, "mixture"),
    "tensor-fsdp2": (4, "dense"),
    "tensor-pipeline": (4, "dense"),
    "pipeline-ddp": (4, "dense"),
    "pipeline-fsdp2": (4, "dense"),
}
"""Every form with a loop of its own: its processes and model."""


@pytest.fixture(scope="session")
def devices() -> dict[str, str]:
    """Variables of a process that has GPUs."""
    if obstacle := explain_obstacle():
        pytest.skip(obstacle)
    return {"PYTHONPATH": str(build(CACHE)), "HOST_CUDA_DEVICES": "4"}


def run_script(script: str, devices: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | devices, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


REFUSED = """
import torch

weight, row = torch.ones(4, 4, device="cuda", requires_grad=True), torch.ones(4)
loss = weight.sum()
for line in (
    "torch.stack([loss.detach(), row.sum()])",  # an evaluation of every own loop did so
    "weight * row",
    "weight @ row",
    "torch.cat([weight, row[None]])",
    "torch.where(weight > 0, weight, row)",
    "torch.nn.functional.embedding(torch.tensor([1]), weight)",
    "weight.gather(0, torch.zeros(1, 4, dtype=torch.long))",
    "weight.to('cuda:1') + weight",
    "row[torch.tensor([0], device='cuda')]",
    "torch.randn(4, device='cuda', generator=torch.Generator())",
    "torch.randn(4, generator=torch.Generator('cuda'))",
    "weight.pin_memory()",
    "weight.detach().numpy()",
    "torch.cuda.set_rng_state(torch.cuda.get_rng_state().cuda())",
    "torch.empty(1 << 40, device='cuda')",
):
    try:
        eval(line)
    except (RuntimeError, TypeError) as error:
        continue
    raise SystemExit(f"{line}: computed")
loss.backward()
assert torch.equal((weight * row.sum()).cpu(), torch.full((4, 4), 4.0)) and weight[torch.tensor([0, 1])].is_cuda
assert weight.grad.is_cuda and torch.accelerator.current_accelerator().type == "cuda"
with torch.autocast("cuda", torch.bfloat16):
    assert (weight @ weight).dtype == torch.bfloat16
with torch.autocast("cpu", torch.bfloat16):
    assert (weight @ weight).dtype == torch.float32
late = weight.detach().to("cpu", non_blocking=True)
assert not torch.equal(late, torch.ones(4, 4))
torch.cuda.synchronize()
assert torch.equal(late, torch.ones(4, 4)) and row.pin_memory().is_pinned()
"""


def test_devices_refuse_what_gpus_refuse(devices):
    run_script(REFUSED, devices)


@pytest.fixture(scope="module")
def trained(inputs, devices, tmp_path_factory) -> dict[str, Path]:
    """Each form once whole, and once ended by SIGTERM after its third step and begun again; one process of the CPU for each model."""
    folder = tmp_path_factory.mktemp("forms")
    made = {model: make(inputs, folder / model, "single", 1, model) for model in ("dense", "mixture")}
    run_all(folder, [describe_run(project, 1) for project in made.values()])
    runs = []
    for form, (count, model) in FORMS.items():
        for name in (form, f"{form}-stopped"):
            made[name] = make(inputs, folder / name, form, count, model, hardware=f"{count}x{GPU}")
        stopped = made[f"{form}-stopped"]
        runs += [describe_run(made[form], count), describe_run(stopped, count, *SAVES, kill=(0, 3, "stop"))]
        runs.append(describe_run(stopped, count, *SAVES))
    run_all(folder, runs, devices)
    return made


@pytest.mark.parametrize("form", FORMS)
def test_a_form_has_the_losses_of_one_process(trained, form):
    count, model = FORMS[form]
    report, alone = read_report(trained[form]), read_report(trained[model])
    assert json.loads((trained[form] / "codes.json").read_text()) == [0] * count
    output = (trained[form] / "log-0").read_text()
    assert f"world size {count}, backend nccl, device cuda" in output and "as planned: trained float32" in output
    assert report["losses"] == pytest.approx(alone["losses"], abs=1e-4)
    pairs = zip(report["evaluations"], alone["evaluations"], strict=True)
    assert all(row["loss"] == pytest.approx(other["loss"], abs=1e-4) for row, other in pairs)
    compare_models(trained[form], trained[model])


@pytest.mark.parametrize("form", FORMS)
def test_a_stopped_run_goes_on_to_the_same_weights(trained, form):
    stopped, whole = trained[f"{form}-stopped"], trained[form]
    report = read_report(stopped)
    assert json.loads((stopped / "codes.json").read_text()) == [0] * FORMS[form][0]
    assert report["resumed_from"] == 3
    assert count_seeds(stopped) == count_seeds(whole)
    assert report["losses"] == pytest.approx(read_report(whole)["losses"], abs=1e-6)
    compare_models(stopped, whole)


BF16 = {"precision": "bf16", "loss": "chunked"}
WORKS = {
    "pretraining": ("single", 1, {}, BF16),
    "offloaded-activations": ("single", 1, {}, BF16 | {"checkpointing": "offloaded"}),
    "several-texts-a-row": ("single", 1, {"task": "sft"}, BF16 | {"packing": "varlen"}),
    "dora": ("single", 1, {"task": "sft", "train": "lora", "adapter": "dora"}, BF16),
    "ddp": ("ddp", 2, {"task": "sft"}, BF16 | {"packing": "varlen"}),
    "fsdp2": ("fsdp2", 2, {"task": "sft", "train": "lora"}, BF16 | {"packing": "varlen"}),
}
"""What the Trainer trains: its strategy, processes, what is asked for and pinned."""


def run_project(project: Path, devices: dict[str, str], *command: str) -> str:
    """As on a user's machine, by its own launcher."""
    variables = devices | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(project / "cache")}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, cwd=project, env=os.environ | variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


@pytest.mark.parametrize("work", WORKS)
def test_the_trainer_trains_and_answers(inputs, devices, tmp_path, work):
    """Whole, with evaluations and the best model read again; infer.py asks what it has saved."""
    form, count, asked, pins = WORKS[work]
    project = make(inputs, tmp_path / "p", form, count, "dense", asked, hardware=f"{count}x{GPU}", **pins)
    devices = devices | {"HOST_CUDA_DEVICES": str(count)}
    processes = yaml.safe_load((project / "config.yaml").read_text()).get("processes", {})
    run_project(project, devices, *processes.get("launcher", "python").split(), "train.py")
    report = json.loads((project / "runs/run.json").read_text())
    assert len(report["losses"]) == 6 and report["processes"] == count
    assert report["evaluations"][-1]["loss"] < report["evaluations"][0]["loss"]
    answer = run_project(project, devices | {"HOST_CUDA_DEVICES": "1"}, "python", "infer.py", "--prompt", "To be")
    assert "tokens/s" in answer
