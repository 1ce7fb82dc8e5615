"""The formats that rows of data can have: conversations, questions with answers, texts, texts with labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from generator.errors import SourceError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A format of rows. ``leaf`` (of templates/fragments/examples) makes its examples, ``form`` is what these are."""

    leaf: str
    form: str
    words: str


KINDS = {
    "messages": Kind(leaf="messages", form="messages", words="conversations of role and content"),
    "sharegpt": Kind(leaf="sharegpt", form="messages", words="conversations of from and value (ShareGPT)"),
    "alpaca": Kind(leaf="question_answer", form="messages", words="instructions with their outputs (Alpaca)"),
    "question-answer": Kind(leaf="question_answer", form="messages", words="questions with their answers"),
    "prompt-completion": Kind(
        leaf="prompt_completion", form="prompt_completion", words="prompts with their completions, as plain text"
    ),
    "prompt-messages": Kind(leaf="message_pairs", form="messages", words="prompts with their completions, in messages"),
    "preference": Kind(leaf="question_answer", form="messages", words="preference pairs: trains on what was chosen"),
    "preference-messages": Kind(
        leaf="message_pairs", form="messages", words="preference pairs in messages: trains on what was chosen"
    ),
    "text": Kind(leaf="text", form="text", words="texts"),
    "classification": Kind(leaf="label", form="label", words="texts with their labels"),
}
ASKABLE = ("messages", "sharegpt", "alpaca", "question-answer", "prompt-completion", "preference", "text")
"""What --format takes; whether the two of a pair are texts or messages is seen."""
MEANINGS = ("messages", "prompt", "input", "answer", "system", "tools", "chat_template_kwargs", "text", "label")
"""What --column may say of a column."""
ASSUMED = {
    "messages": {"messages": "messages"},
    "sharegpt": {"messages": "conversations"},
    "alpaca": {"prompt": "instruction", "input": "input", "answer": "output"},
    "question-answer": {"prompt": "question", "answer": "answer"},
    "prompt-completion": {"prompt": "prompt", "answer": "completion"},
    "text": {"text": "text"},
}
"""The usual columns of a format, where the data could not be looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """``columns``: pairs of meaning (``MEANINGS``) and column. ``evidence`` says how it was recognised, in words."""

    kind: str
    columns: tuple[tuple[str, str], ...]
    evidence: str

    @property
    def leaf(self) -> str:
        return KINDS[self.kind].leaf

    @property
    def form(self) -> str:
        """What its examples are: messages, prompt_completion, text or label."""
        return KINDS[self.kind].form

    @property
    def column_of(self) -> dict[str, str]:
        return dict(self.columns)

    def describe(self) -> str:
        named = ", ".join(f"{meaning} in {column!r}" for meaning, column in self.columns)
        return f"{KINDS[self.kind].words}: {named} ({self.evidence})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What the user said of the data: --text-column, --label-column, --format, and --column as column by meaning."""

    text_column: str | None = None
    label_column: str | None = None
    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        return self.text_column or self.columns.get("text")

    @property
    def label(self) -> str | None:
        return self.label_column or self.columns.get("label")

    def list_named(self) -> list[tuple[str, str]]:
        """Each column that is named, behind the option that names it."""
        options = [("--text-column", self.text_column), ("--label-column", self.label_column)]
        options += [(f"--column {meaning}=", column) for meaning, column in self.columns.items()]
        return [(option, column) for option, column in options if column is not None]

    def check(self, task: str) -> None:
        """Raises ``UsageError`` for hints that the task would pass over."""
        if task == "sft":
            return
        known = ("text", "label") if task == "text-classification" else ("text",)
        passed_over = [f"--format {self.format}"] if self.format else []
        passed_over += [f"--column {meaning}={name}" for meaning, name in self.columns.items() if meaning not in known]
        if passed_over:
            raise UsageError(
                f"{passed_over[0]} is of --task sft, and the task is {task}", "drop it, or give --task sft"
            )


NO_HINTS = Hints()


def describe_hint(option: str, column: str) -> str:
    """As it stands on the command line."""
    return f"{option}{column!r}" if option.endswith("=") else f"{option} {column!r}"


def assume_format(task: str, hints: Hints = NO_HINTS) -> Format:
    """What data is taken for that nobody could look at: what was asked for, else messages, or texts with their labels."""
    hints.check(task)
    evidence = "assumed: the data was not looked at"
    if task == "text-classification":
        columns = (("text", hints.text or "text"), ("label", hints.label or "label"))
        return Format(kind="classification", columns=columns, evidence=evidence)
    if task != "sft":
        return Format(kind="text", columns=(("text", hints.text or "text"),), evidence=evidence)
    named = dict(hints.columns)
    pair = {"prompt", "answer"} <= named.keys()
    kind = hints.format or ("question-answer" if pair else "text" if hints.text else "messages")
    if kind not in ASSUMED:
        raise SourceError(f"--format {kind} of data that cannot be looked at: texts or messages?", "give a file")
    usual = {meaning: named.get(meaning, column) for meaning, column in ASSUMED[kind].items()}
    meant = {"text": "text", "messages": "messages", "sharegpt": "messages"}.get(kind)
    columns = usual | named | ({meant: hints.text_column} if meant and hints.text_column else {})
    return Format(kind=kind, columns=tuple(columns.items()), evidence=evidence)
