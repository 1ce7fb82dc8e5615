"""An example of a row: a prompt and its completion, as plain text."""

from fields import read_text


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    return {"prompt": read_text(row, columns["prompt"]), "completion": read_text(row, columns["answer"])}
