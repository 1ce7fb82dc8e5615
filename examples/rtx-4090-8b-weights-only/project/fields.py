"""What rows hold: texts, and the messages of a conversation."""

import json

ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "ipython": "tool",
    "observation": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
"""Who speaks, by the words of OpenAI, ShareGPT and their like."""
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Keys of what the assistant thinks before it answers."""
FURTHER = ("name", "tool_call_id", *THOUGHTS)
"""Keys of a message that chat templates read."""
LEARNS = ("weight", "train", "training", "loss")
"""Whether a turn is learned from: OpenAI's weight, Axolotl's train and training, ms-swift's loss."""
LEARNS_PARTS = ("train_detail", "training_detail")
"""Axolotl's, of parts of a turn."""
MEDIA = ("image", "images", "audio", "audios", "video", "videos")
"""What a turn may show beside its text."""
OF_TOKENIZERS = (
    *("conversation", "messages", "tools", "chat_template", "tokenize", "tokenizer_kwargs", "add_generation_prompt"),
    *("continue_final_message", "sanitize_control_tokens", "padding", "truncation", "max_length"),
    *("return_tensors", "return_dict", "return_assistant_tokens_mask"),
)
"""Arguments of apply_chat_template that are not the template's."""
NAMED = 20
"""How many columns a message lists."""


def read_text(row: dict, column: str) -> str:
    """ValueError where there is no text, or none that UTF-8 can hold."""
    text = row.get(column)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"no usable text in column {column!r} of {list_columns(row)}")
    return check_text(text)


def list_columns(row: dict) -> str:
    """The first names, those as code that a terminal would obey."""
    names = [name if isinstance(name, str) and name.isprintable() else repr(name) for name in list(row)[:NAMED]]
    return ", ".join(names) + (f" and {len(row) - NAMED} more" if len(row) > NAMED else "")


def check_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair, or bytes that are not UTF-8") from None
    return text


def read_answer(row: dict, column: str) -> str:
    """A text or a number; of several answers that are right the first."""
    answer = row.get(column)
    if isinstance(answer, dict):  # SQuAD
        answer = answer.get("text")
    if isinstance(answer, list):
        answer = answer[0] if answer else None
    return read_text({**row, column: str(answer) if is_number(answer) else answer}, column)


def read_optional(row: dict, column: str | None) -> str:
    """A text or a number that a row need not have: empty without. ValueError where it is neither."""
    value = row.get(column) if column else None
    if value is None:
        return ""
    if is_number(value):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"no text in column {column!r} but {type(value).__name__}")
    return check_text(value) if value.strip() else ""


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def make_message(role: str, content: str, further: dict | None = None) -> dict:
    """What is neither role nor content is JSON: tool calls of different tools have no columns in common."""
    return {"role": role, "content": content, "further": dump_json(further, "a message") if further else None}


def dump_json(value: object, what: str) -> str:
    """ValueError for what a table can hold and JSON cannot: dates, bytes; and for what UTF-8 cannot."""
    try:
        return check_text(json.dumps(value, ensure_ascii=False))
    except TypeError as error:
        raise ValueError(f"{what}: {error}") from None


def read_message(message: dict, role_key: str, content_key: str) -> dict:
    """One turn, whatever the words for role and content are."""
    speaker = message.get(role_key)
    speaker = speaker.strip().lower() if isinstance(speaker, str) else speaker
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise ValueError(f"a message of {speaker!r}, not of one of {', '.join(ROLES)}")
    further = {key: message[key] for key in FURTHER if message.get(key) is not None}
    if ROLES[speaker] == "assistant" and not is_learned(message):
        further["weight"] = 0
    calls = list_calls(message)
    if media := next((key for key in MEDIA if message.get(key)), None):
        raise ValueError(f"a turn with {media!r}, and texts alone are read")
    if speaker in ("function_call", "tool_call"):
        calls = parse_json(message.get(content_key), "function call")
        calls, message = calls if isinstance(calls, list) else [calls], {}
    if calls:
        further["tool_calls"] = [read_tool_call(call) for call in calls]
    content = message.get(content_key)
    if isinstance(content, list):
        content = join_parts(content)
    may_be_empty = bool(calls) or ROLES[speaker] in ("system", "tool")
    if content is None and may_be_empty:
        content = ""
    if not isinstance(content, str):
        there = "empty" if content is None else type(content).__name__
        raise ValueError(f"no usable text in column {content_key!r} of {list_columns(message)}: it is {there}")
    if not may_be_empty and not content.strip():
        raise ValueError(f"no usable text in column {content_key!r}: an empty turn of {speaker}")
    return make_message(ROLES[speaker], check_text(content), further)


def list_calls(message: dict) -> list:
    """What an assistant calls: a list, also as JSON in a table of texts, or one function_call (OpenAI's older API)."""
    calls = message.get("tool_calls")
    if isinstance(calls, str):
        calls = parse_json(calls, "tool calls") if calls.strip() else None
    if not calls:
        call = drop_nulls(message.get("function_call"))
        return [call] if call else []
    if not isinstance(calls, list):
        raise ValueError(f"tool calls that are no list but {type(calls).__name__}")
    return calls


def is_learned(turn: dict) -> bool:
    """By its own keys. ValueError for what is neither yes nor no, and for parts of a turn."""
    if parts := next((key for key in LEARNS_PARTS if turn.get(key)), None):
        raise ValueError(f"{parts!r} marks parts of a turn, and whole turns are learned from, or not")
    marks = {key: turn[key] for key in LEARNS if turn.get(key) is not None}
    for key, mark in marks.items():
        if mark not in (0, 1):
            raise ValueError(f"a turn with {key!r} {mark!r}: 0 and false leave it out, 1 and true learn it")
    return all(marks.values())


def read_messages(row: dict, column: str, role_key: str = "role", content_key: str = "content") -> list[dict]:
    """The turns of a conversation."""
    turns = row.get(column)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError(f"no list of messages in column {column!r}, only {list_columns(row)}")
    messages = []
    for number, turn in enumerate(turns, start=1):
        try:
            messages.append(read_message(turn, role_key, content_key))
        except ValueError as error:
            raise ValueError(f"turn {number} of {column!r}: {error}") from None
    return messages


def unpack_conversation(example: dict) -> tuple[list[dict], dict]:
    """Messages of an example, and what else its chat template is given: tools, and arguments of its own."""
    messages = [
        {"role": turn["role"], "content": turn["content"], **json.loads(turn["further"] or "{}")}
        for turn in example["messages"]
    ]
    tools = json.loads(example["tools"]) if example["tools"] else None
    return messages, {"tools": tools, **json.loads(example["chat_template_kwargs"] or "{}")}


def quote_arguments(messages: list[dict]) -> list[dict]:
    """With the arguments of tool calls as JSON in a string: there are templates that take no object (DeepSeek's)."""
    return [
        {**message, "tool_calls": [quote_call(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def quote_call(call: dict) -> dict:
    function = call["function"]
    return {**call, "function": {**function, "arguments": dump_json(function["arguments"], "arguments")}}


def join_parts(parts: list) -> str:
    """Content in parts, as OpenAI's API has it: the texts of those parts."""
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise ValueError(f"a part of a message that is no text but {kind!r}")
    return "".join(part["text"] for part in parts)


def read_tool_call(call: dict) -> dict:
    """Arguments as an object: OpenAI has them as JSON in a string, which templates would quote a second time."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("a tool call without the name of a function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = parse_json(arguments, "arguments of a tool call")
    else:
        arguments = drop_nulls(arguments)
    kept = {"id": call["id"]} if call.get("id") else {}
    return {**kept, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def drop_nulls(value: object) -> object:
    """Without the keys that hold nothing: in Parquet every object of a column has the keys of all the others."""
    if isinstance(value, dict):
        return {key: drop_nulls(item) for key, item in value.items() if item is not None}
    return [drop_nulls(item) for item in value] if isinstance(value, list) else value


def read_tools(row: dict, column: str | None) -> str | None:
    """The tools that a row offers, as JSON."""
    tools = row.get(column) if column else None
    if isinstance(tools, str) and tools.strip():
        tools = parse_json(tools, f"column {column!r}")
    return dump_json(drop_nulls(tools), f"column {column!r}") if tools else None


def read_template_arguments(row: dict, column: str | None) -> str | None:
    """What a row gives its chat template beside the turns (enable_thinking, custom_instructions), as JSON."""
    given = row.get(column) if column else None
    if isinstance(given, str) and given.strip():
        given = parse_json(given, f"column {column!r}")
    if not given:
        return None
    if not isinstance(given, dict):
        raise ValueError(f"no object in column {column!r} but {type(given).__name__}")
    if taken := [name for name in OF_TOKENIZERS if name in given]:
        raise ValueError(f"column {column!r} has {taken[0]!r}, which is no argument of a template")
    return dump_json(drop_nulls(given), f"column {column!r}")


def make_conversation(messages: list[dict], row: dict, columns: dict[str, str]) -> dict:
    """An example, with what the row gives its chat template besides."""
    return {
        "messages": messages,
        "tools": read_tools(row, columns.get("tools")),
        "chat_template_kwargs": read_template_arguments(row, columns.get("chat_template_kwargs")),
    }


def parse_json(text: object, what: str) -> object:
    if not isinstance(text, str):
        raise ValueError(f"{what}: no JSON but {type(text).__name__}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what}: not JSON: {error}") from None


def read_system(row: dict, column: str | None) -> list[dict]:
    """The system turn of a row that has one in a column of its own."""
    text = read_optional(row, column)
    return [make_message("system", text)] if text else []


def check_answered(messages: list[dict]) -> list[dict]:
    if not any(message["role"] == "assistant" for message in messages):
        raise ValueError("no message of the assistant to learn from")
    return messages
