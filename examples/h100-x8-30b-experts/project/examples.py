"""An example of a row: its text."""

from fields import read_text


def make_example(row: dict, columns: dict[str, str]) -> dict | None:
    """``None`` for an empty text: there is nothing to learn and nothing wrong (WikiText has them between paragraphs).

    ValueError says what is wrong with the row.
    """
    text = row.get(columns["text"])
    if isinstance(text, str) and not text.strip():
        return None
    return {"text": read_text(row, columns["text"])}
