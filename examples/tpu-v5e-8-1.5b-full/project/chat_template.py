"""The chat template: the tokenizer's own, and a plain one for a tokenizer that has none."""

import os
import sys

TURNS = (  # Jinja, as Transformers reads it
    "{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""What is learnt from stands between the generation marks; it ends with the token that ends an answer."""
BEGIN = "{{ bos_token }}"  # before the turns, where the tokenizer begins its texts with it


def ensure_chat_template(tokenizer) -> None:
    """Leave a template alone; where there is none, set one, which is saved with the model, and say so."""
    if tokenizer.chat_template:
        return
    if tokenizer.eos_token is None:
        sys.exit("The tokenizer has neither a chat template nor an end token (eos_token): give one that has.")
    # apply_chat_template adds no special tokens: the template writes the one that the tokenizer begins texts with
    begins = tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    tokenizer.chat_template = (BEGIN if begins else "") + TURNS
    if os.environ.get("RANK", "0") == "0":
        print("The tokenizer has no chat template: <|user|> and <|assistant|> mark the turns.", file=sys.stderr)
