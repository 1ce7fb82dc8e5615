"""config.yaml as people edit it: a line that says what is wrong, and no traceback."""

from __future__ import annotations

import pytest
from leaves import load_leaf

pytest.importorskip("yaml")


@pytest.fixture
def read(tmp_path, monkeypatch):
    leaf = load_leaf("config_file")
    monkeypatch.setattr(leaf, "FILE", tmp_path / "config.yaml")

    def read(text: str | bytes):
        leaf.FILE.write_bytes(text if isinstance(text, bytes) else text.encode())
        return leaf.read_config()

    return read


def test_what_it_says(read):
    config = read("seq_len: 512\ntraining:\n  learning_rate: 1e-4\nearly_stopping: null\n")
    assert config == {"seq_len": 512, "training": {"learning_rate": "1e-4"}, "early_stopping": None}
    assert config.get("columns") is None and "columns" not in config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seq_len: 512\n  training: 3\n", "line 2: mapping values are not allowed here"),
        ("model: [a, b\n", "config.yaml, line 2: "),
        ("model: @here\n", "config.yaml, line 1: "),
        (b"model: \xff\n", "cannot be read"),
        ("", "no names with values"),
        ("- seq_len\n", "no names with values"),
        ("seq_len: abc\n", "seq_len is 'abc', not a whole number"),
        ("seq_len:\n", "seq_len is None, not a whole number"),
        ("seq_len: true\n", "seq_len is True, not a whole number"),
        ("seq_len: 2048.5\n", "seq_len is 2048.5, not a whole number"),
        ("skip_bad: 'no'\n", "skip_bad is 'no', not true or false"),
        ("training: 3\n", "training is 3, not names with values below it"),
        ("training:\n", "training is None, not names with values below it"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(read, text, says):
    with pytest.raises(SystemExit) as stop:
        read(text)
    assert says in str(stop.value) and "\n" not in str(stop.value)


def test_a_name_that_is_gone_is_named(read):
    config = read("model: here\n")
    with pytest.raises(SystemExit, match=r"config\.yaml has no seq_len: plan.json has it"):
        config["seq_len"]


def test_a_file_that_is_gone_is_named(tmp_path, monkeypatch):
    leaf = load_leaf("config_file")
    monkeypatch.setattr(leaf, "FILE", tmp_path / "config.yaml")
    with pytest.raises(SystemExit, match=r"config\.yaml cannot be read"):
        leaf.read_config()
