"""What a request may say of how tokens are chosen, and what the model's files say where it does not."""

from __future__ import annotations

import json
import sys

import pytest

BODY = {"model": "m", "prompt": "x"}


@pytest.fixture
def requests(load):
    load("fields")
    return load("serving/openai_requests", "openai_requests")


@pytest.mark.parametrize(
    "said",
    [
        *({"seed": seed} for seed in (-(1 << 63) - 1, 1 << 63, 1 << 70, 1.5, "1", True)),
        *({"top_k": count} for count in (-2, 1.5, 1 << 40)),
        *({"min_p": share} for share in (-0.1, 1.1, "0")),
        *({"repetition_penalty": factor} for factor in (0, -1, 11, 1e308, float("inf"))),
        {"temperature": 10**400},
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(requests, said):
    with pytest.raises(requests.Refused) as refused:
        requests.read_request(BODY | said, False, "m")
    assert refused.value.status == 400 and refused.value.field == next(iter(said))


def test_numbers_in_range_are_taken(requests):
    said = {"seed": (1 << 63) - 1, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.3}
    asked = requests.read_request(BODY | said, False, "m")
    assert (asked.seed, asked.top_k, asked.min_p, asked.repetition_penalty) == ((1 << 63) - 1, 0, 0.1, 1.3)


@pytest.mark.parametrize("seed, drawn_by", [(-1, (1 << 63) - 1), (-(1 << 63), 0), (0, 0), (7, 7)])
def test_seeds_are_those_of_openai_and_engines_get_none_below_0(requests, seed, drawn_by):
    assert requests.read_request(BODY | {"seed": seed}, False, "m").seed == drawn_by


def test_an_answer_may_come_back_as_it_was_given(requests):
    """OpenAI's has `annotations` and vLLM's `tool_calls`, both of nothing."""
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho", "refusal": None}]
    turns[1] |= {"annotations": [], "tool_calls": [], "audio": None}
    asked = requests.read_request({"model": "m", "messages": turns}, True, "m")
    assert asked.messages[1] == {"role": "assistant", "content": "Ho"}


@pytest.mark.parametrize(
    "message, words",
    [
        ({"role": "user", "content": None}, "a text is expected"),
        ({"role": "user"}, "a text is expected"),
        ({"role": "tool", "content": "4", "tool_call_id": "x"}, "role"),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, "tool_calls is not supported"),
        ({"role": "user", "content": [{"type": "text"}]}, "a text is expected"),
        ({"role": "user", "content": ["a"]}, "text alone"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "a text is expected"),
    ],
)
def test_messages_without_text_are_refused(requests, message, words):
    with pytest.raises(requests.Refused, match=words):
        requests.read_request({"model": "m", "messages": [message]}, True, "m")


def test_arguments_of_the_template_are_taken_and_those_of_its_caller_refused(requests):
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    given = {"enable_thinking": False, "documents": [{"text": "It is wide."}]}
    assert requests.read_request(body | {"chat_template_kwargs": given}, True, "m").template_arguments == given
    for wrong in ({"tools": []}, {"chat_template": "x"}, {"tokenize": False}, {"messages": []}, [], "x", 1):
        with pytest.raises(requests.Refused) as refused:
            requests.read_request(body | {"chat_template_kwargs": wrong}, True, "m")
        assert refused.value.status == 400 and refused.value.field.startswith("chat_template_kwargs")
    with pytest.raises(requests.Refused, match="Unrecognized"):  # a text has no template
        requests.read_request(BODY | {"chat_template_kwargs": given}, False, "m")


@pytest.mark.parametrize(
    "said, field",
    [
        ({"store": True}, "store"),
        ({"metadata": {"run": "7"}}, "metadata"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
    ids=str,
)
def test_what_only_openai_can_keep_or_do_is_refused(requests, said, field):
    with pytest.raises(requests.Refused, match="not supported") as refused:
        requests.read_request(BODY | said, False, "m")
    assert refused.value.status == 400 and refused.value.field == field


def test_what_asks_for_nothing_is_taken(requests):
    said = {"store": False, "metadata": {}, "service_tier": "auto", "user": "me", "prompt_cache_key": "k"}
    options = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
    assert requests.read_request(BODY | said | options, False, "m").include_usage


def test_fields_of_a_part_are_refused_like_those_of_a_message(requests):
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    with pytest.raises(requests.Refused, match=r"messages\[0\]\.content\.cache_control"):
        requests.read_request({"model": "m", "messages": [{"role": "user", "content": [part]}]}, True, "m")


def test_parts_of_text_are_one_text(requests):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    assert requests.read_request(body, True, "m").messages == [{"role": "user", "content": "a\nb"}]


@pytest.fixture
def defaults(load):
    for leaf, name in (("sources", "sources"), ("stop_tokens", "stop_tokens"), ("serving/prompts", "prompts")):
        load(leaf, name)
    return load("serving/generation_defaults", "generation_defaults")


ALL = frozenset({"top_k", "min_p", "repetition_penalty"})


@pytest.mark.parametrize(
    "own, applied, taken, left",
    [
        ({}, ALL, {}, []),
        (
            {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
            ALL,
            {"temperature": 0.7, "top_k": 20},
            [],
        ),
        ({"do_sample": True, "temperature": 0.7, "top_k": 20}, frozenset(), {"temperature": 0.7}, ["top_k 20"]),
        ({"temperature": 0.6, "top_k": 50}, ALL, {"temperature": 1.0}, []),
        ({"repetition_penalty": 1.05}, ALL, {"repetition_penalty": 1.05}, []),
        ({"num_beams": 4, "no_repeat_ngram_size": 0, "max_length": 20, "eos_token_id": 2}, ALL, {}, ["num_beams 4"]),
        ({"repetition_penalty": 0}, ALL, {}, ["repetition_penalty 0"]),
        ({"repetition_penalty": "1.1"}, ALL, {}, ["repetition_penalty '1.1'"]),
        ({"do_sample": True, "temperature": "0.7"}, ALL, {"temperature": 1.0}, ["temperature '0.7'"]),
        ({"do_sample": True, "top_k": 50.0, "min_p": 2.0}, ALL, {"top_k": 50}, ["min_p 2.0"]),
        ({"do_sample": True, "top_k": -1, "top_p": 0}, ALL, {"top_k": 0, "top_p": 0}, []),
        ({"do_sample": True, "top_k": 1}, frozenset(), {}, ["top_k 1"]),
        (
            {"no_repeat_ngram_size": 1, "min_new_tokens": 1, "typical_p": 0.9},
            ALL,
            {},
            ["min_new_tokens 1", "no_repeat_ngram_size 1"],
        ),
        ({"forced_bos_token_id": 5, "pad_token_id": 0}, ALL, {}, ["forced_bos_token_id 5"]),
        ({"num_beams": 1, "length_penalty": 2.0, "early_stopping": True, "output_scores": True}, ALL, {}, []),
        ({"token_healing": True, "num_assistant_tokens": 20}, ALL, {}, ["token_healing True"]),
    ],
)
def test_what_the_model_asks_is_done_or_said(defaults, tmp_path, own, applied, taken, left):
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    (tmp_path / "config.json").write_text("{}")
    found, rest = defaults.read_defaults({"model": str(tmp_path)}, applied)
    assert found.items() >= taken.items() and rest == left and "temperature" in found


@pytest.mark.parametrize(
    "own, said", [("[1]", "is no JSON object"), ('{"eos_token_id": "2"}', "eos_token_id '2' is no number")]
)
def test_a_file_of_settings_that_is_none_is_a_line(defaults, tmp_path, own, said):
    (tmp_path / "generation_config.json").write_text(own)
    with pytest.raises(SystemExit, match=said):
        sys.modules["prompts"].read_end_tokens(str(tmp_path), None, "generation_config.json")
