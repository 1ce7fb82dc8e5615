"""A chat template that never ends, or fills the memory, ends the program in a line."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
RANGE = "{% for i in range(99999) %}"
DEEP, ENDS = RANGE * 3, "{% endfor %}" * 3
ENDLESS = {
    "writes without end": DEEP + "{{ messages[0].content }}" + ENDS,
    "computes without end": DEEP + ENDS,
    "writes more than memory holds": "{{ 'x' * 10**10 }}",
    "doubles": "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "only once it was answered": "{% if messages|length > 1 %}{{ 'x' * 10**10 }}{% endif %}",
}


@pytest.fixture
def limits(load, monkeypatch):
    leaf = load("template_limits")
    monkeypatch.setattr(leaf, "CPU_SECONDS", 1)
    monkeypatch.setattr(leaf, "MEMORY_BYTES", 1 << 28)
    return leaf


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_template_without_end_is_refused(limits, tokenizer, kind, capfd):
    tokenizer.chat_template = ENDLESS[kind]
    with pytest.raises(SystemExit, match="the model's chat template wrote no question and answer"):
        limits.check_template(tokenizer)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "template",
    [
        None,
        "",
        "{{ messages[0].content }}",
        "{{ raise_exception('turns of a system first') }}",
        "{% if %}",
        "{{ 1 / 0 }}",
    ],
)
def test_one_that_ends_or_refuses_is_left_to_its_caller(limits, tokenizer, template):
    tokenizer.chat_template = template
    limits.check_template(tokenizer)
