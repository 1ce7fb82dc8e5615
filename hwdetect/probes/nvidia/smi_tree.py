"""A tree of names and texts: one shape for ``nvidia-smi -q -x`` and ``nvidia-smi -q``, which say the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast
from xml.etree import ElementTree

MAX_DEPTH = 40


@dataclass(slots=True)
class Node:
    """``name`` in lower case with underscores; ``key`` is the id attribute or the rest of the title."""

    name: str
    text: str = ""
    key: str = ""
    children: list[Node] = field(default_factory=list)

    def at(self, *paths: str) -> str | None:
        """The first non-empty text under one of the paths (``fb_memory_usage/total``)."""
        for path in paths:
            node = self.node(path)
            if node is not None and node.text:
                return node.text
        return None

    def node(self, path: str) -> Node | None:
        here: Node | None = self
        for name in path.split("/"):
            here = next((child for child in here.children if child.name == name), None) if here else None
        return here

    def every(self, name: str) -> list[Node]:
        return [child for child in self.children if child.name == name]


def parse_xml(text: str) -> tuple[Node | None, str | None]:
    """The root of a document, and what is wrong with it. Of a document that breaks off, what came whole is kept."""
    start = text.find("<")
    parser = ElementTree.XMLPullParser(("start", "end"))
    root, stack = None, []
    problem = None
    try:
        parser.feed(text[start:] if start >= 0 else text)
        parser.close()
    except (ElementTree.ParseError, ValueError) as error:
        problem = f"the document is broken: {error}"
    for event, element in _read_events(parser):
        if event == "start":
            node = Node(_normalize_name(element.tag), key=element.get("id", ""))
            if stack:
                stack[-1].children.append(node)
            elif root is None:
                root = node
            stack.append(node)
            if len(stack) > MAX_DEPTH:
                return root, "the document is nested too deep"
        elif stack:
            stack.pop().text = (element.text or "").strip()
    return root, problem


def _read_events(parser: ElementTree.XMLPullParser) -> Iterator[tuple[str, ElementTree.Element]]:
    """What was parsed; the parser's error stands among the events once more and is passed over."""
    events = iter(parser.read_events())
    while True:
        try:
            event = next(events)
        except StopIteration:
            return
        except (ElementTree.ParseError, ValueError):
            continue
        yield cast("tuple[str, ElementTree.Element]", event)


def parse_indented(text: str) -> Node:
    """The tree of ``nvidia-smi -q``: deeper lines belong to the line above them, ``name : value`` holds a text."""
    root = Node("nvidia_smi_log")
    stack: list[tuple[int, Node]] = [(-1, root)]
    for line in text.splitlines():
        match = re.match(r"^([ \t]*)(\S.*?)[ \t]*(?:[ \t]:(?:[ \t](.*))?)?$", line)
        if match is None:
            continue
        indent, title, value = len(match.group(1)), match.group(2), (match.group(3) or "").strip()
        # The first line that is not deeper ends the blocks before it.
        while stack[-1][0] >= indent:
            stack.pop()
        name, key = _normalize_name(title), ""
        if gpu := re.fullmatch(r"GPU ([0-9A-Fa-f:.]+)", title):
            name, key = "gpu", gpu.group(1)
        node = Node(name, text=value, key=key)
        if len(stack) < MAX_DEPTH:
            stack[-1][1].children.append(node)
            stack.append((indent, node))
    return root


def _normalize_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")
