"""Projects of PyTorch/XLA and TensorFlow train, resume and answer on a CPU, in environments of their own: `make test-xla`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from engine_projects import drop_weights

from generator.cli import perfgen

pytestmark = [pytest.mark.xla, pytest.mark.slow]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEXT = next((ROOT / "templates" / "project").glob("*sample*")) / "text.txt"
NEW_TOKENS = 12
KINDS = {
    "torch": ("train-xla", "untied llama", ["--framework", "pytorch-xla", "--hardware", "cpu:2"], 1),
    "torch-sharded": ("train-xla", "llama", ["--hardware", "tpu-v5e-8"], 4),
    "tensorflow": ("train-tensorflow", "gpt2", ["--framework", "tensorflow", "--hardware", "cpu:2"], 1),
}
"""The environment, the model, what is asked for, and how many devices the CPU runtime has."""


def make_model(kind: str, folder: Path) -> Path:
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    ends = {"vocab_size": 49152, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    if kind == "gpt2":
        dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
        model = GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=256, **ends, **dropout))
    else:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 256}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **ends, tie_word_embeddings=kind != "untied llama"))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(Path(os.environ["DEMO_CACHE"]) / "smollm2-135m-instruct").save_pretrained(folder)
    return folder


class Project:
    """One on this machine, and what runs it."""

    def __init__(self, kind: str, folder: Path):
        role, model, asked, self.devices = KINDS[kind]
        self.framework = kind.split("-")[0]
        self.python = Path(os.environ["PERFGEN_XLA"]) / role / "bin" / "python"
        self.folder = folder / "project"
        text = folder / "text.txt"
        text.write_text(TEXT.read_text(encoding="utf-8")[:200_000], encoding="utf-8")
        words = ["--model", str(make_model(model, folder / "model")), "--data", str(text), "--seq-len", "64"]
        more = ["--global-batch", "8", "--learning-rate", "1e-3", "--offline", "--no-smoke", *asked]
        done = CliRunner().invoke(perfgen, ["init", str(self.folder), *words, *more])
        assert done.exit_code == 0, done.output

    def environment(self) -> dict[str, str]:
        more = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(self.devices), "OMP_NUM_THREADS": "1"}
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more

    def start(self, name: str, *more: str) -> subprocess.Popen[str]:
        """A training that goes on until it is told to end."""
        return subprocess.Popen(
            [self.python, "train.py", "--output_dir", name, *self.exact(), *more],
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str | Path, code: int = 0) -> str:
        done = subprocess.run(
            [self.python, *map(str, words)],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr if code else done.stdout

    def exact(self) -> tuple[str, ...]:
        rows = str(8 // self.devices)
        return "--bf16", "False", "--gradient_accumulation_steps", "1", "--per_device_train_batch_size", rows

    def train(self, name: str, steps: int, *more: str, code: int = 0) -> str:
        return self.run("train.py", "--max_steps", str(steps), "--output_dir", name, *self.exact(), *more, code=code)

    def read(self, name: str) -> dict:
        return json.loads((self.folder / name / "run.json").read_text())


@pytest.fixture(scope="module", params=list(KINDS))
def project(request, tmp_path_factory) -> Project:
    return Project(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def eager(project) -> dict:
    kind = "torch" if project.framework == "torch" else "tensorflow"
    # eager PyTorch in this environment: another build than that of PyTorch/XLA
    return json.loads(project.run(HERE / "eager.py", kind, "8", "4", str(NEW_TOKENS)).splitlines()[-1])


def test_losses_are_those_of_eager_and_each_graph_is_compiled_once(project, eager):
    project.train("runs", 4)
    report = project.read("runs")
    assert report["losses"] == pytest.approx(eager["losses"], abs=2e-4)
    assert report["losses"][-1] < report["losses"][0]
    assert report["compiled"]["compilations"] == 2
    assert len(report["compiled"]["shapes"]["training step"]) == 1
    assert report["eval"]["after"]["loss"] < report["eval"]["before"]["loss"]
    if project.framework == "torch":
        devices = report["devices"]
        assert (devices["count"], devices["divided"] > 0) == (project.devices, project.devices > 1)


def test_a_run_that_was_ended_goes_on_as_if_it_was_not(project):
    """Ended after its second step, whose checkpoint is there; the others are as those of the whole run."""
    project.train("half", 4, "--save_steps", "2")
    whole = project.read("half")["losses"]
    newest = project.folder / "half" / "checkpoint-4"
    newest.rename(newest.with_name("away"))
    project.train("half", 4, "--save_steps", "2")
    resumed = project.read("half")
    assert resumed["resumed_from"] == 2
    assert resumed["losses"] == pytest.approx(whole, abs=1e-5)


def test_a_signal_ends_it_behind_a_step_that_is_saved(project):
    """The machine is taken back: what follows is as of a run that nobody ended."""
    many = ("--max_steps", "1000", "--save_steps", "1000", "--lr_scheduler_type", "constant", "--eval_strategy", "no")
    running = project.start("taken", *many)
    assert running.stdout
    for line in running.stdout:
        if line.startswith("step 2 of"):
            running.send_signal(signal.SIGTERM)
            break
    said = running.stdout.read()
    assert running.wait(300) == 143, said
    step = int(re.findall(r"stopped by SIGTERM after step (\d+): run again to go on", said)[0])
    assert sorted(path.name for path in (project.folder / "taken").iterdir() if path.is_dir()) == [f"checkpoint-{step}"]
    more = ("--save_steps", "1000", "--lr_scheduler_type", "constant")
    project.train("taken", step + 2, *more)
    project.train("untaken", step + 2, *more)
    assert project.read("taken")["resumed_from"] == step
    assert project.read("taken")["losses"] == pytest.approx(project.read("untaken")["losses"], abs=1e-5)


def test_a_checkpoint_of_another_run_is_refused(project):
    assert "is of another run: seed" in project.train("half", 6, "--seed", "7", code=1)


def test_tokens_are_those_of_eager(project, eager):
    report = project.folder / "answer.json"
    project.run(
        "infer.py", "--base", "--prompt", "It was a dark night, and", "--max_new_tokens", NEW_TOKENS, "--report", report,
        *(("--raw",) if project.framework == "torch" else ()),
    )  # fmt: skip
    answer = json.loads(report.read_text())
    end = eager["tokens"].index(2) + 1 if 2 in eager["tokens"] else None
    assert answer["tokens"] == eager["tokens"][:end]
    assert answer["compiled"]["compilations"] == len(answer["compiled"]["shapes"])


def test_a_model_that_lacks_weights_is_not_filled_up(project):
    """Transformers makes up what is missing, and its log alone says so."""
    away = project.folder.parent / "lacking"
    shutil.copytree(project.folder.parent / "model", away)
    drop_weights(away, "h.1." if project.framework == "tensorflow" else "layers.1.")
    (away / "run.json").write_text("{}")
    said = project.run("infer.py", "--model", away, code=1)
    assert "weights that its config.json tells of" in said and "Traceback" not in said
    model = project.folder.parent / "model"
    model.rename(model.with_name("whole"))
    away.rename(model)
    said = project.train("lacking", 1, code=1)
    assert "weights that its config.json tells of" in said and "Traceback" not in said
