"""What is to be done with the model: the user's side of a plan. None of it is ever changed to gain speed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from generator.case.tasks import Task, find_task, list_tasks
from generator.errors import UsageError
from generator.model import ModelSpec
from generator.model.block_traits import read_block_traits
from generator.model.rotary import describe_stretching

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


DRAFT_PIN = ("speculation", "draft-model")
"""What --draft-model asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A small model that proposes tokens. ``cached``: elements that it keeps of a token; ``held``: those that Transformers' cache does, 0
    where they are as many."""

    name: str
    params: int
    cached: int
    vocab: int
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An adapter that is served beside its model."""

    rank: int
    bytes: int
    form: str


def fill_sequence(tokens: float, seq_len: int) -> float:
    """The share of a sequence of ``seq_len`` tokens that an example takes, which is cut there."""
    return round(min(1.0, tokens / seq_len), 6)


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
    after_training: bool = False
    """infer: of the project that trains the model, by its infer.py, one prompt at a time"""
    max_latency: float | None = None
    """seconds that an answer may take, prompt and new tokens; ``None``: any"""
    draft: Draft | None = None
    """infer: the small model that was named"""
    served_adapter: Served | None = None
    """infer: what was given as the model, where that was an adapter"""
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
    shared_tokens: int = 0
    """that every example begins with and none learns from; 0 where the data was not looked at"""
    framework: str | None = None
    """what was asked for; ``None``: what the vendor of the devices has"""
    optimize_for: str = DEFAULT_GOAL
    allow: tuple[str, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()

    def cut(self, seq_len: int) -> Workload:
        """The same work on sequences of fewer tokens: what is left of an example fills more of its sequence."""
        fills = tuple(fill_sequence(share * self.seq_len, seq_len) for share in self.fill_shares)
        return replace(self, seq_len=seq_len, fill_shares=fills)

    def name_pin(self, axis: str, name: str) -> str:
        """The option that asks for it, as the user typed it."""
        return "--draft-model" if self.draft and (axis, name) == DRAFT_PIN else f"--pin {axis}={name}"

    @property
    def task_facts(self) -> Task:
        """What there is to know of its task."""
        return find_task(self.task)

    @property
    def length_option(self) -> str:
        """What ``seq_len`` is called where it is asked for."""
        return "--prompt-tokens" if self.mode == "infer" else "--seq-len"

    @property
    def serves(self) -> bool:
        """Whether the project is a server of a model that writes."""
        return self.mode == "infer" and self.task_facts.writes and not self.after_training

    @property
    def by_row(self) -> bool:
        """Whether the project computes rows of files, in batch.py alone."""
        return computes_rows(self.mode, self.task) and not self.after_training


def choose_task(mode: str, asked: str, given: bool, model: ModelSpec) -> str:
    """Where nobody says what a model is to be used for, the one thing that perfgen does with its kind."""
    if mode != "infer" or given:
        return asked
    return next((task.name for task in list_tasks().values() if task.suits(model)), asked)


def computes_rows(mode: str, task: str) -> bool:
    """Whether a project of this mode and task computes rows: the task of a model that does not write."""
    return mode == "infer" and not find_task(task).writes


def check_workload(workload: Workload, model: ModelSpec) -> None:
    """Refuse what contradicts itself, before anything is planned. Raises ``UsageError``."""
    for name, value, allowed in (
        ("--task", workload.task, tuple(list_tasks())),
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
    check_adapters(workload, model)
    check_trains_quantized(workload, model)
    if workload.mode == "train" and workload.task == "causal-lm" and not workload.packing:
        raise UsageError(
            "--no-packing is not for --task causal-lm: plain text is one stream, cut into full sequences",
            "drop it; or give rows, and --task sft",
        )
    if workload.mode == "train" and workload.task_facts.writes and workload.seq_len < 2:
        raise UsageError(
            f"a sequence of {workload.seq_len} token has no next one to learn",
            "give a --seq-len of 2 or more, and a model with as many positions",
        )
    check_task(workload, model)
    if workload.mode == "infer" and workload.task_facts.writes:
        check_positions(workload, model)
    if not workload.task_facts.reads_media and model.max_positions and workload.seq_len > model.max_positions:
        raise UsageError(
            f"{workload.length_option} {workload.seq_len} is longer than the {model.max_positions} positions of {model.name}",
            f"use {workload.length_option} {model.max_positions} or less{explain_stretch(model)}",
        )


def explain_stretch(model: ModelSpec) -> str:
    """What to do besides, where the model is told to see further than it says."""
    positions = model.stretched_positions
    return f"; YaRN would reach {positions} by config.json: {describe_stretching(positions)}" if positions else ""


UNPACKED = ("mxfp4",)
"""Formats whose weights Transformers makes 16-bit ones of while it reads them, where it is told to (5.23,
quantizers/quantizer_mxfp4.py, ``dequantize``). Others stay packed, and are of packages that no training project has (GPTQ, AWQ,
compressed-tensors), of kernels without a backward pass (fp8), or what --train qlora makes by itself (bitsandbytes)."""

UNPACKED_TASKS = ("causal-lm", "sft")
UNPACKING_FP8 = (
    "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T, FineGrainedFP8Config as C; "
    "packed, plain = sys.argv[1:]; m = M.from_pretrained(packed, quantization_config=C(dequantize=True), dtype='auto'); "
    "m._weight_conversions = None; m.save_pretrained(plain); T.from_pretrained(packed).save_pretrained(plain)"
)
"""Some models are published in fp8 alone (DeepSeek-V3). With the conversions that it has read by, ``save_pretrained`` of Transformers
5.23 packs the weights again, the embeddings too, beside a config that does not say so."""


def check_trains_quantized(workload: Workload, model: ModelSpec) -> None:
    """Refuse what cannot be trained of weights that are packed already. Raises ``UsageError``."""
    if not model.quantization or workload.mode != "train":
        return
    unpacked = model.quantization in UNPACKED
    if unpacked and workload.train != "qlora":
        return
    adapted = "--train lora, " if unpacked else ""
    plain = (
        "the unquantized checkpoint"
        if unpacked
        else "the unquantized checkpoint (with --train qlora it is packed in 4 bits)"
    )
    if model.quantization == "fp8" and workload.task in UNPACKED_TASKS:
        command = f"python -c {shlex.quote(UNPACKING_FP8)} MODEL PLAIN"
        plain += f"; where none is published, this writes one of 16 bits, of MODEL (folder or id) into PLAIN: {command}"
    if workload.train == "full":
        raise UsageError(
            f"--train full cannot train {model.name}: its weights are already quantized ({model.quantization})",
            f"--from-scratch trains new weights; else use {plain}",
        )
    if workload.train == "qlora":
        raise UsageError(
            f"--train qlora would quantize {model.name} a second time (it is already {model.quantization})",
            f"use {adapted}{plain}",
        )
    raise UsageError(
        f"--train {workload.train} cannot adapt {model.name}: its weights stay packed ({model.quantization}), and no project "
        "trains beside such weights",
        f"use {plain}",
    )


def check_positions(workload: Workload, model: ModelSpec) -> None:
    """Refuse an answer that the model has no positions for beside its prompt. Raises ``UsageError``."""
    most, prompt, answer = model.max_positions, workload.seq_len, workload.new_tokens
    if most and prompt <= most < prompt + answer:
        ways = [f"--prompt-tokens {most - answer}"] if answer < most else []
        ways += [f"--new-tokens {most - prompt}"] if prompt < most else []
        raise UsageError(
            f"a prompt of {prompt} tokens and an answer of {answer} are longer than the {most} positions of {model.name}",
            f"use {' or '.join(ways)}"
            if ways
            else f"use --prompt-tokens {max(1, most // 2)} --new-tokens {most - most // 2}",
        )


def check_adapters(workload: Workload, model: ModelSpec) -> None:
    """Raises ``UsageError`` for what is said of adapters that nobody trains, and for what PEFT refuses of those of experts."""
    for option, value, plain in (
        ("--adapter", workload.adapter, "lora"),
        ("--lora-rank", workload.lora_rank, 16),
        ("--lora-dropout", workload.lora_dropout, 0.0),
    ):
        if value != plain and workload.train == "full":
            raise UsageError(
                f"{option} {value} is of adapters, and --train full trains none",
                f"add --train lora, or qlora; or drop {option}",
            )
    if (
        workload.train != "full"
        and workload.lora_dropout
        and read_block_traits(model.model_type).get("adapted_experts")
    ):
        raise UsageError(
            f"--lora-dropout {workload.lora_dropout} is not to be had for {model.name}: PEFT adapts its experts as tensors, and those "
            "without dropout",
            "drop --lora-dropout",
        )


def check_trained(task: Task) -> None:
    if not task.trained:
        raise UsageError(
            f"--task {task.name} is for --mode infer: perfgen emits no training for it", "add --mode infer"
        )


def check_task(workload: Workload, model: ModelSpec) -> None:
    """Refuse to train what nothing trains here, and a model that is not for the task. Raises ``UsageError``."""
    if workload.mode == "train":
        check_trained(workload.task_facts)
    trained = workload.mode == "infer" and not workload.after_training
    if refusal := workload.task_facts.explain_model(model, f"--task {workload.task}", trained):
        raise UsageError(*refusal)
