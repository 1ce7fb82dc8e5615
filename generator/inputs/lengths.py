"""How many tokens the examples have: counted with the model's own tokenizer where it is at hand, else from bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from generator.inputs.chat_child import EndlessTemplate, RefusedConversations, render_conversations
from generator.inputs.chat_losses import describe_losses
from generator.inputs.chat_templates import read_chat_templates, read_special_tokens
from generator.inputs.data_files import (
    BYTES_PER_TOKEN,
    DataSource,
    compute_quantiles,
    count_bytes,
    list_data_files,
    measure_length,
)
from generator.inputs.data_formats import Format
from generator.inputs.data_readers import READERS, Lengths, sample_texts
from generator.inputs.hub_files import find_cached_file
from generator.inputs.json_files import read_json
from generator.inputs.leaves import load_make_example, load_plain_template, load_unpack_conversation
from generator.inputs.model_source import ModelSource
from generator.inputs.token_child import TokenCounter, UnusableTokenizer, find_counter

COUNTED_ROWS = 2000
COUNTED_BYTES = 1_000_000
"""What is tokenized at most: half a second; the rows' lengths in bytes are all known."""
Written = tuple[int, str, tuple[str, ...]]
"""an example's length in bytes, the text of it that is tokenized, and the answers in it"""
LINES_AT_ONCE = 1000
"""Lines of plain text that are tokenized as one text, as `datasets` hands them to data.py."""


def count_lengths(data: DataSource, source: ModelSource, tokenizer: str | None) -> DataSource:
    """The lengths in tokens of the model's own tokenizer, or of ``tokenizer``, where its file and the library are here; else
    from bytes. Conversations are counted as the chat template renders them. Raises ``SourceError`` for a file that is not JSON."""
    path = None if data.format == "hub" else find_tokenizer_file(source, tokenizer)
    counter = find_counter(path) if path else None
    if path is None or counter is None:
        return data
    try:
        return count_with(counter, data, source)
    except RefusedConversations as error:
        return replace(data, notes=(*data.notes, f"{error}: a run may take none either"))
    except (EndlessTemplate, UnusableTokenizer) as error:
        read_json(path, "download it again")  # of one that is cut short that is what to say
        return replace(data, length_source=f"{data.length_source}: {error}")


def count_with(counter: TokenCounter, data: DataSource, source: ModelSource) -> DataSource:
    """Raises ``EndlessTemplate``, ``RefusedConversations``, ``UnusableTokenizer``."""
    folder = counter.path.parent
    if data.recognised is None:
        return count_text(data, counter)
    specials = read_special_tokens(folder)
    if data.recognised.form != "messages":
        return count_examples(data, counter, list_texts(data, specials.get("eos_token", "")), known=True)
    templates = read_chat_templates(folder)
    known = bool(templates) or source.has_chat_template is False
    rendered = render_examples(data, templates or make_plain_template(counter, specials), specials)
    data = replace(data, notes=(*data.notes, *describe_losses(conversation[1:] for conversation in rendered)))
    written = [(length, text, list_answers(turns)) for length, turns, text, _ in rendered]
    return count_examples(data, counter, written, known=known)


def list_texts(data: DataSource, end: str) -> list[Written]:
    """What is tokenized of each example without messages."""
    learned_alone = data.sft_format is not None  # else texts are parts of one stream, or have labels
    ends = end if learned_alone else ""
    return [
        (
            measure_length(example),
            write_example(example, ends),
            (example["completion"],) if "completion" in example else (),
        )
        for example in read_examples(data)
    ]


def render_examples(
    data: DataSource, templates: dict[str, str], specials: dict[str, str]
) -> list[tuple[int, list[dict[str, Any]], str, str]]:
    """Of each conversation that the chat template takes its length in bytes, turns, text, and why train.py refuses it.

    Raises ``EndlessTemplate``, ``RefusedConversations``."""
    unpack = load_unpack_conversation()
    taken = []
    for example in read_examples(data):
        with suppress(Exception):  # of a row that the project's own reader refuses
            taken.append((measure_length(example), tuple(unpack(example))))
    rendered = render_conversations(templates, specials, [conversation for _, conversation in taken])
    pairs = zip(taken, rendered, strict=True)
    return [(length, turns, one.text, one.problem) for (length, (turns, _)), one in pairs if one.text is not None]


def list_answers(turns: list[dict[str, Any]]) -> tuple[str, ...]:
    """What the assistant says, as far as it is learned from."""
    return tuple(turn["content"] for turn in turns if turn["role"] == "assistant" and turn.get("weight") != 0)


def make_plain_template(counter: TokenCounter, specials: dict[str, str]) -> dict[str, str]:
    """What a project sets where the tokenizer has none."""
    leaf = load_plain_template()
    first = counter.find_first_token()
    begins = first is not None and first == specials.get("bos_token")
    return {"default": (leaf.BEGIN if begins else "") + leaf.TURNS}


def count_examples(data: DataSource, counter: TokenCounter, written: list[Written], *, known: bool) -> DataSource:
    """``written``: of each example; ``known``: whether the chat template is the one that the run will have.

    Raises ``UnusableTokenizer``."""
    form = data.recognised.form if data.recognised else "text"
    learned_alone = data.sft_format is not None
    if not written:
        return data
    in_stream = form == "text" and not learned_alone and data.label_column is None
    bare = form == "messages" or in_stream
    added = count_marks(counter) if in_stream else 0
    texts = [text for _, text, _ in written]
    tokens = [n + added for n in counter.count(texts, special=not bare)]
    if not any(tokens):
        raise UnusableTokenizer(f"its tokenizer makes no token of the {len(tokens):,} examples looked at")
    exact = known and len(tokens) == data.rows
    where = f"on {'all' if len(tokens) == data.rows else 'the first'} {len(tokens):,} examples"
    words = f"counted with the tokenizer {where}" + (", its chat template not known" if not known else "")
    counted = replace(data, length_source=words, lengths_counted=known, lengths_exact=exact)
    if learned_alone and form != "text":
        answers = [answer for *_, spoken in written for answer in spoken]
        asked = [text[: max(0, text.find(spoken[0]))] if spoken else text for _, text, spoken in written]
        parts = counter.count([*answers, *asked], special=False)
        learned = sum(parts[: len(answers)]) + len(answers)  # the end of each, too
        counted = replace(
            counted,
            answer_share=min(1.0, round(learned / sum(tokens), 4)),
            answer_starts=compute_quantiles(parts[len(answers) :]),
            shared_tokens=count_shared_tokens(written, counter, special=not bare),
        )
    if len(tokens) == data.rows:
        return replace(counted, token_quantiles=compute_quantiles(tokens), tokens=sum(tokens))
    slope, level = fit_tokens([length for length, *_ in written], tokens)
    return replace(
        counted,
        token_quantiles=tuple(round(n * BYTES_PER_TOKEN * slope + level, 1) for n in data.token_quantiles),
        tokens=None if data.tokens is None else round(data.tokens * BYTES_PER_TOKEN * slope + level * (data.rows or 0)),
    )


def count_marks(counter: TokenCounter) -> int:
    """What stands around a text in a stream: its end, and what the tokenizer begins texts with (find_begin of data.py)."""
    specials = read_special_tokens(counter.path.parent)
    begins = counter.find_first_token() == specials.get("bos_token") != specials.get("eos_token")
    return 2 if begins else 1


def count_shared_tokens(written: list[Written], counter: TokenCounter, *, special: bool) -> int:
    """At the beginning of every example, before its first answer: a system prompt, the header of the first turn. The last one that they
    have in common is left out: where they part, it may be another."""
    asked = [text[: text.rfind(answers[0])] if answers and answers[0] in text else text for _, text, answers in written]
    first, last = min(asked), max(asked)
    parted = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return max(0, counter.count([first[:parted]], special=special)[0] - 1) if parted and len(written) > 1 else 0


def fit_tokens(lengths: list[int], tokens: list[int]) -> tuple[float, float]:
    """Tokens per byte, and those that every example has besides: for the examples that were not counted."""
    from statistics import StatisticsError, linear_regression  # brings decimal: only those who count pay

    with suppress(StatisticsError):  # all of one length
        line = linear_regression(lengths, tokens)
        if line.slope > 0 and line.intercept >= 0:
            return line.slope, line.intercept
    return sum(tokens) / sum(lengths), 0.0


def count_text(data: DataSource, counter: TokenCounter) -> DataSource:
    """Plain text: what its first bytes need."""
    lines, whole = read_lines(data)
    if not lines or data.tokens is None:
        return data
    chunks = ["".join(lines[start : start + LINES_AT_ONCE]) for start in range(0, len(lines), LINES_AT_ONCE)]
    tokens = sum(counter.count(chunks, special=False))
    per_token = sum(map(count_bytes, chunks)) / (tokens or 1)
    return replace(
        data,
        tokens=tokens if whole else round(data.tokens * BYTES_PER_TOKEN / per_token),
        length_source=f"{per_token:.2g} bytes a token, counted with the tokenizer",
        lengths_counted=True,
        lengths_exact=whole,
    )


def find_tokenizer_file(source: ModelSource, tokenizer: str | None) -> Path | None:
    """tokenizer.json of a folder or of the local hub cache; nothing is downloaded for it."""
    place = tokenizer or source.tokenizer or source.path
    folder = Path(place)
    if folder.is_dir():
        path = folder / "tokenizer.json"
        return path if path.is_file() else None
    if tokenizer is None and source.kind != "hub":
        return None
    cached = find_cached_file(place, "tokenizer.json")
    return cached if isinstance(cached, Path) else None


def read_lines(data: DataSource) -> tuple[list[str], bool]:
    """The first lines of plain text, and whether these are all."""
    kept, left = [], COUNTED_BYTES
    for _, line in sample_texts(list_data_files(Path(data.path)), Lengths()):
        if left <= 0:
            return kept, False
        if isinstance(line, bytes):
            kept.append(line.decode("utf-8-sig", errors="replace").replace("\r\n", "\n"))
            left -= count_bytes(kept[-1])
    return kept, True


def read_examples(data: DataSource) -> Iterator[dict[str, Any]]:
    """The first examples."""
    if data.recognised is None:
        return
    rows = READERS[data.format](list_data_files(Path(data.path)), Lengths())
    left = COUNTED_BYTES
    usable = make_examples((row for _, row in rows if isinstance(row, dict)), data.recognised)
    for example in islice(usable, COUNTED_ROWS):
        yield example
        left -= measure_length(example)
        if left < 0:
            return


def make_examples(rows: Iterable[dict[str, Any]], recognised: Format) -> Iterator[dict[str, Any]]:
    """What is trained on of each usable row."""
    make_example, column_of = load_make_example(recognised.leaf), recognised.column_of
    for row in rows:
        with suppress(ValueError):
            if example := make_example(row, column_of):
                yield example


def write_example(example: dict[str, Any], end: str) -> str:
    """The text that is tokenized, which ends with ``end``."""
    text = "".join(example[name] for name in ("prompt", "completion", "text") if name in example)
    return text if text.endswith(end) else text + end
