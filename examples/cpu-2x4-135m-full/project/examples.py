"""An example of a row: its text."""

from fields import read_text


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    return {"text": read_text(row, columns["text"])}
