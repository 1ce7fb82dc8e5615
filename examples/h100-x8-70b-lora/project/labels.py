"""Tokens of conversations as the chat template renders them, and the labels: what the assistant says is learned from.

The token that ends its turn belongs to it: a model that never learns it does not stop.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import groupby
from typing import NamedTuple

from fields import THOUGHTS, quote_arguments, unpack_conversation
from token_edges import count_before, count_common

GENERATION = re.compile(r"%-?\s*generation\s*-?%")
"""What a template may put around the words of the assistant."""
QUOTED = 60
"""Characters of a conversation that name it."""
INSTEAD = {
    "developer": "call it system, or ",
    "system": "write its words into the turn of user behind it, or ",
}
"""What can be done, by role, about a turn that a template leaves out, beside another model."""


class Rendered(NamedTuple):
    """A conversation as the template writes it, and the places in it that are learned."""

    text: str
    spans: list[tuple[int, int]] | None
    """``None``: all of it"""
    left_out_turns: int
    """that are to be learned, and are not located"""
    left_out_words: bool
    """of a turn that is learned: a thought, or what is said beside a tool call"""
    marked: tuple[list[int], list[int]] | None = None
    """tokens, and 1 where they are learned, where the template says so itself"""


def tokenize_batch(examples: list[dict], tokenizer, loss_on: str) -> list[dict | ValueError]:
    """Of each example token ids, labels (-100 where nothing is learned), how many turns are not located, and if words
    are lost; or why the template refuses it. All are tokenized in one call: of short ones, in half the time.
    """
    rendered = [render_example(example, tokenizer, loss_on) for example in examples]
    texts = [one.text for one in rendered if isinstance(one, Rendered) and not one.marked]
    encodings = encode_together(texts, tokenizer)
    return [
        name_conversation(one, example) if isinstance(one, ValueError) else label_tokens(one, encodings, tokenizer)
        for one, example in zip(rendered, examples, strict=True)
    ]


def name_conversation(refusal: ValueError, example: dict) -> ValueError:
    """With how it is asked: rows that are held out, or left out, have no part in the numbers of examples."""
    turns = example["messages"]
    turn = next((turn for turn in turns if turn["role"] == "user"), turns[0])
    start = turn["content"][:QUOTED] + ("…" if len(turn["content"]) > QUOTED else "")
    return ValueError(f"{refusal} ({turn['role']}: {start!r})")


def render_example(example: dict, tokenizer, loss_on: str) -> Rendered | ValueError:
    messages, options = unpack_conversation(example)
    try:
        text = tokenizer.apply_chat_template(messages, **options, tokenize=False)
    except Exception as error:  # a template is a program of others: what it raises may be anything
        messages = quote_arguments(messages)
        text = render(messages, options, tokenizer) if any(m.get("tool_calls") for m in messages) else None
        if text is None:
            return ValueError(f"the chat template refuses {' '.join(m['role'] for m in messages)}: {error!r}")
    try:
        check_rendered(messages, options, text, tokenizer)
    except ValueError as error:
        return error
    turns = [number for number, turn in enumerate(messages) if turn["role"] == "assistant"]
    learned_turns = [number for number in turns if messages[number].get("weight") != 0]
    if loss_on == "all":
        lost = any(leaves_words_out(messages[number], text) for number in learned_turns)
        return Rendered(text + find_end_of_answer(messages, tokenizer), None, 0, lost)
    if len(learned_turns) == len(turns) and (marked := read_marks(messages, len(turns), options, tokenizer)):
        return Rendered(text, None, 0, any(leaves_words_out(messages[number], text) for number in turns), marked)
    text += find_end_of_answer(messages, tokenizer)
    spans = {number: find_turn(messages, number, text, options, tokenizer) for number in learned_turns}
    for number in [number for number, span in spans.items() if span is None]:
        spans[number] = find_replaced_turn(messages, number, text, options, tokenizer)
    located = {number: span for number, span in spans.items() if span}
    incomplete = any(leaves_words_out(messages[number], text[slice(*span)]) for number, span in located.items())
    return Rendered(text, list(located.values()), len(spans) - len(located), incomplete)


def read_marks(messages: list[dict], turns: int, options: dict, tokenizer) -> tuple[list[int], list[int]] | None:
    """Tokens and mask of a template that marks the assistant's words; ``None`` where it does not mark so many turns."""
    if not GENERATION.search(tokenizer.get_chat_template(tools=options["tools"])):
        return None
    marked = tokenizer.apply_chat_template(messages, **options, return_dict=True, return_assistant_tokens_mask=True)
    mask = trim_marks(marked["input_ids"], marked["assistant_masks"], tokenizer)
    return (marked["input_ids"], mask) if mask is not None and count_runs(mask) == turns else None


def label_tokens(rendered: Rendered, encodings: Iterator, tokenizer) -> dict:
    """``encodings``: of the texts, that of this one first unless the template has marked it."""
    if rendered.marked:
        tokens, mask = rendered.marked
    else:
        tokens, mask = mark_spans(rendered.text, next(encodings), rendered.spans, tokenizer)
    labels = [token if learned else -100 for token, learned in zip(tokens, mask, strict=True)]
    return {
        "input_ids": tokens,
        "labels": [-100, *labels[1:]],  # nothing predicts the first token
        "left_out_turns": rendered.left_out_turns,
        "left_out_words": rendered.left_out_words,
    }


def check_rendered(messages: list[dict], options: dict, text: str, tokenizer) -> None:
    """ValueError where the template leaves out what was said: those of models without tools drop calls in silence."""
    silent = [{key: value for key, value in m.items() if key != "tool_calls"} for m in messages]
    drops_calls = silent != messages and render(silent, options, tokenizer) == text  # a name may stand among the tools
    if left_out := find_left_out(messages, text, drops_calls=drops_calls):
        what, remedy = left_out
        raise ValueError(f"the model's chat template leaves out {what}: {remedy}train a model whose template has it")
    for number, message in enumerate(messages):
        names = message.get("tool_calls", ())
        first = {**message, "tool_calls": message["tool_calls"][:1]} if len(names) > 1 else message
        if (
            first != message
            and render([*messages[:number], first, *messages[number + 1 :]], options, tokenizer) == text
        ):
            raise ValueError(
                f"the model's chat template writes the first of {len(names)} calls in a turn alone: "
                "put each call into a turn of its own, with its result behind it"
            )


def find_left_out(messages: list[dict], text: str, *, drops_calls: bool = False) -> tuple[str, str] | None:
    """The first tool call, or turn of others than the assistant, that ``text`` does not have, and what can be done."""
    for message in messages:
        names = [call["function"]["name"] for call in message.get("tool_calls", ())]
        content = message["content"] if message["role"] != "assistant" else ""
        missing = [part for part in (*names, content.strip()) if not stands_in(part, text)]
        missing = names if names and drops_calls else missing
        if missing:
            role = message["role"]
            return (f"a call of {missing[0]!r}", "") if names else (f"the turn of {role}", INSTEAD.get(role, ""))
    return None


def stands_in(part: str, text: str) -> bool:
    return part in text or any(form in text for form in quote(part))


def quote(part: str) -> tuple[str, str]:
    """A text as templates write it where not as it is: as JSON, with or without letters beyond ASCII."""
    return json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]


def leaves_words_out(turn: dict, text: str) -> bool:
    """Whether the template drops what the assistant thinks, or says beside a tool call: models do not learn it then."""
    thought, thinks, answer = turn["content"].partition("</think>")
    parts = [turn.get(name) or "" for name in THOUGHTS] + ([thought.replace("<think>", ""), answer] if thinks else [])
    parts += [turn["content"]] if turn.get("tool_calls") and not thinks else []
    parts = ["".join(part.split()) for part in parts]
    if not any(parts):
        return False
    words = "".join(text.split())
    return not all(stands_in(part, words) for part in parts)


def encode(texts: list[str], tokenizer) -> list[list[int]]:
    """A rendered text has its special tokens already."""
    return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]


def encode_together(texts: list[str], tokenizer) -> Iterator:
    """Of each text its tokens with their places, as the tokenizers library has them; else token ids alone."""
    encoded = tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False) if texts else None
    return iter(encoded.encodings or encoded["input_ids"]) if encoded else iter(())


def render(messages: list[dict], options: dict, tokenizer, *, prompt: bool = False) -> str | None:
    """``None`` where the template refuses so few messages."""
    try:
        return tokenizer.apply_chat_template(messages, **options, tokenize=False, add_generation_prompt=prompt)
    except Exception:  # as above
        return None


def find_turn(messages: list[dict], number: int, text: str, options: dict, tokenizer) -> tuple[int, int] | None:
    """Where in ``text`` a turn of the assistant stands, from what the template renders before it and with it.

    ``None`` where these are no prefixes of the whole: the template renders a turn differently once others follow.
    """
    asked = render(messages[:number], options, tokenizer, prompt=True)
    until = text if number + 1 == len(messages) else render(messages[: number + 1], options, tokenizer)
    ends = until is not None and not text.startswith(until)
    if until is not None and ends:  # some templates end the text itself, after the last turn
        until = until.removesuffix(tokenizer.eos_token or "")
    if asked is None or until is None or not text.startswith(until):
        return None
    start = len(asked)
    if not text.startswith(asked):  # a prompt may open a thought that the conversation does not hold
        before, start = render(messages[:number], options, tokenizer), count_common(asked, text)
        if before is None or not text.startswith(before) or start <= len(before):
            return None
    end = len(until.rstrip())  # a line break after the end of the turn is not said
    closed = until[:end].endswith(list_added(tokenizer)) and not find_late_end(tokenizer)
    return start, end if ends or closed else find_end(text, len(until), tokenizer)


PLACEHOLDER = "\u2e18"
"""A turn of this alone shows what the template writes around it."""


def find_replaced_turn(
    messages: list[dict], number: int, text: str, options: dict, tokenizer
) -> tuple[int, int] | None:
    """Where in ``text`` a turn stands that is rendered otherwise once others follow: what differs with other words in
    its place. ``None`` where the template refuses these, or writes other turns otherwise then."""
    other = {"role": "assistant", "content": PLACEHOLDER}
    replaced = render([*messages[:number], other, *messages[number + 1 :]], options, tokenizer) or ""
    replaced += find_end_of_answer(messages, tokenizer)  # as behind the text
    before, placed, after = replaced.partition(PLACEHOLDER)
    start = count_common(before, text)
    shared = count_common(after[::-1], text[start:][::-1])
    end = len(text) - shared
    turn, span = json.dumps(messages[number], ensure_ascii=False), text[start:end]
    others = [message["content"].strip() for place, message in enumerate(messages) if place != number]
    if not placed or any(other and span.count(other) > turn.count(other) for other in others):
        return None
    if leaves_words_out(messages[number], span):  # without its thought no model would say it, unless it never has one
        as_last = render(messages[: number + 1], options, tokenizer)
        if as_last is None or not leaves_words_out(messages[number], as_last[count_common(as_last, before) :]):
            return None
    end = find_end(text, end, tokenizer) if shared == len(after) else start + len(span.rstrip())
    return (start, end) if text[:end].endswith(list_added(tokenizer)) else None


def find_end(text: str, end: int, tokenizer) -> int:
    """Where a turn ends whose words do so at ``end``: behind the token that follows, or those up to the end token."""
    rest, place = text[end:].lstrip(), 0
    while (token := match_added(rest, place, tokenizer)) and not rest[:place].endswith(tokenizer.eos_token or "\0"):
        place += len(token)
    ends = rest[:place].endswith(tokenizer.eos_token or "\0")
    place = place if ends else len(match_added(rest, 0, tokenizer))
    return len(text) - len(rest) + place if place else end


def match_added(text: str, place: int, tokenizer) -> str:
    """The longest of the added tokens that stands there, or nothing."""
    return max((token for token in list_added(tokenizer) if text.startswith(token, place)), key=len, default="")


def find_end_of_answer(messages: list[dict], tokenizer) -> str:
    """What the template leaves out behind the last turn, where that is an answer."""
    last = messages[-1]
    return find_late_end(tokenizer) if last["role"] == "assistant" and not last.get("tool_calls") else ""


@cache
def find_late_end(tokenizer) -> str:
    """What ends an answer where the template writes it before the next turn alone (GLM's), and not behind the last."""
    turns = [{"role": role, "content": PLACEHOLDER} for role in ("user", "assistant", "user")]
    alone, followed = render(turns[:2], {"tools": None}, tokenizer), render(turns, {"tools": None}, tokenizer)
    if alone is None or followed is None or not followed.startswith(alone) or not alone.endswith(PLACEHOLDER):
        return ""
    return followed[len(alone) : find_end(followed, len(alone), tokenizer)]


def mark_spans(text: str, encoding, spans: list[tuple[int, int]] | None, tokenizer) -> tuple[list[int], list[int]]:
    """Tokens, and 1 where they lie in a span. A token over an edge counts to what comes after it."""
    tokens = encoding if isinstance(encoding, list) else encoding.ids
    if spans is None:
        return tokens, [1] * len(tokens)
    mask = [0] * len(tokens)
    edges = locate_edges(text, encoding, [edge for span in spans for edge in span], tokenizer)
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        mask[start:end] = [1] * (end - start)
    return tokens, mask


def locate_edges(text: str, encoding, edges: list[int], tokenizer) -> list[int]:
    """Of each place in the text, how many of its tokens stand before it.

    What stands before a token that always stands for itself has no influence on what comes after it: only the rest,
    from there to the edge, is tokenized again.
    """
    separators = list_separators(tokenizer)
    if isinstance(encoding, list) or not separators:
        tokens = encoding if isinstance(encoding, list) else encoding.ids
        before = [text[:edge] for edge in edges]
        return [count_before(encode([part], tokenizer)[0], tokens, part, tokenizer) for part in before]
    tokens, counts = encoding.ids, []
    places = [place for place, token in enumerate(tokens) if token in separators]
    ends = [encoding.token_to_chars(place)[1] for place in places]
    for edge in edges:
        before = bisect_right(ends, edge)
        place = places[before - 1] if before else 0
        start = encoding.token_to_chars(place)[0] if before else 0
        part = text[start:edge]
        rest = encode_once(part, tokenizer)
        following = tokens[place : place + 4 * len(part)]  # a token writes a byte at least
        counts.append(place + count_before(rest, following, part, tokenizer))
    return counts


@cache
def list_added(tokenizer) -> tuple[str, ...]:
    """Tokens beside the learned vocabulary: asked for at each turn, they took a tenth of the time beside tokenizing."""
    return tuple(tokenizer.get_added_vocab())


@cache
def list_separators(tokenizer) -> frozenset[int]:
    """Added tokens at which the text is divided as it is, before anything else: nothing is merged over them."""
    added = tokenizer.added_tokens_decoder if tokenizer.is_fast else {}
    return frozenset(
        number
        for number, token in added.items()
        if not (token.normalized or token.single_word or token.lstrip or token.rstrip)
    )


@lru_cache(maxsize=1024)
def encode_once(text: str, tokenizer) -> list[int]:
    """Few texts, many times: how a turn begins."""
    return encode([text], tokenizer)[0]


def trim_marks(tokens: list[int], mask: list[int], tokenizer) -> list[int] | None:
    """The template's own marks, without white space after an end of turn; ``None`` where a turn has no end to learn."""
    added, trimmed = set(tokenizer.get_added_vocab().values()), list(mask)
    stops = [i for i, learned in enumerate(mask) if learned and (i + 1 == len(mask) or not mask[i + 1])]
    for stop in stops:
        while trimmed[stop] and not tokenizer.decode([tokens[stop]]).strip() and tokens[stop] not in added:
            trimmed[stop] = 0
            stop -= 1
        if not trimmed[stop] or tokens[stop] not in added:
            return None
    return trimmed


def count_runs(mask: list[int]) -> int:
    return sum(value for value, _ in groupby(mask))
