"""The files in which a generated project says what it measured: run.json of train.py, infer.json of infer.py.

The types are their schemas (``schemas/*.json`` is these, written out). Keys beside them are allowed: the project is its owner's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from generator.errors import SmokeError
from generator.inputs.json_files import load_json

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]


class Figures(BaseModel):
    """What both files hold. ``peak_memory_gib`` is of tensors on a GPU, of the process on a CPU."""

    model_config = ConfigDict(frozen=True, extra="allow")

    version: Literal[1] = Field(alias="schema")
    tokens_per_second: Positive
    peak_memory_gib: Positive
    versions: dict[str, str]


class Evaluation(BaseModel):
    """On the held-out rows, after ``step`` steps; what a task does not have is left out."""

    model_config = ConfigDict(frozen=True, extra="allow")

    step: Count
    loss: float
    perplexity: float | None = None
    accuracy: float | None = None
    macro_f1: float | None = None


class BeforeAndAfter(BaseModel):
    """Of ``rows``: before the first step (``None`` where that was not measured), and of the model that was kept, or the last one
    that was measured."""

    model_config = ConfigDict(frozen=True)

    before: Evaluation | None
    after: Evaluation
    rows: Count


class Confusion(BaseModel):
    """How often a row of one label (line) was taken for another (column)."""

    model_config = ConfigDict(frozen=True)

    labels: list[str]
    counts: list[list[Count]]

    @model_validator(mode="after")
    def check_square(self) -> Self:
        if [len(row) for row in self.counts] != [len(self.labels)] * len(self.labels):
            raise ValueError("counts has not a line and a column for each of labels")
        return self


class Mistake(BaseModel):
    """How often rows of ``label`` were taken for ``answer``: of many labels, whose table nobody could read."""

    model_config = ConfigDict(frozen=True)

    label: str
    answer: str
    count: Count


class Answer(BaseModel):
    """To a held-out prompt; ``before`` is ``None`` where training had begun already."""

    model_config = ConfigDict(frozen=True, extra="allow")

    prompt: str
    expected: str
    before: str | None
    after: str | None = None


class RunFigures(Figures):
    """run.json. ``step_seconds`` is the median of ``steps``, which leave out the first: it warms up and compiles.

    ``kept_step`` is the step whose weights were saved as the result: that of the lowest evaluation loss where it was kept.
    """

    model_config = ConfigDict(title="run.json")

    step_seconds: Positive
    tokens_per_step: Positive
    padding_share: Annotated[float, Field(ge=0, lt=1)] | None = None
    """of the places of all batches; tokens are counted without it"""
    first_step_seconds: Positive
    steps: list[float]
    losses: list[float]
    eval: BeforeAndAfter | None = None
    evaluations: list[Evaluation] = []
    eval_rows: Count | None = None
    kept_step: Count | None = None
    confusion: Confusion | None = None
    mistakes: list[Mistake] = []
    answers: list[Answer] = []
    resumed_from: Count
    finished_step: Count
    processes: Annotated[int, Field(ge=1)]


class InferFigures(Figures):
    """infer.json. ``seconds`` is the median of ``calls``, before which a first one warmed up and compiled; ``answer`` is what was
    printed."""

    model_config = ConfigDict(title="infer.json")

    prompt: str
    answer: str
    prompt_tokens: Count
    new_tokens: Count
    seconds: Positive
    first_call_seconds: Positive
    calls: Annotated[int, Field(ge=1)]
    ttft_s: Positive | None = None
    """to the first new token, where its engine says when it came"""
    labels: dict[str, float] | None = None


class Predicted(BaseModel):
    """What the plan says of the same; what it does not say is left out."""

    model_config = ConfigDict(frozen=True, extra="allow")

    decode_tokens_per_s: Positive | None = None
    prefill_tokens_per_s: Positive | None = None
    ttft_s: Positive | None = None
    throughput_tokens_per_s: Positive | None = None
    peak_memory_gib: Positive | None = None


class Quantiles(BaseModel):
    """Of all requests of a load that were answered."""

    model_config = ConfigDict(frozen=True)

    p50: float
    p90: float
    p99: float


class Load(BaseModel):
    """Many requests: of so many ``users`` who ask again and again (closed), or ``rate`` of which arrive per second (open).

    ``refused`` are those that the server had no room for.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: Literal["closed", "open"]
    users: Annotated[int, Field(ge=1)] | None = None
    rate: Positive | None = None
    requests: Annotated[int, Field(ge=1)]
    refused: Count
    failed: Count
    seconds: Positive
    requests_per_s: Annotated[float, Field(ge=0)]
    throughput_tokens_per_s: Annotated[float, Field(ge=0)]
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None


class BenchFigures(BaseModel):
    """bench.json: a server over HTTP. Medians of single requests, but the throughput: the best of ``loads``.

    ``load_s`` and ``first_request_ttft_s`` are counted in nothing else. ``baseline`` is ``transformers.pipeline()`` with its
    defaults, in turn with the server's single requests. ``peak_memory_gib`` is of GPUs where the server uses any, of its
    processes where not; null where the server was not started here.
    """

    model_config = ConfigDict(frozen=True, extra="allow", title="bench.json")

    version: Literal[1] = Field(alias="schema")
    engine: str
    weights: str
    decode_tokens_per_s: Positive
    baseline_tokens_per_s: Positive | None
    prefill_tokens_per_s: Positive
    ttft_s: Positive
    throughput_tokens_per_s: Positive
    peak_memory_gib: Positive | None
    load_s: Positive | None
    first_request_ttft_s: Positive
    prompt_tokens: Annotated[int, Field(ge=1)]
    new_tokens: Annotated[int, Field(ge=2)]
    predicted: Predicted
    loads: list[Load]
    versions: dict[str, str]
    command: str


FIGURES = TypeVar("FIGURES", bound=Figures)


def read_figures(kind: type[FIGURES], path: Path, stage: str) -> FIGURES:
    """The file that a stage wrote. Raises ``SmokeError``."""
    try:
        return kind.model_validate(load_json(path, own=True))
    except ValidationError as error:
        raise SmokeError(f"{stage}: {path} {describe_problems(error)}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise SmokeError(f"{stage}: ended well, but left no readable {path}: {error}") from error


def describe_problems(error: ValidationError) -> str:
    problems = error.errors()
    missing = [str(problem["loc"][0]) for problem in problems if problem["type"] == "missing"]
    if missing:
        return f"lacks {', '.join(missing)}"
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
