"""The rows of a training on plain text: blocks of one stream of tokens, each ``seq_len`` long."""

from pathlib import Path

from data import cut_blocks, load_texts, show_data


def prepare_rows(config: dict, tokenizer):
    """Each a dict of ``input_ids`` and ``labels``, lists of equal length."""
    return cut_blocks(load_texts(config), tokenizer, config["seq_len"])


def show_rows(rows, tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    show_data(rows, tokenizer, folder)
