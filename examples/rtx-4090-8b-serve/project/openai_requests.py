"""What OpenAI's API takes: a body becomes a value, or a refusal that says what of it this server does not do."""

import json
import math
from dataclasses import dataclass
from typing import Any

from fields import OF_TOKENIZERS

READ = {"model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "stop", "seed", "n"}
READ |= {"top_k", "min_p", "repetition_penalty", "ignore_eos"}
"""Fields of both kinds of requests; the second line is vLLM's beside OpenAI's."""
READ_CHAT = READ | {"messages", "max_completion_tokens", "chat_template_kwargs"}
READ_TEXT = READ | {"prompt"}
WITHOUT_EFFECT = {"user", "safety_identifier", "prompt_cache_key"}
"""Names that a client gives to itself and to its prompts: nothing is asked for with them."""
NOT_DONE: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("tools", "functions"), ([],)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    "parallel_tool_calls": (True, False),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    **dict.fromkeys(("audio", "prediction", "reasoning_effort", "verbosity", "web_search_options"), ()),
}
"""Fields that OpenAI has and this server has not, with the values that ask for nothing."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""By the name that chat templates have for each."""
MOST_STOPS = 4
SEEDS = 1 << 63
MOST_PENALTY = 10.0


class Refused(Exception):
    """An answer in OpenAI's shape of an error."""

    def __init__(
        self, status: int, message: str, *, field: str | None = None, code: str | None = None, allow: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.code = status, message, field, code
        self.allow = allow
        """Methods that the path takes, where this one is none of them."""

    @property
    def body(self) -> dict:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, as far as it can be read without the tokenizer. ``None``: the server's default."""

    chat: bool
    messages: list[dict]
    """Of a chat."""
    template_arguments: dict
    """Of its chat template: enable_thinking, documents, …"""
    prompt: str | list[int]
    """Of a text: words, or tokens."""
    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    """0: of all tokens."""
    min_p: float | None
    repetition_penalty: float | None
    stops: tuple[str, ...]
    seed: int | None
    ends: bool
    stream: bool
    include_usage: bool


def read_body(body: bytes) -> dict:
    """The JSON object of a request."""
    try:
        value = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body is no JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise Refused(400, f"The body is {show(value)}: an object is expected", code="invalid_json")
    return value


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def read_request(body: dict, chat: bool, name: str) -> Asked:
    """Of either endpoint. ``name`` is the model that is served."""
    refuse_fields(body, READ_CHAT if chat else READ_TEXT)
    check_model(body.get("model"), name)
    options = take(body, "stream_options", dict, "an object") or {}
    refuse_unknown(options, {"include_usage", "include_obfuscation"}, "stream_options.")
    if take(options, "include_obfuscation", bool, "true or false"):
        field = "stream_options.include_obfuscation"
        raise Refused(400, f"{field} is not supported by this server: leave it out", field=field)
    stream = bool(take(body, "stream", bool, "true or false"))
    if options and not stream:
        raise Refused(400, "stream_options is of streams: set stream to true", field="stream_options")
    if take_number(body, "n", 1, 128, whole=True) not in (None, 1):
        raise Refused(400, "n: this server gives one answer to a request, send it several times", field="n")
    limits = [take_number(body, field, 1, 1 << 31, whole=True) for field in ("max_completion_tokens", "max_tokens")]
    return Asked(
        chat=chat,
        messages=read_messages(body.get("messages")) if chat else [],
        template_arguments=read_template_arguments(body) if chat else {},
        prompt="" if chat else read_prompt(body.get("prompt")),
        max_new_tokens=next((int(limit) for limit in limits if limit is not None), None),
        temperature=take_number(body, "temperature", 0, 2),
        top_p=take_number(body, "top_p", 0, 1),
        top_k=read_top_k(body),
        min_p=take_number(body, "min_p", 0, 1),
        repetition_penalty=take_number(body, "repetition_penalty", 1 / MOST_PENALTY, MOST_PENALTY),
        stops=read_stops(body.get("stop")),
        seed=read_seed(body),
        ends=not take(body, "ignore_eos", bool, "true or false"),
        stream=stream,
        include_usage=bool(take(options, "include_usage", bool, "true or false")),
    )


def refuse_fields(body: dict, known: set[str]) -> None:
    """What would be dropped without a word otherwise."""
    for field, value in body.items():
        if field in NOT_DONE and value is not None and not any(is_same(value, one) for one in NOT_DONE[field]):
            raise Refused(400, f"{field} is not supported by this server: leave it out", field=field)
    refuse_unknown(body, known | WITHOUT_EFFECT | NOT_DONE.keys())


def is_same(value: Any, neutral: Any) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def refuse_unknown(body: dict, known: set[str], before: str = "") -> None:
    for field in (field for field in body if field not in known):
        shown = f"{before}{field}"[:100]
        raise Refused(400, f"Unrecognized request argument supplied: {shown}", field=shown, code="unknown_parameter")


def check_model(model: Any, name: str) -> None:
    if not isinstance(model, str):
        raise Refused(400, f"you must provide a model parameter: {name}", field="model")
    if model != name:
        message = f"The model {model[:200]!r} does not exist: this server has {name!r}"
        raise Refused(404, message, field="model", code="model_not_found")


def take(body: dict, field: str, kind: type, words: str) -> Any:
    value = body.get(field)
    if value is not None and not isinstance(value, kind):
        raise Refused(400, f"{field}: {words} is expected, not {show(value)}", field=field, code="invalid_type")
    return value


def take_number(body: dict, field: str, least: float, most: float, whole: bool = False) -> Any:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        words = "an integer" if whole else "a number"
        raise Refused(400, f"{field}: {words} is expected, not {show(value)}", field=field, code="invalid_type")
    if not least <= value <= most or not math.isfinite(value):
        message = f"{field}: {show(value)} is not between {least} and {most}"
        raise Refused(400, message, field=field, code="invalid_value")
    return value


def read_top_k(body: dict) -> int | None:
    count = take_number(body, "top_k", -1, 1 << 31, whole=True)
    return None if count is None else max(count, 0)  # -1 is vLLM's word for all


def read_seed(body: dict) -> int | None:
    """OpenAI's may be negative, and engines count from 0."""
    seed = take_number(body, "seed", -SEEDS, SEEDS - 1, whole=True)
    return None if seed is None else seed % SEEDS


def take_text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise Refused(400, f"{field}: a text is expected, not {show(value)}", field=field, code="invalid_type")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Refused(400, f"{field}: half of a character (a lone surrogate)", field=field, code="invalid_value")
    return value


def show(value: Any) -> str:
    """A wrong value in a message, without all of it."""
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        return "that"
    return text if len(text) <= 60 else f"{text[:60]}…"


def read_stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else value if isinstance(value, list) else [value]
    if len(stops) > MOST_STOPS:
        raise Refused(
            400, f"stop: {len(stops)} texts, {MOST_STOPS} at most", field="stop", code="array_above_max_length"
        )
    return tuple(take_text(stop, "stop") for stop in stops if stop != "")


def read_prompt(value: Any) -> str | list[int]:
    """A text or its tokens; OpenAI takes several in a list, of which one is taken here."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        return value
    if isinstance(value, list) and value:
        raise Refused(400, "prompt: one text, or the tokens of one, to a request", field="prompt", code="invalid_type")
    return take_text(value, "prompt")


def read_messages(value: Any) -> list[dict]:
    if not isinstance(value, list) or not value:
        raise Refused(400, f"messages: a list of messages is expected, not {show(value)}", field="messages")
    return [read_message(message, f"messages[{place}]") for place, message in enumerate(value)]


def read_template_arguments(body: dict) -> dict:
    """vLLM's field: what the chat template is given beside the messages."""
    given = take(body, "chat_template_kwargs", dict, "an object") or {}
    for name in given:
        if name in OF_TOKENIZERS:
            field = f"chat_template_kwargs.{name}"
            raise Refused(400, f"{field} is no argument of a template: leave it out", field=field)
    return given


def read_message(message: Any, field: str) -> dict:
    if not isinstance(message, dict):
        raise Refused(400, f"{field}: an object is expected, not {show(message)}", field=field, code="invalid_type")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise Refused(400, f"{field}.role: {show(role)} is none of {', '.join(ROLES)}", field=field)
    for extra, given in message.items():
        if extra not in ("role", "content") and given not in (None, []):  # an answer that comes back has such fields
            raise Refused(400, f"{field}.{extra[:100]} is not supported by this server: leave it out", field=field)
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [read_part(part, f"{field}.content") for part in parts]
    return {"role": ROLES[role], "content": "\n".join(texts)}


def read_part(part: Any, field: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        message = f"{field}: {show(kind)} is not supported by this server, which reads text alone"
        raise Refused(400, message, field=field, code="unsupported_content")
    refuse_unknown(part, {"type", "text"}, f"{field}.")
    return take_text(part.get("text"), field)
