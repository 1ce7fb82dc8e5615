"""Tokenizer and chat template of others: what they hold is measured in a time that nothing in them can make long, or assumed and said."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from generator.errors import SourceError
from generator.inputs import token_child
from generator.inputs.chat_templates import find_chat_template, read_chat_templates, read_settings
from generator.inputs.data_files import read_data
from generator.inputs.lengths import count_lengths
from generator.inputs.model_files import read_model
from generator.inputs.token_child import TokenCounter, UnusableTokenizer, find_counter

MODEL = Path(__file__).parent.parent / "examples" / "models" / "smollm2-135m.json"


def write_tokenizer(path: Path, **changes: object) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    counter = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    path.write_text(json.dumps(json.loads(counter.to_str()) | changes))
    return path


def test_an_expression_that_never_ends(tmp_path, monkeypatch):
    """`plan` did not end; where the library gave up, it panicked through all of our handlers."""
    monkeypatch.setattr(token_child, "SECONDS", 3.0)
    evil = {"type": "Split", "pattern": {"Regex": "(a|a|aa)+$"}, "behavior": "Isolated", "invert": False}
    write_tokenizer(tmp_path / "tokenizer.json", pre_tokenizer=evil)
    (tmp_path / "config.json").write_text(MODEL.read_text())
    (tmp_path / "d.txt").write_text("a" * 300 + "b\n")
    data = read_data(str(tmp_path / "d.txt"), task="causal-lm")
    counted = count_lengths(data, read_model(str(tmp_path), offline=True), None)
    assert counted.tokens == data.tokens and not counted.lengths_counted
    assert "assumed: counting with its tokenizer: " in counted.length_source


def test_what_is_counted(tmp_path):
    split = {"type": "Whitespace"}
    counter = find_counter(write_tokenizer(tmp_path / "tokenizer.json", pre_tokenizer=split))
    assert counter is not None
    assert counter.count(["a a", "", "b a a"], special=False) == [2, 0, 3]
    assert counter.find_first_token() == "a"


@pytest.mark.parametrize("kind", ["a template that writes nothing", "a tokenizer that drops all words"])
def test_examples_without_a_token_are_estimated_and_that_is_said(tmp_path, kind):
    """It was a division by zero."""
    model = {"type": "BPE", "vocab": {}, "merges": []}
    write_tokenizer(tmp_path / "tokenizer.json", **({} if "template" in kind else {"model": model}))
    (tmp_path / "chat_template.jinja").write_text(
        "" if "template" in kind else "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    (tmp_path / "config.json").write_text(MODEL.read_text())
    turns = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}]
    (tmp_path / "d.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 3)
    data = read_data(str(tmp_path / "d.jsonl"), task="sft")
    counted = count_lengths(data, read_model(str(tmp_path), offline=True), None)
    assert counted.token_quantiles == data.token_quantiles and not counted.lengths_counted
    assert any(why in f"{counted.notes} {counted.length_source}" for why in ("it writes nothing", "makes no token of"))


@pytest.mark.parametrize("text", ["", "{}", "[" * 10_000, '{"model": 1}'])
def test_what_is_no_tokenizer(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UnusableTokenizer):
        TokenCounter(tmp_path / "tokenizer.json").count(["a"], special=False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_pipes_devices_and_endless_files_are_not_read(tmp_path):
    (tmp_path / "additional_chat_templates").mkdir()
    os.mkfifo(tmp_path / "additional_chat_templates" / "a.jinja")
    for name in ("tokenizer_config.json", "tokenizer.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "special_tokens_map.json").symlink_to("/dev/zero")
    assert find_chat_template(tmp_path) is False
    assert read_chat_templates(tmp_path) == {}
    assert (
        read_settings(tmp_path / "tokenizer_config.json") == read_settings(tmp_path / "special_tokens_map.json") == {}
    )
    assert find_counter(tmp_path / "tokenizer.json") is None
    (tmp_path / "chat_template.jinja").touch()
    os.truncate(tmp_path / "chat_template.jinja", 1 << 40)
    assert read_chat_templates(tmp_path) == {}


def test_one_that_is_cut_short_is_refused(tmp_path):
    """It was planned with "ended with 1" in a note, and the run found out."""
    whole = write_tokenizer(tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
    (tmp_path / "config.json").write_text(MODEL.read_text())
    (tmp_path / "d.txt").write_text("a" * 300)
    data = read_data(str(tmp_path / "d.txt"), task="causal-lm")
    with pytest.raises(SourceError, match=r"tokenizer\.json is not JSON"):
        count_lengths(data, read_model(str(tmp_path), offline=True), None)
