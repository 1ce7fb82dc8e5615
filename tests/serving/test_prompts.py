"""Tokens to text: never half a character, nothing after a stop, the same however the tokens come."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("transformers")
TEXT = "Grüße 😀👩‍👩‍👧 日本語\n\n  indented, e\u0301 <|im_end|> end"


@pytest.fixture
def prompts(load, model):
    load("sources")
    load("stop_tokens")
    return load("serving/prompts", "prompts")


@pytest.fixture
def smollm2(prompts, model):
    return prompts.Prompts({"model": str(model)})


def test_pieces_are_whole_characters_and_make_the_text(prompts, smollm2):
    tokens = smollm2.encode_text(TEXT)
    expected = smollm2.tokenizer.decode(tokens, skip_special_tokens=True)
    pieces = prompts.Pieces(smollm2)
    parts = [pieces.add([token]) for token in tokens]
    assert "".join(parts) + pieces.finish() == expected == smollm2.decode(tokens)
    assert prompts.UNREADABLE not in "".join(parts) and "" in parts  # bytes of an emoji are waited for
    halves = prompts.Pieces(smollm2)
    assert halves.add(tokens[:5]) + halves.add(tokens[5:]) + halves.finish() == expected


def test_any_tokens_make_the_text_that_the_tokenizer_makes(smollm2):
    draw = random.Random(0)
    for _ in range(200):
        tokens = [draw.randrange(len(smollm2.tokenizer)) for _ in range(50)]
        assert smollm2.decode(tokens) == smollm2.tokenizer.decode(tokens, skip_special_tokens=True)


def test_an_endless_half_character_is_not_held_for_ever(prompts, smollm2):
    half = smollm2.encode_text("😀")[0]
    pieces = prompts.Pieces(smollm2)
    assert prompts.UNREADABLE in pieces.add([half] * (2 * prompts.MOST_HELD))
    assert len(pieces.tokens) - pieces.start < 3 * prompts.MOST_HELD


def test_stops_are_held_back_and_cut(prompts, smollm2):
    tokens = smollm2.encode_text("one two three four")
    for stop, expected in (
        ("three", "one two "),
        ("o three f", "one tw"),
        ("threx", "one two three four"),
        ("one", ""),
    ):
        pieces = prompts.Pieces(smollm2, [stop, ""])
        shown = [pieces.add([token]) for token in tokens]
        text = "".join(shown) + pieces.finish()
        assert (text, pieces.stopped) == (expected, stop != "threx")
    pieces = prompts.Pieces(smollm2, ["four five"])
    assert pieces.add(tokens) == "one two three " and pieces.finish() == "four"


def test_messages_by_the_models_own_template(smollm2):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = smollm2.tokenizer.decode(smollm2.encode_messages(turns))
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert smollm2.stop_tokens == [2] and smollm2.tokenizer.decode([2]) == "<|im_end|>"


def test_a_base_model_says_that_it_has_no_template(smollm2):
    smollm2.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="/v1/completions"):
        smollm2.encode_messages([{"role": "user", "content": "Hi"}])


def test_what_a_template_refuses_is_said(smollm2):
    smollm2.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ValueError, match="roles must alternate"):
        smollm2.encode_messages([{"role": "user", "content": "Hi"}])


def test_tools_reach_the_template_or_are_refused(smollm2):
    """SmolLM2's has no place for them: what is asked with them would be answered as if they were not there."""
    tools = [{"type": "function", "function": {"name": "weigh", "parameters": {}}}]
    turns = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ValueError, match="leaves tools out"):
        smollm2.encode_messages(turns, tools)
    smollm2.tokenizer.chat_template = "{{ tools[0].function.name if tools }} {{ messages[0].content }}"
    assert smollm2.tokenizer.decode(smollm2.encode_messages(turns, tools)).strip() == "weigh Hi"


def test_tokens_that_end_an_answer(prompts, tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    assert prompts.read_end_tokens(tmp_path, None, "config.json") == [5]
    assert prompts.read_end_tokens(tmp_path, None, "generation_config.json") == []
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert prompts.read_end_tokens(tmp_path, None, "generation_config.json") == [5, 6]
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(SystemExit, match="no JSON"):
        prompts.read_end_tokens(tmp_path, None, "generation_config.json")
