"""The workload of a request: the user's numbers, and the field's usual ones where nothing was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from generator.case.request import Request
from generator.case.tasks import find_task
from generator.case.workload import DEFAULT_GOAL, Workload, computes_rows, fill_sequence
from generator.inputs.data_files import DataSource
from generator.inputs.model_source import ModelSource
from generator.model import ModelSpec

DEFAULT_LEARNING_RATE = {
    "full": (2e-5, "TRL's own default for fine-tuning (SFTConfig)"),
    "lora": (2e-4, "ten times that of full fine-tuning, as TRL's documentation of PEFT advises"),
    "qlora": (2e-4, "what the QLoRA paper used for models up to 13B (arXiv 2305.14314)"),
}
FROM_SCRATCH_LEARNING_RATE = 3e-4, "what Llama 7B was pre-trained with (arXiv 2302.13971); small models bear more"
DEFAULT_GLOBAL_BATCH = 32
THROUGHPUT_CONCURRENCY = 64
"""Prompts at a time where throughput is wanted and nobody said how many (ours): most of what batching gains on today's GPUs."""
PLAIN_ALPHA = 8
"""of rank-stabilized adapters, at every rank: PEFT's own (LoraConfig.lora_alpha). Their scale is alpha / sqrt(rank): at rank 16
the same as that of LoRA with an alpha of twice the rank"""
HELD_PERCENT = 99
"""How many of the examples a length that nobody gave must hold."""
LENGTH_MULTIPLE = 64
"""What that length is rounded up to: whole tiles of the matrix kernels."""
ESTIMATE_MARGIN = 1.25
"""Lengths that were estimated from bytes get this much room (assumed: English text has 3.2 to 5 bytes a token)."""
LONGEST_DEFAULT = 8192
"""Beyond this a few texts would decide the memory of the plan: it is taken only when it is asked for (ours)."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value of the user's comes from: he gave it, or it is a default, and ``why`` that one."""

    given: bool
    why: str


def fill_workload(request: Request, spec: ModelSpec, source: ModelSource, data: DataSource | None) -> Workload:
    """The user's numbers, and the field's usual ones where nothing was said."""
    # adapters and answers are planned by sizes alone: what they adapt, or serve, is there when the project is made
    unweighted = not source.has_weights and request.mode == "train" and not request.adapts
    from_scratch = request.from_scratch or unweighted
    seq_len = request.seq_len or request.prompt_tokens or choose_seq_len(request, spec, data)[0]
    loss_on = choose_loss_tokens(request, data)
    return Workload(
        mode=request.mode,
        task=request.task,
        train=request.train,
        seq_len=seq_len,
        global_batch=request.global_batch or DEFAULT_GLOBAL_BATCH,
        learning_rate=request.learning_rate or choose_learning_rate(request.train, from_scratch)[0],
        epochs=request.epochs or 1.0,
        max_steps=request.max_steps,
        adapter=request.adapter,
        lora_rank=request.lora_rank,
        lora_alpha=PLAIN_ALPHA if request.adapter == "rslora" else 2 * request.lora_rank,
        lora_dropout=request.lora_dropout,
        labels=request.labels or (data.labels if data and data.labels else 2),
        new_tokens=choose_new_tokens(request),
        concurrency=request.concurrency or choose_concurrency(request)[0],
        max_latency=request.max_latency,
        from_scratch=from_scratch,
        packing=request.packing,
        loss_on=loss_on,
        fill_shares=measure_fill(data, seq_len),
        trained_share=data.answer_share if data and loss_on == "assistant" else 1.0,
        shared_tokens=data.shared_tokens if data and loss_on == "assistant" else 0,
        optimize_for=request.optimize_for or DEFAULT_GOAL,
        framework=request.framework,
        allow=request.allow,
        pins=request.pins,
    )


def choose_new_tokens(request: Request) -> int:
    """None of a model that only reads: one pass is the whole answer."""
    return 0 if request.mode == "infer" and not find_task(request.task).generates else request.new_tokens


def choose_concurrency(request: Request) -> tuple[int, str]:
    """How many prompts are computed at a time where nobody said, and why."""
    if request.mode == "infer" and request.optimize_for == "throughput":
        return (
            THROUGHPUT_CONCURRENCY,
            "many prompts at a time, since throughput is wanted, unless --concurrency says otherwise",
        )
    if computes_rows(request.mode, request.task) and request.optimize_for != "latency":
        rows = find_task(request.task).rows_together
        return (
            rows,
            f"{rows} rows of a file at a time: batch.py computes all that there are, unless --concurrency says otherwise",
        )
    return 1, "one prompt at a time, unless --concurrency says otherwise"


def choose_loss_tokens(request: Request, data: DataSource | None) -> str | None:
    """What the assistant says, unless something else was asked for, or nothing says who speaks."""
    if request.task != "sft" or request.mode != "train":
        return None
    if data is not None and data.sft_format == "text":
        return "all"
    return request.loss_on or "assistant"


def explain_loss_tokens(data: DataSource | None) -> str:
    if data is not None and data.sft_format == "text":
        return "plain text: nothing says who speaks"
    return "what the assistant says, the end of its turns included, unless --loss-on says otherwise"


def choose_learning_rate(train: str, from_scratch: bool) -> tuple[float, str]:
    return (
        FROM_SCRATCH_LEARNING_RATE if from_scratch else DEFAULT_LEARNING_RATE.get(train, DEFAULT_LEARNING_RATE["full"])
    )


def choose_seq_len(request: Request, spec: ModelSpec, data: DataSource | None) -> tuple[int, str]:
    """The length that nobody gave, and where it comes from: what holds 99 % of the examples, where their lengths are known."""
    most = spec.max_positions or 1 << 30
    task = find_task(request.task)
    usual = task.seq_len
    if task.reads_media:  # its max_positions are those of what it writes
        if spec.row_positions:
            return spec.row_positions, f"{spec.row_positions:,} {task.positions}, as config.json has them"
        return usual, f"{usual:,} {task.positions}, the usual number"
    if request.mode == "infer":
        room = max(1, most - choose_new_tokens(request))
        of_model = f", here what {most:,} positions of {spec.name} leave beside the answer" if usual > room else ""
        of_rows = computes_rows("infer", request.task)
        what = "tokens of a text" if of_rows else "tokens of prompt, some pages, unless --prompt-tokens says otherwise"
        return min(usual, room), f"{usual:,} {what}{of_model}"
    if request.task == "causal-lm":
        return min(usual, most), f"blocks of plain text, usually of {usual:,} tokens" + explain_limit(usual, most, spec)
    if data is None or not data.token_quantiles:
        reason = "no data was given" if data is None else f"the lengths in {data.path} are not known"
        return min(usual, most), f"the usual {usual:,}: {reason}" + explain_limit(usual, most, spec)
    needed = data.token_quantiles[HELD_PERCENT] * (1.0 if data.lengths_counted else ESTIMATE_MARGIN)
    length = LENGTH_MULTIPLE * math.ceil(needed / LENGTH_MULTIPLE)
    longest = describe_longest(data)
    if length > min(most, LONGEST_DEFAULT):
        limit = f"all positions of {spec.name}" if most <= LONGEST_DEFAULT else "the most that nobody asked for"
        needs = f"{HELD_PERCENT} % of the examples would need {length:,}"
        return min(most, LONGEST_DEFAULT), f"{limit}; {needs}; {longest}"
    held = "all" if length >= data.token_quantiles[-1] else f"{HELD_PERCENT} % of the"
    room = "" if data.lengths_counted else f" with {ESTIMATE_MARGIN - 1:.0%} of room"
    return length, f"holds {held} examples{room}, rounded up to a multiple of {LENGTH_MULTIPLE}; {longest}"


def describe_longest(data: DataSource) -> str:
    """No more than is known: an estimate is called one."""
    tokens = f"{data.token_quantiles[-1]:,.0f} tokens ({data.length_source})"
    if data.lengths_exact:
        return f"the longest example has {tokens}"
    return (
        f"the longest example has about {tokens}"
        if data.lengths_counted
        else f"the longest example is estimated to have {tokens}"
    )


def explain_limit(length: int, most: int, spec: ModelSpec) -> str:
    return f", here all {most:,} positions of {spec.name}" if length > most else ""


def measure_fill(data: DataSource | None, seq_len: int) -> tuple[float, ...]:
    """Quantiles of the examples' lengths as shares of ``seq_len``, where they are cut; none where they are not known."""
    return tuple(fill_sequence(n, seq_len) for n in data.token_quantiles) if data else ()


def measure_cut_share(data: DataSource | None, seq_len: int) -> float:
    """Share of the examples that are longer than ``seq_len``; 0 where the lengths are not known."""
    if data is None or not data.token_quantiles:
        return 0.0
    longer = sum(n > seq_len for n in data.token_quantiles[1:])
    return longer / (len(data.token_quantiles) - 1)


def count_steps(workload: Workload, data: DataSource | None, *, packed: bool = False, held_rows: int = 0) -> int | None:
    """Optimizer steps of the whole run; ``None`` where neither they nor the data's size are known.

    As the Trainer counts them: what is left of an epoch after its last full batch is a step too.
    """
    sequences = count_sequences(workload, data, packed=packed, held_rows=held_rows)
    if workload.max_steps or sequences is None:
        return workload.max_steps
    return math.ceil(max(1, math.ceil(sequences / workload.global_batch)) * workload.epochs)


def count_sequences(
    workload: Workload, data: DataSource | None, *, packed: bool = False, held_rows: int = 0
) -> int | None:
    """Sequences of one pass over the data but ``held_rows``: blocks of plain text, examples, or what ``packed`` ones fill."""
    if data is None or data.rows is None:
        return None
    if workload.task == "causal-lm":
        return None if data.tokens is None else data.tokens // workload.seq_len - held_rows
    rows, shares = data.rows - held_rows, workload.fill_shares if packed else ()
    return math.ceil(rows * sum(shares) / len(shares)) if shares else rows


OPTION_OF = {"lora_alpha": "lora_rank"}
"""Values that follow from the option of another."""


def trace_values(
    request: Request, workload: Workload, spec: ModelSpec, data: DataSource | None
) -> Mapping[str, Origin]:
    """Where each value of the user's comes from: the option that gave it, or why the default is what it is."""
    whys = {
        "mode": "training, unless --mode says infer",
        "task": "plain language modelling, unless --task says otherwise",
        "train": "every weight is trained, unless --train says otherwise",
        "seq_len": choose_seq_len(request, spec, data)[1],
        "global_batch": f"{DEFAULT_GLOBAL_BATCH} sequences, as in LIMA's fine-tuning (arXiv 2305.11206)",
        "learning_rate": choose_learning_rate(request.train, workload.from_scratch)[1],
        "epochs": "one pass over the data (ours; TrainingArguments' own is 3)",
        "max_steps": "none: the epochs say how long",
        "warmup": "3 % of the steps, as in Stanford Alpaca's and QLoRA's recipes; change it in config.yaml",
        "weight_decay": "TrainingArguments' own; change it in config.yaml",
        "seed": "TrainingArguments' own; change it in config.yaml",
        "adapter": "the plain form, unless --adapter says otherwise",
        "lora_rank": "TRL's own (ModelConfig.lora_r)",
        "lora_alpha": "PEFT's own (LoraConfig.lora_alpha), the same at every rank: the scale is alpha / sqrt(rank)"
        if workload.adapter == "rslora"
        else "twice the rank, as in TRL's own (ModelConfig.lora_alpha)",
        "lora_dropout": "none, PEFT's own (LoraConfig.lora_dropout): each adapter would keep a copy of its input and a mask",
        "labels": "counted in the data" if data and data.labels else "two classes: the data does not tell",
        "new_tokens": "an answer of some sentences, unless --new-tokens says otherwise",
        "concurrency": choose_concurrency(request)[1],
        "max_latency": "none: an answer may take as long as it takes",
        "from_scratch": "the model has no trained weights"
        if workload.from_scratch
        else "the trained weights are the start",
        "packing": "texts may share a sequence, unless --no-packing is given",
        "loss_on": explain_loss_tokens(data),
        "optimize_for": "as many devices as earn their place, unless --optimize-for says otherwise",
    }
    return {name: trace_value(request, OPTION_OF.get(name, name), name, why) for name, why in whys.items()}


GIVEN_AS = {"seq_len": "prompt_tokens"}
"""Values that another option may give, too."""


def trace_value(request: Request, option: str, name: str, why: str) -> Origin:
    """``option`` is the field of the request that decides ``name``; values without one are never given."""
    if option in GIVEN_AS and not request.is_given(option):
        option = GIVEN_AS[option]
    if option in WITHOUT_OPTION or not request.is_given(option):
        return Origin(given=False, why=why)
    flag = "--no-packing" if option == "packing" else f"--{option.replace('_', '-')}"
    follows = name in OPTION_OF
    return Origin(given=True, why=f"twice the rank that {flag} gave" if follows else flag)


WITHOUT_OPTION = ("warmup", "seed", "weight_decay")
"""Values of the user's for which there is no option: config.yaml is where they are changed."""
