"""An example of a row: a question, what it is asked of if anything, and its answer, as a conversation of two turns."""

from fields import make_conversation, make_message, read_answer, read_optional, read_system, read_text


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    question = read_text(row, columns["prompt"])
    given = read_optional(row, columns.get("input"))
    if given:
        question = f"{question}\n\n{given}"
    answer = read_answer(row, columns["answer"])
    turns = [make_message("user", question), make_message("assistant", answer)]
    return make_conversation(read_system(row, columns.get("system")) + turns, row, columns)
