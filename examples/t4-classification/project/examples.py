"""An example of a row: its text and its label."""

from fields import check_text, list_columns, read_text


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    label = row.get(columns["label"])
    if isinstance(label, ValueError):  # a number without a name
        raise label
    if isinstance(label, float) and label.is_integer():  # whole numbers beside a null become floats in many a library
        label = int(label)
    if isinstance(label, (list, dict)):
        raise ValueError(f"column {columns['label']!r} holds several labels, and a row can have one")
    if (isinstance(label, str) and not label.strip()) or label != label:  # NaN is what tables have for nothing
        label = None
    if isinstance(label, float):
        raise ValueError(f"the label in column {columns['label']!r} is {label}, a measure and no class")
    if not isinstance(label, (str, int)):
        there = f"it is {'empty' if label is None else type(label).__name__}"
        there = there if columns["label"] in row else f"only {list_columns(row)}"
        raise ValueError(f"no label in column {columns['label']!r}: {there}")
    return {"text": read_text(row, columns["text"]), "label": check_text(str(label))}
