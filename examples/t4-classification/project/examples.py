"""An example of a row: its text and its label."""

from fields import check_text, list_columns, read_text


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    label = row.get(columns["label"])
    if not isinstance(label, (str, int)) or label == "":
        raise ValueError(f"no label in column {columns['label']!r}, only {list_columns(row)}")
    return {"text": read_text(row, columns["text"]), "label": check_text(str(label))}
