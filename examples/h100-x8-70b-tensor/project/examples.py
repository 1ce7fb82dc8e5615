"""An example of a row: its conversation, in messages of role and content."""

from fields import check_answered, make_conversation, read_messages, read_system


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    messages = read_system(row, columns.get("system")) + read_messages(row, columns["messages"])
    return make_conversation(check_answered(messages), row, columns)
