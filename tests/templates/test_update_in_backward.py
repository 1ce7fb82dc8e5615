"""An update in the backward pass makes the weights that the Trainer's own optimizer makes, and holds one gradient at a time."""

from __future__ import annotations

import subprocess
import sys

import projects
import pytest
from backward_trainers import STEPS, list_figures, list_weights, make_trainer, update_in_backward
from safetensors.torch import load_file

torch = pytest.importorskip("torch")
pytest.importorskip("bitsandbytes")
pytest.importorskip("transformers")


class CountGradients:
    """The most gradients that were held at once."""

    def __init__(self, model):
        self.weights = list(model.parameters())
        self.most = 0
        for weight in self.weights:
            weight.register_post_accumulate_grad_hook(self.count)

    def count(self, weight) -> None:
        self.most = max(self.most, sum(w.grad is not None for w in self.weights))


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("recomputes", [False, True])
def test_the_weights_are_those_of_the_ordinary_optimizer(tmp_path, tied, recomputes):
    """Losses, norms, learning rates and every weight, to the last bit; of the gradients one is held, not all."""
    runs = {}
    for in_backward in (False, True):
        trainer = make_trainer(
            tmp_path / str(in_backward), in_backward=in_backward, tied=tied, activation_checkpointing=recomputes
        )
        counted = CountGradients(trainer.model)
        trainer.train()
        runs[in_backward] = list_figures(trainer), list_weights(trainer), counted.most
    figures, weights, most = runs[False]
    assert len(figures) == STEPS and len({rate for *_, rate in figures}) > 3 and most == len(weights)
    assert [(loss, rate) for loss, _, rate in runs[True][0]] == [(loss, rate) for loss, _, rate in figures]
    assert [norm for _, norm, _ in runs[True][0]] == pytest.approx([norm for _, norm, _ in figures], rel=1e-5)
    for name, weight in weights.items():
        assert torch.equal(runs[True][1][name], weight), name
    assert runs[True][2] == 1


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_a_resumed_run_goes_on_with_the_states_that_it_had(tmp_path):
    reference = make_trainer(tmp_path / "a", in_backward=True)
    reference.train()
    first = make_trainer(tmp_path / "b", in_backward=True, save_strategy="steps", save_steps=3)
    first.train()
    (tmp_path / "b" / "checkpoint-6").rename(tmp_path / "last")
    second = make_trainer(tmp_path / "b", in_backward=True, save_strategy="steps", save_steps=3)
    second.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-3"))
    states = second.optimizer.state
    assert {v["state1"].dtype for v in states.values()} == {torch.uint8, torch.float32}
    assert {v["step"] for v in states.values()} == {STEPS}
    assert list_figures(second)[3:] == list_figures(reference)[3:]
    for name, weight in list_weights(reference).items():
        assert torch.equal(list_weights(second)[name], weight), name


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("optim", ["adamw_torch", "paged_lion_8bit"])
def test_a_run_with_another_optimizer_is_resumed_too(tmp_path, optim):
    """--optim is the owner's: the states of others are loaded as they load them."""
    saved = {"in_backward": True, "optim": optim, "save_strategy": "steps", "save_steps": 3}
    first = make_trainer(tmp_path, **saved)
    first.train()
    second = make_trainer(tmp_path, **saved)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert list_figures(second)[3:] == list_figures(first)[3:]
    for name, weight in list_weights(first).items():
        assert torch.equal(list_weights(second)[name], weight), name


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_the_embedding_has_states_of_32_bits(tmp_path):
    """What the cost model counts (embedding_bytes of generator/case/optimizer_states.py)."""
    trainer = make_trainer(tmp_path, in_backward=True)
    trainer.train()
    model = trainer.model
    by_name = {name: trainer.optimizer.state[weight]["state1"] for name, weight in model.named_parameters()}
    assert by_name["model.embed_tokens.weight"].dtype == torch.float32
    assert by_name["lm_head.weight"].dtype == torch.uint8
    assert by_name["model.layers.0.mlp.up_proj.weight"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}, "gradient_accumulation_steps must be 1"),
        ({"max_grad_norm": 1.0}, "max_grad_norm must be 0, not 1.0"),
    ],
)
def test_what_would_be_another_update_is_refused(tmp_path, arguments, says):
    with pytest.raises(SystemExit, match=says):
        make_trainer(tmp_path, in_backward=True, **arguments)


def test_a_scaled_loss_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, in_backward=False)
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(SystemExit, match="take bf16"):
        update_in_backward(trainer)


@pytest.mark.slow
def test_an_emitted_project_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    """The weights at the end are those of a run that nobody killed."""
    monkeypatch.setattr(projects, "MODEL", projects.MODEL | {"hidden_size": 128, "intermediate_size": 256})
    pins = (("compile", "off"), ("optimizer", "in-backward-paged-adamw-8bit"))
    project = projects.render_small_project(tmp_path, max_steps=12, from_scratch=True, pins=pins)

    def start(name: str) -> subprocess.Popen:
        command = [sys.executable, "train.py", "--save_steps", "4", "--eval_strategy", "no", "--output_dir", name]
        return subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    alone = start("alone")
    lines = alone.communicate()[0]
    assert alone.returncode == 0 and "as planned: " in lines and "states uint8" in lines, lines
    assert "grad 0 " not in lines
    killed = start("killed")
    for line in killed.stdout:
        if line.startswith("step  6/12"):
            killed.kill()
    killed.wait()
    resumed = start("killed")
    lines = resumed.communicate()[0]
    assert resumed.returncode == 0 and "resuming from" in lines and "checkpoint-4" in lines, lines
    weights = [load_file(project / name / "model.safetensors") for name in ("alone", "killed")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
