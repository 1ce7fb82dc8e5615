"""An example of a row: its conversation, in messages of from and value (ShareGPT)."""

from fields import check_answered, list_columns, read_message, read_system, read_tools


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    turns = row.get(columns["messages"])
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError(f"no list of messages in column {columns['messages']!r}, only {list_columns(row)}")
    messages = read_system(row, columns.get("system")) + [read_message(turn, "from", "value") for turn in turns]
    return {"messages": check_answered(messages), "tools": read_tools(row, columns.get("tools"))}
