"""Conversations rendered in a process of its own: a chat template is a program of others, and may never end or take all memory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generator.inputs.chat_rendering import Render, build_renderer
from generator.inputs.held import make_scratch
from generator.inputs.leaves import load_labels
from hwdetect.machine.process import EndedProcess, build_own_command, isolate_python, run_process

CPU_SECONDS = 4
"""2,000 conversations of a million characters take a tenth of a second (ours). Of the processor, for a busy machine is no fault of a
template, and the same input is the same plan."""
SECONDS = 30.0
"""of the clock; what is asked waits for nobody, and a machine that gives it a seventh of a processor is one that nobody plans on"""
MEMORY_BYTES = 2 << 30
SHOWN = 200
"""Characters of what a template says where it refuses."""
RESULT_BYTES = 64 << 20
"""a hundred times the characters that are counted"""
Conversation = tuple[list[dict[str, Any]], dict[str, Any]]
"""messages, and what else the template is given"""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the template writes it. ``text``: ``None`` where it refuses; ``problem``: why train.py refuses it, or nothing."""

    text: str | None
    problem: str = ""


class EndlessTemplate(Exception):
    """A template that gives no text in the time and memory that all published ones need."""


class RefusedConversations(Exception):
    """None of them was taken: a run would take none either."""


def render_conversations(
    templates: Mapping[str, str], special_tokens: Mapping[str, str], conversations: Sequence[Conversation]
) -> list[Rendered]:
    """Each of them. Raises ``EndlessTemplate``, and ``RefusedConversations`` where the template refuses all."""
    with make_scratch() as folder:
        asked, answered = folder / "asked.json", folder / "answered.json"
        content = {"templates": templates, "special_tokens": special_tokens, "conversations": conversations}
        asked.write_text(json.dumps(content, default=str), encoding="utf-8")
        ended = run_process(
            build_own_command("generator.inputs.chat_child", str(asked), str(answered)),
            SECONDS,
            environment=isolate_python(),
        )
        if ended.code != 0 or not answered.is_file():
            raise EndlessTemplate(f"rendering its chat template: {explain_end(ended, CPU_SECONDS)}")
        answer = json.loads(answered.read_text(encoding="utf-8"))
        if conversations and not any(answer["texts"]):
            refusal = answer["refusal"] or "it writes nothing"
            raise RefusedConversations(
                f"its chat template takes none of the {len(conversations):,} conversations looked at: {refusal}"
            )
        return [Rendered(*pair) for pair in zip(answer["texts"], answer["problems"], strict=True)]


def explain_end(ended: EndedProcess, cpu_seconds: int) -> str:
    if os.name != "nt" and ended.code in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"no answer within {cpu_seconds} s of a processor"
    return ended.problem or f"ended with {ended.code}"


def main(arguments: list[str]) -> None:
    """Of the child: the paths of what is asked and of what is answered."""
    limit_resources()
    asked, answered = map(Path, arguments)
    content = json.loads(asked.read_text(encoding="utf-8"))
    render = build_renderer(content["templates"], content["special_tokens"])
    texts, problems = [], []
    refusal = "it is no template that Jinja compiles" if render is None else ""
    for messages, options in content["conversations"]:
        text, refused = try_render(render, messages, options)
        texts.append(text)
        problems.append(find_problem(render, messages, options, text) if render and text is not None else "")
        refusal = refusal or refused
    answer = {"texts": texts, "problems": problems, "refusal": refusal[:SHOWN]}
    answered.write_text(json.dumps(answer), encoding="utf-8")


def limit_resources(cpu_seconds: int = CPU_SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
    try:
        import resource
    except ImportError:  # Windows: the deadline alone
        return
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (RESULT_BYTES, RESULT_BYTES))


def try_render(render: Render | None, messages: list[dict], options: dict[str, Any]) -> tuple[str | None, str]:
    """The text, or why there is none."""
    if render is None:
        return None, ""
    try:
        return render(messages, options), ""
    except Exception as error:  # a template is a program of others: what it raises may be anything
        return None, " ".join(str(error).split()) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Template:
    """What renders, as the labels leaf asks a tokenizer."""

    render: Render

    def apply_chat_template(
        self, messages: list[dict], tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> str:
        assert not tokenize and not add_generation_prompt, "check_rendered asks for texts of whole conversations"
        return self.render(messages, options)


def find_problem(render: Render, messages: list[dict], options: dict[str, Any], text: str) -> str:
    """Why train.py would refuse it; nothing where it would not."""
    try:
        load_labels().check_rendered(messages, options, text, Template(render))
    except ValueError as error:
        return str(error)
    return ""
