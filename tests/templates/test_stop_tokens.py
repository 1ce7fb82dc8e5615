"""An answer ends where the chat template ends a turn: a base model's generation config names another token."""

from __future__ import annotations

from types import SimpleNamespace as Values

import pytest
from leaves import load_leaf

pytest.importorskip("transformers")
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LATE_END = (
    "{% for m in messages %}<|{{ 'im_end' if m['role'] == 'user' else 'im_start' }}|> {{ m['content'] }}{% endfor %}"
)
NO_END = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
REFUSES = "{{ raise_exception('tools first') }}"


@pytest.mark.parametrize(
    ("template", "own", "stops"),
    [
        (CHATML, 1, [1, 3]),
        (CHATML, [1, 3], [1, 3]),
        (CHATML, None, [1, 3]),
        (LATE_END, None, [1, 3]),
        (NO_END, None, [1]),
        (REFUSES, 1, [1]),
        (None, 1, [1]),
    ],
)
def test_an_answer_ends_with_its_turn(template, own, stops):
    words = {"<unk>": 0, "<|endoftext|>": 1, "<|im_start|>": 2, "<|im_end|>": 3, "user": 4, "assistant": 5}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>", eos_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.chat_template = template
    model = Values(generation_config=Values(eos_token_id=own))
    assert load_leaf("stop_tokens").list_stop_tokens(model, tokenizer) == stops
