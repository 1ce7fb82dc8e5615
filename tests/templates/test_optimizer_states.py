"""What an optimizer keeps or trains besides tensors: read back by a resumed run, and saved as it was learned."""

from __future__ import annotations

from types import SimpleNamespace as Values

import pytest
from leaves import load_leaf, make_control, make_state
from rules.table import on, pin, plan

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


class Projector:
    """As galore-torch and apollo-torch have one."""

    def __init__(self, matrix):
        self.rank, self.ortho_matrix = 2, matrix


def test_a_projection_is_read_back_and_moved_to_its_weight(tmp_path):
    """GaLore's and APOLLO's optimizer.pt was taken for damaged: every resume began at step 1."""
    torch.save({"state": {0: {"projector": Projector(torch.ones(2, 4))}}}, tmp_path / "optimizer.pt")
    callback = load_leaf("projections").RestoreProjections(Projector)
    read = torch.load(tmp_path / "optimizer.pt", weights_only=True)["state"][0]
    assert read["projector"].ortho_matrix.tolist() == [[1.0] * 4] * 2
    pair = Projector([torch.ones(2), torch.ones(2)])
    weights = [torch.nn.Parameter(torch.empty(2, 2, device="meta")) for _ in range(3)]
    states = dict(zip(weights, (read, {"projector": pair}, {"step": 1}), strict=True))
    callback.on_train_begin(None, make_state(), make_control(), optimizer=Values(state=states))
    assert read["projector"].ortho_matrix.device.type == "meta"
    assert [part.device.type for part in pair.ortho_matrix] == ["meta", "meta"]


@pytest.mark.parametrize(("step", "saves", "averaged"), [(3, True, True), (8, False, True), (3, False, False)])
def test_what_is_saved_of_schedule_free_is_the_average(step, saves, averaged):
    calls = []
    control, optimizer = make_control(), Values(eval=lambda: calls.append("average"))
    control.should_save = saves
    state = make_state(global_step=step)
    load_leaf("averaged_weights").SaveAveragedWeights().on_step_end(None, state, control, optimizer=optimizer)
    assert bool(calls) == averaged


@pytest.mark.parametrize(
    ("name", "callback"),
    [
        ("galore", "RestoreProjections(GaLoreProjector)"),
        ("apollo", "RestoreProjections(GradientProjector, GaLoreProjector)"),
        ("schedule-free", "SaveAveragedWeights()"),
    ],
)
def test_a_project_has_what_its_optimizer_needs(name, callback):
    edits = plan(pin(on(), f"optimizer={name}")).edits
    assert callback in edits.callbacks
    imported = {word for line in edits.imports for word in line.partition(" import ")[2].split(", ")}
    assert set(callback.replace("(", " ").replace(")", "").replace(",", "").split()) <= imported
