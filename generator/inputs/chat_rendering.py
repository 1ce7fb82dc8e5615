"""Conversations as a chat template renders them: what Transformers does, without the seconds of importing it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template

SOME_DAY = datetime(2026, 1, 1)
"""What a template is told that today is: a plan does not depend on the clock, and a date has as many tokens on any day."""
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Names of one thing; templates read the first or the second (utils/chat_template_utils.py, _alias_reasoning_fields)."""

Render = Callable[[list[dict], dict[str, Any]], str]


def build_renderer(templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> Render | None:
    """A function of messages, and of tools and what else a row gives its template. It raises whatever a template raises, which may
    be anything. ``None``: no template that Transformers would take, or none that can be compiled."""
    try:
        compiled = {name: compile_template(text) for name, text in templates.items()}
    except Exception:  # a syntax error, or what an extension of the template's own makes of it
        return None
    if "default" not in compiled:
        return None

    def render(messages: list[dict], options: dict[str, Any]) -> str:
        kind = "default" if options["tools"] is None else "tool_use"
        template = compiled.get(kind, compiled["default"])
        turns = [name_thoughts({k: v for k, v in message.items() if v is not None}) for message in messages]
        given = {"documents": None, **special_tokens, **options}
        return template.render(messages=turns, add_generation_prompt=False, **given)

    return render


def name_thoughts(message: dict) -> dict:
    """Under the names that templates read."""
    thought = next((message[name] for name in THOUGHTS if name in message), None)
    return message if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def compile_template(text: str) -> Template:
    return make_environment().from_string(text, globals={"raise_exception": refuse, "strftime_now": SOME_DAY.strftime})


def refuse(message: str) -> None:
    """What a template calls that does not take a conversation."""
    raise ValueError(message)


@cache
def make_environment() -> Environment:
    """As transformers 5.23 makes it (utils/chat_template_utils.py, _cached_compile_jinja_template): a template is a program of
    others, and has a sandbox."""
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The marks around what the assistant says, which render as what is between them."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def dump(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = dump
    return environment
