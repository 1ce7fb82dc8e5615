"""What is to be done with the model: the user's side of a plan. None of it is ever changed to gain speed."""

from __future__ import annotations

from dataclasses import dataclass

from generator.errors import UsageError
from generator.model import ModelSpec

TASKS = ("causal-lm", "sft", "text-classification")
TRAINED = ("full", "lora", "qlora")
ADAPTERS = ("lora", "dora", "rslora")
MODES = ("train", "infer")
LOSS_ON = ("assistant", "all")
TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
"""Where a training can write its log to: Trainer's name for it, its distribution's and its module's."""
GOALS = {"train": ("efficiency", "time"), "infer": ("efficiency", "latency", "throughput", "memory")}
"""What a plan may be optimized for, by mode: as many devices as earn their place; time at any price (of a step, of an answer); most
tokens of all devices together; least memory."""
DEFAULT_GOAL = "efficiency"
MAX_SEQ_LEN = 100_000_000
MAX_GLOBAL_BATCH = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``global_batch`` is sequences per optimizer step, ``seq_len`` tokens per sequence.

    ``learning_rate``, ``epochs``, ``max_steps``, ``warmup``, ``seed`` belong to the user and are written to config.yaml as
    they are. ``steps`` is how many optimizer steps the run will make, ``None`` where the data's size is not known.
    ``allow`` names techniques that may touch convergence although something else fits; ``pins`` pairs axis and technique.
    """

    mode: str = "train"
    task: str = "causal-lm"
    train: str = "full"
    seq_len: int = 1024
    global_batch: int = 32
    learning_rate: float = 2e-5
    epochs: float = 1.0
    max_steps: int | None = None
    warmup: float = 0.03
    weight_decay: float = 0.0
    seed: int = 42
    adapter: str = "lora"
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    labels: int = 2
    new_tokens: int = 128
    concurrency: int = 1
    max_latency: float | None = None
    """seconds that an answer may take, prompt and new tokens; ``None``: any"""
    from_scratch: bool = False
    packing: bool = True
    """whether several texts may share one sequence; the user's choice, since it changes what a sequence is"""
    loss_on: str | None = None
    """assistant: what it says, its end of turn included; all: every token. ``None``: not supervised fine-tuning"""
    steps: int | None = None
    fill_shares: tuple[float, ...] = ()
    """101 quantiles of the examples' lengths, cut at seq_len, as shares of it; none: the data was not looked at"""
    trained_share: float = 1.0
    """of the tokens of the examples, those that are learned from; 1 where the data was not looked at"""
    optimize_for: str = DEFAULT_GOAL
    allow: tuple[str, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()


def check_workload(workload: Workload, model: ModelSpec) -> None:
    """Refuse what contradicts itself, before anything is planned. Raises ``UsageError``."""
    for name, value, allowed in (
        ("--task", workload.task, TASKS),
        ("--train", workload.train, TRAINED),
        ("--adapter", workload.adapter, ADAPTERS),
        ("--mode", workload.mode, MODES),
    ):
        if value not in allowed:
            raise UsageError(f"{name} {value} is not one of {', '.join(allowed)}")
    if workload.optimize_for not in GOALS[workload.mode]:
        raise UsageError(
            f"--optimize-for {workload.optimize_for} is not for --mode {workload.mode}",
            f"there it is one of {', '.join(GOALS[workload.mode])}",
        )
    if workload.from_scratch and workload.mode == "train" and workload.train != "full":
        raise UsageError(
            f"--train {workload.train} adapts trained weights, and --from-scratch asks for random ones",
            "drop --from-scratch, or use --train full",
        )
    check_adapters(workload)
    if workload.max_latency is not None and workload.mode != "infer":
        raise UsageError("--max-latency is for answers", "use it with --mode infer")
    if model.quantization and workload.mode == "train" and workload.train == "full":
        raise UsageError(
            f"--train full cannot train {model.name}: its weights are already quantized ({model.quantization})",
            "use --train lora, or the unquantized checkpoint",
        )
    if model.quantization and workload.train == "qlora":
        raise UsageError(
            f"--train qlora would quantize {model.name} a second time (it is already {model.quantization})",
            "use --train lora, or the unquantized checkpoint",
        )
    if workload.mode == "train" and workload.task == "causal-lm" and not workload.packing:
        raise UsageError(
            "--no-packing is not for --task causal-lm: plain text is one stream, cut into full sequences",
            "drop it; or give rows, and --task sft",
        )
    if workload.task != "text-classification":
        check_generates(workload, model)
    if model.max_positions and workload.seq_len > model.max_positions:
        raise UsageError(
            f"--seq-len {workload.seq_len} is longer than the {model.max_positions} positions of {model.name}",
            f"use --seq-len {model.max_positions} or less",
        )


def check_adapters(workload: Workload) -> None:
    """Raises ``UsageError`` for what is said of adapters that nobody trains."""
    infers = workload.mode == "infer"
    for option, value, plain in (
        ("--adapter", workload.adapter, "lora"),
        ("--lora-dropout", workload.lora_dropout, 0.0),
    ):
        if value != plain and workload.train == "full":
            why = "--mode infer trains nothing" if infers else "--train full trains none"
            ways = f"drop {option}" if infers else f"add --train lora, or qlora; or drop {option}"
            raise UsageError(f"{option} {value} is of adapters, and {why}", ways)


def check_generates(workload: Workload, model: ModelSpec) -> None:
    """Refuse a task on text for a model that is no decoder. Raises ``UsageError``."""
    name = f"{model.name} ({model.model_type})"
    asked = f"--task {workload.task}" if workload.mode == "train" else "generating text"
    doing = "training" if workload.mode == "train" else "inference"
    if model.kind == "encoder" and workload.mode == "train":
        raise UsageError(
            f"--task {workload.task} needs a decoder, and {name} is an encoder: plain text trains it by masked language "
            "modelling (masked-lm), which perfgen does not emit yet",
            "give a decoder; or, for rows that have labels, --task text-classification",
        )
    if model.kind == "encoder":
        raise UsageError(
            f"{asked} needs a decoder, and {name} is an encoder",
            "use --task text-classification for a classifier; filling masks is not emitted yet",
        )
    if model.kind != "decoder":
        raise UsageError(
            f"{asked} needs a decoder-only model, and {name} is {model.kind}",
            f"perfgen does not emit {doing} for this kind of model yet",
        )
