"""What of the weights a job is compared by when it is resumed."""

from __future__ import annotations

import pytest


@pytest.fixture
def leaf(load):
    load("sources")
    return load("serving/weights_identity", "weights_identity")


def test_converted_weights_that_are_missing_are_named_as_such(leaf, tmp_path, monkeypatch):
    """Not as an output that cannot be written: the error of a file of the job has its name."""
    (tmp_path / "model").mkdir()
    config = {"model": str(tmp_path / "model"), "serving": {"converted": "weights"}}
    with pytest.raises(SystemExit, match="weights is not here: make the engine's weights with `make setup`"):
        leaf.describe_model(config, tmp_path)
    (tmp_path / "weights").mkdir()
    assert leaf.describe_model(config, tmp_path)["weights_sha256"]


def test_another_tokenizer_and_another_adapter_are_another_job(leaf, tmp_path):
    """Of a tokenizer in a folder of its own nothing was compared: its chat template was edited, and half of the rows asked otherwise."""
    for name in ("model", "tokenizer", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("one")
    config = {name: str(tmp_path / name) for name in ("model", "tokenizer", "adapter")}
    before = leaf.describe_model(config, tmp_path)
    for name in config:
        (tmp_path / name / "file").write_text("two")
        assert leaf.describe_model(config, tmp_path)["weights_sha256"] != before["weights_sha256"], name
        (tmp_path / name / "file").write_text("one")
    assert leaf.describe_model(config, tmp_path) == before
    assert leaf.describe_model(config | {"tokenizer": "owner/name"}, tmp_path)["tokenizer"] == "owner/name"
