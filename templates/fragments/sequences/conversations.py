"""The rows of a fine-tuning on conversations: one example each, with the places that are learned from."""

from pathlib import Path

from chat_template import ensure_chat_template
from data import load_examples, tokenize_examples
from first_example import show_example


def prepare_rows(config: dict, tokenizer):
    """Each a dict of ``input_ids`` and ``labels``, lists of one length, at most ``seq_len``."""
    examples = load_examples(config)
    ensure_chat_template(tokenizer)
    return tokenize_examples(examples, tokenizer, config["seq_len"], config["loss_on"], config["skip_bad"])


def show_rows(rows, tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    show_example(rows[0], tokenizer, folder)
