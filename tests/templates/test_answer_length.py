"""An answer has room in the model: more positions than it has end GPT-2's models in an error of an embedding."""

import pytest

pytest.importorskip("transformers")
from transformers import BloomConfig, GPT2Config, LlamaConfig, XLNetConfig


@pytest.mark.parametrize(
    ("config", "prompt_tokens", "new_tokens", "fits"),
    [
        (GPT2Config(n_positions=64), 10, 54, 54),
        (GPT2Config(n_positions=64), 10, 128, 54),
        (LlamaConfig(max_position_embeddings=40), 39, 128, 1),
        (BloomConfig(), 5000, 128, 128),
        (XLNetConfig(), 5000, 128, 128),  # -1 positions
    ],
)
def test_an_answer_has_the_positions_that_are_left(load, capsys, config, prompt_tokens, new_tokens, fits):
    assert load("answer_length").fit_answer(config, prompt_tokens, new_tokens) == fits
    assert (f"{fits} new tokens at most" in capsys.readouterr().err) == (fits < new_tokens)


@pytest.mark.parametrize(
    ("prompt_tokens", "said"), [(0, "no tokens"), (64, "64 positions: no room"), (99, "99 tokens")]
)
def test_a_prompt_without_room_is_one_line(load, prompt_tokens, said):
    with pytest.raises(SystemExit, match=said):
        load("answer_length").fit_answer(GPT2Config(n_positions=64), prompt_tokens, 8)
