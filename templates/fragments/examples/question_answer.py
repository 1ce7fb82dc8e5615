"""An example of a row: a question, what it is asked of if anything, and its answer, as a conversation of two turns."""

from fields import check_text, make_message, read_system, read_text


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    question = read_text(row, columns["prompt"])
    given = row.get(columns["input"]) if "input" in columns else None
    if isinstance(given, str) and given.strip():
        question = f"{question}\n\n{check_text(given)}"
    answer = read_text(row, columns["answer"])
    turns = [make_message("user", question), make_message("assistant", answer)]
    return {"messages": read_system(row, columns.get("system")) + turns, "tools": None}
