"""What the user asked for, as text and numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from generator.errors import UsageError
from generator.inputs.data_formats import Hints


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for, as text and numbers; ``None`` = not said. ``model=None`` is the embedded sample.

    ``given`` names the fields that were given although their value is the default's.
    """

    model: str | None = None
    config: str | None = None
    tokenizer: str | None = None
    draft_model: str | None = None
    data: str | None = None
    data_config: str | None = None
    split: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    format: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    loss_on: str | None = None
    skip_bad: bool = False
    eval: str | None = None
    early_stopping: int | None = None
    report_to: str = "none"
    hardware: str | None = None
    host_memory: str | None = None
    disk: str | None = None
    link: str | None = None
    measure: bool = False
    mode: str = "train"
    task: str = "causal-lm"
    train: str = "full"
    seq_len: int | None = None
    global_batch: int | None = None
    learning_rate: float | None = None
    epochs: float | None = None
    max_steps: int | None = None
    adapter: str = "lora"
    lora_rank: int = 16
    lora_dropout: float = 0.0
    labels: int | None = None
    new_tokens: int = 128
    prompt_tokens: int | None = None
    concurrency: int | None = None
    max_latency: float | None = None
    packing: bool = True
    from_scratch: bool = False
    framework: str | None = None
    optimize_for: str | None = None
    allow: tuple[str, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()
    offline: bool = False
    given: tuple[str, ...] = ()

    @property
    def hints(self) -> Hints:
        """What was said of the data's rows."""
        return Hints(
            text_column=self.text_column,
            label_column=self.label_column,
            format=self.format,
            columns=dict(self.columns),
        )

    @property
    def stated(self) -> dict[str, str | None]:
        """What was said of the machine, by option."""
        return {"--host-memory": self.host_memory, "--disk": self.disk, "--link": self.link}

    @property
    def adapts(self) -> bool:
        """Whether trained weights are adapted, not trained themselves."""
        return self.mode == "train" and self.train != "full"

    def is_given(self, name: str) -> bool:
        """Whether the user gave this field a value."""
        default = next(field.default for field in fields(self) if field.name == name)
        return name in self.given or getattr(self, name) != default


OF_ANSWERS = ("draft_model", "prompt_tokens", "new_tokens", "concurrency", "max_latency")
OF_TRAINING = (
    "train", "adapter", "lora_rank", "lora_dropout", "global_batch", "learning_rate", "epochs", "max_steps", "packing", "eval",
    "early_stopping", "report_to",
)  # fmt: skip
OF_DATA = ("data_config", "split", "text_column", "label_column", "format", "columns", "skip_bad")
"""Options that nothing reads outside of --mode infer, outside of --mode train, and without --data."""
INSTEAD = {"prompt_tokens": "--seq-len", "concurrency": "--global-batch", "max_latency": "--target-tokens-per-day"}
OPTIONS = {"packing": "--no-packing", "columns": "--column", "pins": "--pin"}
"""Options that are called otherwise than their fields."""


def name_option(field: str) -> str:
    return OPTIONS.get(field, f"--{field.replace('_', '-')}")


def check_lengths(request: Request) -> None:
    """Refuse two lengths of a prompt. Raises ``UsageError``."""
    if request.prompt_tokens is not None and request.seq_len not in (None, request.prompt_tokens):
        raise UsageError(
            f"--prompt-tokens {request.prompt_tokens} and --seq-len {request.seq_len} are the same thing in --mode infer",
            "give one of them",
        )


def check_used(request: Request) -> None:
    """Refuse what says something of another kind of work than this, and would be passed over. Raises ``UsageError``."""
    default = Request()
    changed = {field.name for field in fields(request) if getattr(request, field.name) != getattr(default, field.name)}
    if request.mode == "train" and (misplaced := next((name for name in OF_ANSWERS if name in changed), None)):
        instead = INSTEAD.get(misplaced)
        raise UsageError(
            f"{name_option(misplaced)} is for answers",
            "use it with --mode infer" + (f"; {instead} is for training" if instead else ""),
        )
    if request.mode == "infer" and (misplaced := next((name for name in OF_TRAINING if name in changed), None)):
        raise UsageError(f"{name_option(misplaced)} is for training, and --mode infer trains nothing", "drop it")
    # the embedded sample brings a text, of which answers need nothing
    has_data = request.data is not None or (request.model is None and request.mode == "train")
    if not has_data and (misplaced := next((name for name in OF_DATA if name in changed), None)):
        raise UsageError(f"{name_option(misplaced)} is of data, and --data names none", "give --data, or drop it")


def check_text(request: Request) -> None:
    """Refuse what no file and no command line can hold, whatever it was meant for. Raises ``UsageError``."""
    for field in fields(request):
        value = getattr(request, field.name)
        texts = [value] if isinstance(value, str) else value if isinstance(value, tuple) else []
        for text in [t for pair in texts for t in (pair if isinstance(pair, tuple) else [pair])]:
            option = name_option(field.name)
            if not text.strip():
                raise UsageError(f"{option} is empty", "give a value, or leave the option out")
            if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
                raise UsageError(f"{option} {text!r} holds bytes that are no text", "give it in UTF-8, without NUL")
