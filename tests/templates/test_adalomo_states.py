"""AdaLomo's moments and the number of its steps are in a checkpoint: its package keeps both where none looks for them."""

from __future__ import annotations

import pytest
from backward_trainers import list_weights, make_trainer

torch = pytest.importorskip("torch")
pytest.importorskip("lomo_optim")
pytest.importorskip("transformers")


@pytest.fixture
def make(load, monkeypatch, tmp_path):
    """A Trainer on the CPU: the package moves its states to the GPU, and asks for none else."""
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    keep_states = load("adalomo_states").keep_states

    def make_one(name: str, *, kept: bool = True, **arguments):
        trainer = make_trainer(tmp_path / name, in_backward=False, **{"optim": "adalomo"} | arguments)
        if kept:
            keep_states(trainer)
        return trainer

    return make_one


SAVED = {"save_strategy": "steps", "save_steps": 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_goes_on_with_the_states_that_it_had(make, tmp_path, dtype):
    def begin(name: str, **more):
        trainer = make(name, **SAVED, **more)
        trainer.model.to(dtype)
        return trainer

    first = begin("a")
    first.train()
    second = begin("a")
    second.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    states = [value for state in second.optimizer.state.values() for value in state.values()]
    assert len(states) > 10 and {value.dtype for value in states} == {torch.float32} and all(map(torch.any, states))
    assert second.optimizer.optimizer.step_num == 6
    assert list_losses(second)[3:] == list_losses(first)[3:]
    for name, weight in list_weights(first).items():
        assert torch.equal(list_weights(second)[name], weight), name


def test_what_the_package_alone_saves_is_nothing(make, tmp_path):
    """The reason for all this: when it fails, the leaf can go."""
    make("a", kept=False, **SAVED).train()
    saved = torch.load(tmp_path / "a" / "checkpoint-3" / "optimizer.pt", weights_only=True)
    assert saved["state"] == {}


def test_the_weights_are_those_of_the_package(make):
    runs = [make(name, kept=kept) for name, kept in (("a", False), ("b", True))]
    for trainer in runs:
        trainer.train()
    alone, kept = runs
    assert list_losses(alone) == list_losses(kept)
    for name, weight in list_weights(alone).items():
        assert torch.equal(list_weights(kept)[name], weight), name


def test_another_optimizer_is_left_alone(make):
    """--optim is the owner's."""
    make("a", optim="adamw_torch").train()


def list_losses(trainer) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]
