"""What rows of data are, seen by what they hold: which of the formats, and which column is what."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from generator.errors import OtherTask, SourceError
from generator.inputs.data_formats import KINDS, NO_HINTS, Format, Hints, describe_hint

TEXT_COLUMNS = ("text", "content", "sentence", "document", "review")
LABEL_COLUMNS = ("label", "labels", "class", "category", "target")
CONVERSATION_COLUMNS = ("messages", "conversations", "conversation")
QUESTIONS = ("instruction", "question", "query", "prompt", "problem", "statement", "request", "user", "human")
INPUTS = ("input", "context")
ANSWERS = (
    *("output", "answer", "response", "reply", "completion", "solution", "assistant", "bot", "chosen"),
    *("summary", "translation", "answers"),
)
ALTERNATIVES = ("answers",)
"""A column of these names may hold lists: several answers that are right, of which the first is learned (SQuAD)."""
TOOLS = ("tools", "functions")
SYSTEMS = ("system", "system_prompt")
TEMPLATE_ARGUMENTS = ("chat_template_kwargs",)
"""What a row gives its chat template beside the turns; the name is TRL's."""
MEDIA = ("image", "images", "audio", "audios", "video", "videos")
NEEDED = ("choices", "options", "passage", "paragraph", "article", "document", "history")
"""Columns without which a question may make no sense; a conversation has its documents in its turns."""
SPEAKERS = ("role", "from", "speaker", "author")
"""Columns that say who speaks, where a row is a single turn."""
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text", "text_pair")),
    *(("text1", "text2"), ("text_a", "text_b"), ("sentence_a", "sentence_b"), ("question", "sentence")),
    *(
        (question, passage)
        for question in ("question", "query")
        for passage in ("passage", "context", "document", "answer")
    ),
)
"""Columns of a classification of two texts, by the names that GLUE, SuperGLUE, SNLI and MS MARCO give them: a label says nothing
of one of them alone."""
FEW = 0.25
"""A column with at most so many distinct values per row holds labels, where no name says so."""
LABEL_CHARACTERS = 50
FRACTION = re.compile(r"[+-]?\d*\.\d*[1-9]\d*(e[+-]?\d+)?", re.IGNORECASE)
"""A number with a part behind its point, as a table without types writes it."""
MANY = 0.5
"""A column in which at least this share of rows has something is used; one bad row does not make another format."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Columns and some of the rows. ``where`` names the data in errors."""

    where: str
    columns: tuple[str, ...]
    rows: Sequence[Mapping]

    def read_column(self, column: str) -> list:
        """Its values, without those that are not there: in tables of numbers these are NaN."""
        values = [row[column] for row in self.rows if row.get(column) not in (None, "")]
        return [value for value in values if value == value]

    def holds_texts(self, column: str) -> bool:
        values = self.read_column(column)
        texts = sum(isinstance(value, str) for value in values)
        return bool(values) and texts >= MANY * len(values)

    def holds_lists(self, column: str) -> bool:
        return any(isinstance(value, list) for value in self.read_column(column))

    def holds_answers(self, column: str) -> bool:
        """Texts, numbers, or lists of alternatives."""
        values = self.read_column(column)
        kinds = (str, int, float) + ((list, dict) if column.lower() in ALTERNATIVES else ())
        answers = sum(isinstance(value, kinds) and not isinstance(value, bool) for value in values)
        return bool(values) and answers >= MANY * len(values)

    def list_nested(self) -> list[str]:
        """Columns of lists or objects."""
        return [c for c in self.columns if any(isinstance(v, list | dict) and v for v in self.read_column(c))]

    def pick_used(self, names: Sequence[str]) -> list[str]:
        """The columns of these names in which any row has something; else the first: rows further on may have it."""
        named = self.pick(names)
        return [column for column in named if self.read_column(column)] or named[:1]

    def count_turns(self, column: str, *keys: str) -> int:
        """Rows whose value is a list of objects with these keys."""
        return sum(
            isinstance(value, list)
            and bool(value)
            and all(isinstance(t, dict) and set(keys) <= t.keys() for t in value)
            for value in self.read_column(column)
        )

    def pick(self, names: Sequence[str]) -> list[str]:
        """The columns of these names, in their order, whatever their case."""
        return [column for name in names for column in self.columns if column.lower() == name]

    def list_columns(self) -> str:
        return ", ".join(map(repr, self.columns[:50])) or "no columns"


def recognise_format(
    columns: Sequence[str], rows: Sequence[Mapping], task: str, hints: Hints = NO_HINTS, *, where: str = "the data"
) -> Format:
    """What ``rows`` (some of all) are, for a task.

    Raises ``SourceError``: a column that is not there, no format, or more than one, with its candidates; ``UsageError``: a hint
    that the task would pass over.
    """
    sample = Sample(where, tuple(map(str, columns)), rows)
    hints.check(task)
    for option, column in hints.list_named():
        if column not in sample.columns:
            raise SourceError(
                f"{describe_hint(option, column)}: --data {where} has {sample.list_columns()}", "name one of these"
            )
    if task == "text-classification":
        return recognise_labelled(sample, hints.text, hints.label)
    if task != "sft":
        return recognise_text(sample, hints.text)
    return force_format(sample, hints.format, hints) if hints.format else recognise_examples(sample, hints)


def recognise_examples(sample: Sample, hints: Hints) -> Format:
    """For supervised fine-tuning. A hint that would train answers without their questions is refused."""
    text_column = hints.text
    if text_column is not None and not sample.holds_lists(text_column):
        other = recognise_conversation(sample, {}) or recognise_pair(sample, {})
        if other is not None:
            raise SourceError(
                f"--text-column {text_column!r} alone would be trained on, and --data {sample.where} holds "
                f"{other.describe()}",
                "leave --text-column out, or say --format text too if only this column is meant",
            )
        return make_format("text", {"text": text_column}, "you named the column", sample)
    named = ({} if text_column is None else {"messages": text_column}) | dict(hints.columns)
    recognised = recognise_conversation(sample, named) or recognise_pair(sample, named)
    if recognised is not None:
        check_order(sample, hints.columns)
        if "messages" not in named and not {"prompt", "answer"} <= named.keys():
            refuse_left_out(sample, recognised)
        return recognised
    refuse_written_conversations(sample, [named["messages"]] if "messages" in named else sample.columns)
    questions = [column for column in sample.pick(QUESTIONS) if sample.holds_texts(column)]
    if questions:
        others = [column for column in sample.columns if column not in questions and sample.holds_texts(column)]
        could = f"; it could be {' or '.join(map(repr, others[:9]))}" if others else ""
        raise SourceError(
            f"--data {sample.where} asks in {' and '.join(map(repr, questions))} and has no column that is known to answer{could}",
            "name it: --column answer=NAME, or, to learn one column of texts alone, --format text --text-column NAME",
        )
    refuse_single_turns(sample)
    return recognise_text(sample, None, "; question and answer: --column prompt=NAME --column answer=NAME")


def check_order(sample: Sample, given: Mapping[str, str]) -> None:
    """Raises ``SourceError`` where the columns named for question and answer have each other's names."""
    prompt, answer = given.get("prompt", "").lower(), given.get("answer", "").lower()
    if prompt in ANSWERS and prompt not in QUESTIONS and answer in (*QUESTIONS, *INPUTS):
        raise SourceError(
            f"--column prompt={given['prompt']} answer={given['answer']}: by their names, --data {sample.where} asks in "
            f"{given['answer']!r} and answers in {given['prompt']!r}",
            "swap them; if it is meant so, say --format question-answer too",
        )


def refuse_left_out(sample: Sample, recognised: Format) -> None:
    """Raises ``SourceError`` where a column that is not used may belong to the question, or says which answers are bad (KTO)."""
    used = recognised.column_of
    needed = sample.pick(MEDIA if "messages" in used else (*NEEDED, *MEDIA))
    left = [c for c in needed if c not in used.values() and any(sample.read_column(c))]
    judged = [c for c in sample.pick(("label",)) if any(value is False for value in sample.read_column(c))]
    if not left and not judged:
        return
    kept = [f"--column {meaning}={used[meaning]}" for meaning in ("messages", "prompt", "answer") if meaning in used]
    reason = f"{left[0]!r} may belong to the question" if left else f"{judged[0]!r} is false for answers that are bad"
    remedy = f"--column input={left[0]} puts it behind; " if left and sample.holds_texts(left[0]) else ""
    remedy = remedy if left else "keep the rows where it is true; "
    raise SourceError(
        f"--data {sample.where} is read as {KINDS[recognised.kind].words}, and {reason} and would be left out",
        f"{remedy}to leave it out, {' '.join(kept)}",
    )


def refuse_single_turns(sample: Sample) -> None:
    """Raises ``SourceError`` where a row is one turn of a conversation that other rows go on with (OASST)."""
    for column in sample.pick(SPEAKERS):
        speakers = {value.lower() for value in sample.read_column(column) if isinstance(value, str)}
        if len(speakers) > 1 and speakers & {"assistant", "gpt", "bot", "model"}:
            raise SourceError(
                f"--data {sample.where} has one turn a row ({column!r} is {', '.join(sorted(speakers)[:9])}): what answers what "
                "is not seen",
                "put the turns of a conversation into one row, under 'messages'; or --format text to learn texts alone",
            )


def force_format(sample: Sample, kind: str, hints: Hints) -> Format:
    """What --format says. Raises ``SourceError`` where its columns are not there."""
    evidence, given = "you asked for this format", hints.columns
    if kind == "text":
        return make_format(kind, {"text": hints.text or choose_text(sample)[0]}, evidence, sample)
    if kind in ("messages", "sharegpt"):
        named = given.get("messages") or hints.text
        candidates = [named] if named else [c for c in sample.columns if sample.holds_lists(c) and c not in TOOLS]
        candidates = [c for c in candidates if c in CONVERSATION_COLUMNS] or candidates
        if len(candidates) != 1:
            raise SourceError(
                f"--format {kind}: --data {sample.where} has {sample.list_columns()}, of which "
                f"{' and '.join(map(repr, candidates)) or 'none'} could be conversations",
                "name the column: --column messages=NAME",
            )
        return make_format(kind, {"messages": candidates[0]} | find_beside(sample, given), evidence, sample)
    pair = find_pair(sample, given, preferred=kind)
    if pair is None:
        raise SourceError(
            f"--format {kind}: no prompt and answer among {sample.list_columns()} of --data {sample.where}",
            "name them: --column prompt=NAME --column answer=NAME",
        )
    if kind == "preference" and "answer" not in given and pair["answer"].lower() != "chosen":
        raise SourceError(
            f"--format preference: --data {sample.where} has no column 'chosen' among {sample.list_columns()}",
            "name it: --column answer=NAME",
        )
    lists = sample.count_turns(pair["answer"], "role") > 0
    kinds = {"prompt-completion": "prompt-messages", "preference": "preference-messages"}
    return make_format(kinds.get(kind, kind) if lists else kind, pair, evidence, sample)


def make_format(kind: str, columns: Mapping[str, str], evidence: str, sample: Sample) -> Format:
    """With the columns that are not used named in the evidence."""
    unused = [column for column in sample.columns if column not in columns.values()]
    more = f", {len(unused) - 6} more" if len(unused) > 6 else ""
    rest = f"; not used: {', '.join(map(repr, unused[:6]))}{more}" if unused else ""
    return Format(kind=kind, columns=tuple(columns.items()), evidence=evidence + rest)


def find_beside(sample: Sample, given: Mapping[str, str]) -> dict[str, str]:
    """The columns of tools, of the system's turn and of arguments of the chat template, if there are."""
    beside = {"system": SYSTEMS, "tools": TOOLS, "chat_template_kwargs": TEMPLATE_ARGUMENTS}
    picked = {meaning: next(iter(sample.pick_used(names)), None) for meaning, names in beside.items()}
    picked |= {meaning: given[meaning] for meaning in beside if meaning in given}
    return {meaning: column for meaning, column in picked.items() if column}


def recognise_conversation(sample: Sample, given: Mapping[str, str]) -> Format | None:
    """One column of messages, or a prompt and an answer in messages."""
    if "prompt" in given or "answer" in given:
        return None
    named = given.get("messages")
    shapes = {"messages": ("role", "content"), "sharegpt": ("from", "value")}
    counts = {
        (column, kind): sample.count_turns(column, *keys)
        for column in ([named] if named else sample.columns)
        if column.lower() not in TOOLS or named
        for kind, keys in shapes.items()
    }
    counts |= {  # tool calls have no content
        (column, "messages"): max(count, sample.count_turns(column, "role"))
        for (column, kind), count in counts.items()
        if kind == "messages"
    }
    candidates = [pair for pair, count in counts.items() if count]
    names = list(dict.fromkeys(column for column, _ in candidates))
    if len(names) == 1 and len(candidates) > 1:
        kinds = " and ".join(f"{counts[pair]} rows of {' and '.join(shapes[pair[1]])}" for pair in candidates)
        raise SourceError(f"--data {sample.where} mixes conversations in {names[0]!r}: {kinds}", "write all in one way")
    chosen, rejected = sample.pick(("chosen",)), sample.pick(("rejected",))
    if named is None and len(names) > 1:
        usual = [pair for pair in candidates if pair[0].lower() in CONVERSATION_COLUMNS]
        if len(usual) == 1:
            candidates = usual
        elif (
            chosen
            and rejected
            and {*chosen, *rejected} <= set(names) <= {*chosen, *rejected, *sample.pick(("prompt",))}
        ):
            return make_preference(sample, chosen[0])
        elif sample.pick(("prompt",)) and sample.pick(("completion",)) and len(names) == 2:
            columns = {"prompt": sample.pick(("prompt",))[0], "answer": sample.pick(("completion",))[0]}
            evidence = "lists of objects with 'role' and 'content' under both"
            return make_format("prompt-messages", columns | find_beside(sample, given), evidence, sample)
        else:
            raise SourceError(
                f"--data {sample.where} has conversations in {' and '.join(map(repr, names))}",
                "name the one to learn from: --column messages=NAME",
            )
    if not candidates:
        empty = [c for c in ([named] if named else sample.pick(CONVERSATION_COLUMNS)) if sample.columns and c]
        empty = [c for c in empty if any(isinstance(row.get(c), list) for row in sample.rows)]
        if not empty:
            return None
        return make_format("messages", {"messages": empty[0]}, "its values are lists", sample)
    column, kind = candidates[0]
    if named is None and column in rejected:
        raise SourceError(
            f"--data {sample.where} has conversations in {column!r} alone: what was rejected is not to be learned",
            "name the column to learn from: --column messages=NAME",
        )
    first, second = shapes[kind]
    evidence = f"{counts[column, kind]} of {len(sample.rows)} rows looked at hold a list of objects with {first!r} and {second!r}"
    return make_format(kind, {"messages": column} | find_beside(sample, given), evidence, sample)


def make_preference(sample: Sample, chosen: str) -> Format:
    questions = sample.pick(("prompt", "question", "instruction"))
    prompt = {"prompt": questions[0]} if questions else {}
    evidence = "both 'chosen' and 'rejected' hold conversations"
    return make_format("preference-messages", prompt | {"answer": chosen} | find_beside(sample, {}), evidence, sample)


def recognise_pair(sample: Sample, given: Mapping[str, str]) -> Format | None:
    """A column that asks and one that answers, in texts."""
    if "messages" in given:
        return None
    pair = find_pair(sample, given)
    if pair is None:
        return None
    question, answer = pair["prompt"].lower(), pair["answer"].lower()
    if sample.count_turns(pair["answer"], "role"):
        kind = "preference-messages" if answer == "chosen" else "prompt-messages"
    elif answer == "chosen":
        kind = "preference"
    elif (question, answer) == ("prompt", "completion") and not any(
        sample.read_column(pair[meaning]) for meaning in ("input", "system") if meaning in pair
    ):  # plain text has no place for them
        kind = "prompt-completion"
        pair.pop("chat_template_kwargs", None)
    else:
        kind = "alpaca" if question == "instruction" else "question-answer"
    both = f"{pair['prompt']!r} and {pair['answer']!r}"
    if "prompt" in given or "answer" in given:
        return make_format(kind, pair, "you named the columns", sample)
    return make_format(
        kind, pair, f"columns named {both}, with {'texts' if kind != 'prompt-messages' else 'messages'} in both", sample
    )


def find_pair(sample: Sample, given: Mapping[str, str], preferred: str | None = None) -> dict[str, str] | None:
    """Columns by meaning: prompt, input, answer, system. ``None``: no pair. Raises ``SourceError`` where there are several."""
    usable = [c for c in sample.columns if sample.holds_texts(c) or (sample.holds_lists(c) and c in given.values())]
    questions = [c for c in sample.pick(QUESTIONS) if c in usable and c not in given.values()]
    answers = [c for c in sample.pick(ANSWERS) if sample.holds_answers(c) and c not in given.values()]
    if not answers:  # all empty: no other format, but rows to be refused
        answers = [c for c in sample.pick(ANSWERS) if not sample.read_column(c) and c not in given.values()]
    inputs = [c for c in sample.pick_used(INPUTS) if c not in given.values()]
    if {"prompt", "answer"} <= given.keys():
        inputs = [c for c in inputs if sample.holds_texts(c)]
    if sample.pick(("chosen",)) and sample.pick(("rejected",)) and preferred in (None, "preference"):
        answers = [c for c in answers if c.lower() == "chosen"] or answers
    elif "chosen" in answers:
        answers.remove("chosen")
    alone = not questions and not given and len(inputs) == 1 and inputs[0].lower() == "input"
    if alone and answers and sample.holds_texts(inputs[0]):
        questions, inputs = inputs, []
    questions = [given["prompt"]] if "prompt" in given else questions
    answers = [given["answer"]] if "answer" in given else answers
    if given.keys() & {"prompt", "answer"} and not (questions and answers):
        missing = "answer" if "prompt" in given else "prompt"
        raise SourceError(
            f"--data {sample.where} has no column for the {missing} among {sample.list_columns()}",
            f"name it: --column {missing}=NAME",
        )
    if not questions or not answers:
        if not answers:
            return None
        texts = [c for c in usable if c not in answers]
        texts = [c for c in texts if c.lower() != "rejected"]
        if answers[0].lower() == "chosen" and not texts:
            raise SourceError(
                f"--data {sample.where} has 'chosen' without a prompt: transcripts in one text are not split",
                "give the prompt in a column of its own, or messages",
            )
        if not texts:
            return None
        raise SourceError(
            f"--data {sample.where} has an answer in {' or '.join(map(repr, answers))} and no column that is known to ask; "
            f"it could be {' or '.join(map(repr, texts[:9]))}",
            f"name it: --column prompt={texts[0]}, or, to learn one column of texts alone, --format text --text-column NAME",
        )
    for meaning, candidates in (("prompt", questions), ("answer", answers)):
        if len(candidates) > 1:
            raise SourceError(
                f"--data {sample.where}: the {meaning} could be {' or '.join(map(repr, candidates))}",
                f"name it: --column {meaning}=NAME",
            )
    inputs = [given["input"]] if "input" in given else inputs
    if len(inputs) > 1:
        raise SourceError(
            f"--data {sample.where}: what the prompt is asked of could be {' or '.join(map(repr, inputs))}",
            "name it: --column input=NAME",
        )
    nested = [c for c in inputs if sample.read_column(c) and not sample.holds_answers(c)]
    if nested:
        raise SourceError(
            f"--data {sample.where}: {nested[0]!r} holds no text but {type(sample.read_column(nested[0])[0]).__name__}, and "
            f"{questions[0]!r} may need it",
            f"make it text; or, to leave it out, --column prompt={questions[0]} --column answer={answers[0]}",
        )
    beside = find_beside(sample, given)
    beside.pop("tools", None)
    asked = {"prompt": questions[0]} | ({"input": inputs[0]} if inputs else {})
    return asked | {"answer": answers[0]} | beside


def recognise_text(sample: Sample, text_column: str | None, pairs: str = "") -> Format:
    """The column of texts. ``pairs``: what else could be named where none is."""
    if text_column is not None:
        return make_format("text", {"text": text_column}, "you named the column", sample)
    if not sample.pick(TEXT_COLUMNS):
        other = recognise_conversation(sample, {}) or recognise_pair(sample, {})
        if other is not None:
            raise OtherTask(f"--data {sample.where} holds {other.describe()}, and no text by itself", "sft")
    refuse_written_conversations(sample, sample.pick(TEXT_COLUMNS)[:1] or sample.columns)
    column, evidence = choose_text(sample, pairs)
    return make_format("text", {"text": column}, evidence, sample)


def refuse_written_conversations(sample: Sample, columns: Sequence[str]) -> None:
    """Raises ``SourceError`` where one of ``columns`` holds conversations written as JSON, as tables of texts must hold them: their
    brackets and the names of roles would be learned as text."""
    for column in columns:
        values = [value for value in sample.read_column(column) if isinstance(value, str)]
        written = sum(is_written_conversation(value) for value in values)
        if written and written >= MANY * len(values):
            raise SourceError(
                f"--data {sample.where}: {column!r} holds conversations as JSON in a text ({written} of {len(values)} rows looked at)",
                f"write them as lists, row[{column!r}] = json.loads(row[{column!r}]), in JSON Lines or Parquet; to learn the JSON itself, "
                f"--format text --text-column {column} (--task causal-lm: --text-column alone)",
            )


def is_written_conversation(text: str) -> bool:
    """Whether ``text`` is JSON of a list of turns."""
    if not text.lstrip().startswith("["):
        return False
    try:
        turns = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(turns) and all(isinstance(t, dict) and ("role" in t or {"from", "value"} <= t.keys()) for t in turns)


def choose_text(sample: Sample, pairs: str = "") -> tuple[str, str]:
    """The column that is named so or the only one of texts, and why. Raises ``SourceError``."""
    usual = sample.pick(TEXT_COLUMNS)
    if usual:
        return usual[0], "the column is named so"
    texts = [column for column in sample.columns if sample.holds_texts(column)]
    nested = sample.list_nested()
    if len(texts) == 1 and not nested:
        return texts[0], "the only column of texts"
    candidates = f": {' or '.join(map(repr, texts[:9]))} could be" if texts else ""
    unread = f"; {' and '.join(map(repr, nested[:9]))} hold lists or objects" if nested else ""
    raise SourceError(
        f"--data {sample.where}: no text among {sample.list_columns()}{candidates}{unread}",
        f"name it: --text-column{pairs}" + ("; conversations are lists of role and content" if nested else ""),
    )


def recognise_labelled(sample: Sample, text_column: str | None, label_column: str | None) -> Format:
    """A column of texts and one of few distinct values."""
    reasons = []
    if label_column is None:
        label_column, reason = find_label(sample, text_column)
        reasons.append(reason)
    if text_column is None:
        refuse_pairs(sample, label_column)
        usual = [c for c in sample.pick(TEXT_COLUMNS) if c != label_column]
        texts = [c for c in sample.columns if c != label_column and sample.holds_texts(c)]
        if len(texts) > 1 and not usual:
            texts = [c for c in texts if not holds_labels(sample, c)] or texts
        if not usual and len(texts) != 1:
            candidates = f": {' or '.join(map(repr, texts[:9]))} could be" if texts else ""
            raise SourceError(
                f"--data {sample.where}: no text among {sample.list_columns()}{candidates}", "name it: --text-column"
            )
        text_column = (usual or texts)[0]
        reasons.append(f"{text_column!r} is {'named so' if usual else 'the only column of texts beside it'}")
    refuse_no_classes(sample, label_column)
    columns = {"text": text_column, "label": label_column}
    return make_format("classification", columns, ", ".join(reasons) or "you named the columns", sample)


def refuse_pairs(sample: Sample, label_column: str) -> None:
    """Raises ``SourceError`` where the label is that of two texts together."""
    texts = {c.lower(): c for c in sample.columns if c != label_column and sample.holds_texts(c)}
    pair = next((pair for pair in PAIRS if texts.keys() >= set(pair)), None)
    if pair is not None:
        first, second = (texts[name] for name in pair)
        raise SourceError(
            f"--data {sample.where}: {label_column!r} is the label of {first!r} and {second!r} together, and one text a row is what is "
            "learned from here",
            f"write both into one column, {first!r} first, then the tokenizer's separator; or, to learn from one of them alone, "
            f"--text-column {first}",
        )


def refuse_no_classes(sample: Sample, column: str) -> None:
    """Raises ``SourceError`` where most rows have a measure, or several labels: none of them is a bad row."""
    values = sample.read_column(column)
    measures = [v for v in values if isinstance(v, float) and not v.is_integer()]
    written = [v for v in values if isinstance(v, str) and FRACTION.fullmatch(v.strip())]
    measures += map(float, written if len(set(written)) > FEW * len(values) else ())  # few are grades
    several = [v for v in values if isinstance(v, list)]
    most = max(1, MANY * len(values))  # a single row is no kind of column
    if len(measures) > most:
        raise SourceError(
            f"--data {sample.where}: {column!r} holds measures, as {measures[0]:.6g}, and classes are what is learned here",
            "make classes of them, such as low and high; --label-column names another column",
        )
    if len(several) > most:
        raise SourceError(
            f"--data {sample.where}: {column!r} holds several labels of a row, and one is what is learned here",
            "give one label a row, or a file for each label that says yes or no",
        )


def find_label(sample: Sample, text_column: str | None) -> tuple[str, str]:
    """The column of the labels, and why it is."""
    usual = [c for c in sample.pick(LABEL_COLUMNS) if c != text_column]
    if usual:
        return usual[0], f"{usual[0]!r} is named so"
    few = [c for c in sample.columns if c != text_column and holds_labels(sample, c)]
    if len(few) == 1:
        distinct = len({str(value) for value in sample.read_column(few[0])})
        return few[0], f"{few[0]!r} has {distinct} distinct values in {len(sample.rows)} rows looked at"
    candidates = f": {' or '.join(map(repr, few[:9]))} could be" if few else ""
    raise SourceError(
        f"--data {sample.where}: no label among {sample.list_columns()}{candidates}", "name it: --label-column"
    )


def holds_labels(sample: Sample, column: str) -> bool:
    """Whether its values are few, short and again and again the same."""
    values = sample.read_column(column)
    if len(values) < MANY * len(sample.rows) or not all(
        isinstance(v, str | int) or (isinstance(v, float) and v.is_integer()) for v in values
    ):
        return False
    distinct = {str(value) for value in values}
    return 2 <= len(distinct) <= FEW * len(values) and max(map(len, distinct)) <= LABEL_CHARACTERS
