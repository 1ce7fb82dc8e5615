"""An example of a row: a prompt and its completion, as plain text."""

from fields import read_optional, read_text


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    for column in (columns.get("input"), columns.get("system")):
        if read_optional(row, column):
            raise ValueError(f"column {column!r} has a text, which a plain prompt has no place for")
    return {"prompt": read_text(row, columns["prompt"]), "completion": read_text(row, columns["answer"])}
