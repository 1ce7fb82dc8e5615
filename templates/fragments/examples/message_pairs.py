"""An example of a row: the messages of a prompt, and those of its answer, which alone are learned from."""

import json

from fields import check_answered, make_conversation, make_message, read_messages, read_optional, read_system, read_text


def make_example(row: dict, columns: dict[str, str]) -> dict:
    """ValueError says what is wrong with the row."""
    answer = read_messages(row, columns["answer"])
    prompt: list[dict] = []
    if "prompt" in columns and isinstance(row.get(columns["prompt"]), str):
        prompt = [make_message("user", read_text(row, columns["prompt"]))]
    elif "prompt" in columns:
        prompt = read_messages(row, columns["prompt"])
    if read_optional(row, columns.get("input")):
        raise ValueError(f"column {columns['input']!r} has a text, which messages have no place for")
    lead = 0  # system turns before the prompt that the answer repeats
    while lead < len(answer) and answer[lead]["role"] == "system" and answer[lead] not in prompt:
        lead += 1
    if prompt and answer[lead : lead + len(prompt)] == prompt:
        prompt, answer = answer[: lead + len(prompt)], answer[lead + len(prompt) :]
    elif prompt and answer and answer[0]["role"] in ("system", "user"):
        raise ValueError(f"column {columns['answer']!r} begins with another question than {columns['prompt']!r}")
    check_answered(answer)
    messages = read_system(row, columns.get("system")) + [leave_out(message) for message in prompt] + answer
    return make_conversation(messages, row, columns)


def leave_out(message: dict) -> dict:
    """The message with a weight of 0: what the assistant says in a prompt is not learned from."""
    if message["role"] != "assistant":
        return message
    further = json.loads(message["further"] or "{}")
    return make_message(message["role"], message["content"], {**further, "weight": 0})
