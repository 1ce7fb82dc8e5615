"""The options that describe a case, shared by plan, init, why and why-not; text becomes values here."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from generator.case.task_names import OTHER_NAMES
from generator.case.tasks import list_tasks
from generator.case.vendors import list_frameworks
from generator.case.workload import (
    ADAPTERS,
    GOALS,
    LOSS_ON,
    MAX_GLOBAL_BATCH,
    MAX_SEQ_LEN,
    MODES,
    TRACKERS,
    TRAINED,
)
from generator.errors import OtherTask, PerfgenError, UsageError, suggest_names
from generator.inputs.data_formats import ASKABLE, MEANINGS
from generator.show import completion

if TYPE_CHECKING:
    from generator.case.request import Request

PLAIN_INTEGER = re.compile(r"[0-9]{1,18}", re.ASCII)
PLAIN_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?|\.[0-9]+", re.ASCII)


class Count(click.ParamType):
    """A whole number above zero in plain ASCII digits: Python's own int() also takes 1_000 and full-width digits."""

    name = "integer"

    def __init__(self, most: int):
        self.most = most

    def convert(self, value, param, ctx):
        if isinstance(value, int):
            return value
        if not PLAIN_INTEGER.fullmatch(value) or not 1 <= int(value) <= self.most:
            self.fail(f"{value!r} is not a whole number from 1 to {self.most}", param, ctx)
        return int(value)


class Positive(click.ParamType):
    """A finite number above zero."""

    name = "number"

    def convert(self, value, param, ctx):
        if isinstance(value, float):
            return value
        if not PLAIN_NUMBER.fullmatch(value) or not 0 < float(value) < math.inf:
            self.fail(f"{value!r} is not a finite number above 0, written without a unit", param, ctx)
        return float(value)


class Probability(click.ParamType):
    """A number from 0, below 1."""

    name = "probability"

    def convert(self, value, param, ctx):
        if isinstance(value, float):
            return value
        if not PLAIN_NUMBER.fullmatch(value) or not float(value) < 1:
            self.fail(f"{value!r} is not a number from 0, below 1", param, ctx)
        return float(value)


class Pin(click.ParamType):
    """AXIS=NAME."""

    name = "axis=name"

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        axis, sign, name = value.partition("=")
        if not (axis and sign and name):
            self.fail(f"{value!r} is not of the form AXIS=NAME (`perfgen techniques` lists them)", param, ctx)
        return axis, name


class Meaning(click.ParamType):
    """MEANING=NAME: what a column holds."""

    name = "meaning=name"

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        meaning, _, name = value.partition("=")
        if meaning not in MEANINGS or not name:
            self.fail(f"{value!r} is not MEANING=NAME, with a MEANING of {', '.join(MEANINGS)}", param, ctx)
        return meaning, name


class TaskName(click.Choice):
    """A task, or what there is in the place of one that people know by another name."""

    def convert(self, value, param, ctx):
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            if value.lower() not in OTHER_NAMES:
                raise
            self.fail(f"{error.message.rstrip('.')}: {OTHER_NAMES[value.lower()]}", param, ctx)


class Option(click.ParamType):
    """The name of an option that describes a case: seq-len, pin."""

    name = "option"

    def convert(self, value, param, ctx):
        known = {name.lstrip("-") for option in make_case_parameters() for name in option.opts}
        name = value.lstrip("-").replace("_", "-")  # plans call it global_batch
        if name not in known:
            near = suggest_names(name, known, "one is seq-len, or hardware")
            self.fail(f"{value!r} is no option that describes a case: {near}", param, ctx)
        return name.replace("-", "_")


AS_JSON = "json"
"""Key of the root context's object: whether the command was asked for JSON."""


def remember_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    """Kept where ``main`` finds it when the command has ended in an error."""
    context.ensure_object(dict)[AS_JSON] = value
    return value


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,  # before values that may be refused
    callback=remember_json,
    help="JSON on standard output, and nothing else there.",
)
STEPS = Count(10**12)
CASE_OPTIONS: tuple[Callable, ...] = (
    click.option("--model", shell_complete=completion.complete_model, help="Folder, config.json, or hub id."),
    click.option("--config", help="A config.json to use for a hub id whose own cannot be fetched."),
    click.option("--tokenizer", help="Tokenizer folder or hub id, where the model has none."),
    click.option("--draft-model", help="A small model of the same vocabulary that proposes tokens (--mode infer)."),
    click.option("--data", help="File (.jsonl .json .csv .tsv .parquet .arrow .txt, also .gz), folder, or hub id."),
    click.option("--data-config", help="Config of a data set of the hub, where it has several."),
    click.option("--split", help="Split of a data set of the hub.  [default: train, else the only one]"),
    click.option("--sample", is_flag=True, help="The embedded sample model and text, in place of --model and --data."),
    click.option("--text-column", help="Column that holds the text."),
    click.option("--label-column", help="Column that holds the label."),
    click.option("--format", type=click.Choice(ASKABLE), help="What the rows are (sft), where it is not recognised."),
    click.option(
        "--column",
        "columns",
        type=Meaning(),
        multiple=True,
        help=f"Which is which; MEANING is {', '.join(MEANINGS[:-1])} or {MEANINGS[-1]}. Repeatable.",
    ),
    click.option(
        "--loss-on", type=click.Choice(LOSS_ON), help="What is learned from (sft).  [default: what the assistant says]"
    ),
    click.option("--skip-bad", is_flag=True, help="Leave out rows that cannot be read, and count them."),
    click.option(
        "--eval",
        help="Evaluate on FILE, SHARE of the data, or none.  [default: 0.02, more of a small set, 500 rows at most]",
    ),
    click.option("--early-stopping", type=Count(10**6), help="Stop after so many evaluations without a better loss."),
    click.option("--report-to", type=click.Choice(("none", *TRACKERS)), default="none", show_default=True),
    click.option(
        "--hardware",
        shell_complete=completion.complete_hardware,
        help="`detect --json` file, spec (8xh100-sxm-80gb, 1xt4, a100:3g.40gb, cpu:16), or instance type.",
    ),
    click.option("--host-memory", help="Host memory of a node, where it is not read: 512gb, 1.5tb."),
    click.option(
        "--disk", help="Disk of the working folder, where it is not read: nvme, ssd, hdd, network; nvme,7gb/s."
    ),
    click.option(
        "--link",
        help="What joins the devices of a node: pcie4x16 (the host too), pcie, nvlink (bridges), or a rate (300gb/s).",
    ),
    click.option("--measure", is_flag=True, help="Time this machine's memory and matrix products first (seconds)."),
    click.option("--task", type=TaskName(tuple(list_tasks())), default="causal-lm", show_default=True),
    click.option("--mode", type=click.Choice(MODES), default="train", show_default=True),
    click.option("--train", type=click.Choice(TRAINED), default="full", show_default=True, help="What is trained."),
    click.option("--from-scratch", is_flag=True, help="Start from random weights even if the model has trained ones."),
    click.option(
        "--seq-len", type=Count(MAX_SEQ_LEN), help="Tokens a sequence.  [default: what holds 99 % of the examples]"
    ),
    click.option("--global-batch", type=Count(MAX_GLOBAL_BATCH), help="Sequences an optimizer step.  [default: 32]"),
    click.option("--learning-rate", type=Positive()),
    click.option("--epochs", type=Positive(), help="[default: 1]"),
    click.option("--max-steps", type=STEPS),
    click.option(
        "--adapter", type=click.Choice(ADAPTERS), default="lora", show_default=True, help="Form (lora, qlora)."
    ),
    click.option("--lora-rank", type=Count(65536), default=16, show_default=True),
    click.option("--lora-dropout", type=Probability(), default=0.0, show_default=True),
    click.option("--labels", type=Count(10**7), help="Classes, where the data does not tell."),
    click.option("--no-packing", is_flag=True, help="One text a sequence."),
    click.option(
        "--new-tokens", type=Count(MAX_SEQ_LEN), default=128, show_default=True, help="Answer length (infer)."
    ),
    click.option("--prompt-tokens", type=Count(MAX_SEQ_LEN), help="Prompt length (infer).  [default: 2048]"),
    click.option("--concurrency", type=Count(10**6), help="Prompts at a time (infer).  [default: 1; throughput: 64]"),
    click.option("--max-latency", type=Positive(), help="Seconds that an answer may take, prompt included (infer)."),
    click.option(
        "--optimize-for",
        type=click.Choice(sorted({goal for goals in GOALS.values() for goal in goals})),
        help="time (train), latency or throughput (infer): as many devices as make it faster; memory (infer): as little as "
        "can be.  [default: efficiency, as many as earn their place]",
    ),
    click.option(
        "--pin",
        "pins",
        type=Pin(),
        multiple=True,
        shell_complete=completion.complete_technique,
        help="Fix a decision: AXIS=NAME. Repeatable.",
    ),
    click.option(
        "--allow",
        multiple=True,
        shell_complete=completion.complete_technique,
        help="Allow a technique that may touch convergence, or is taken on request only: AXIS=NAME. Repeatable.",
    ),
    click.option(
        "--framework",
        type=click.Choice(list_frameworks()),
        help="On a CPU: pytorch-xla tries a TPU's project, tensorflow is the guides' (both slower). On a TPU: torch-tpu is planned alone.  "
        "[default: what is recommended there]",
    ),
    click.option("--offline", is_flag=True, envvar="HF_HUB_OFFLINE", help="Never ask the model hub."),
)


def add_case_options(command: Callable) -> Callable:
    for option in reversed(CASE_OPTIONS):
        command = option(command)
    return command


def make_case_parameters() -> list[click.Parameter]:
    return click.command(add_case_options(lambda: None)).params


def make_request(options: dict[str, Any]) -> Request:
    """The options of a command as a ``Request``."""
    from generator.case.request import Request

    values = dict(options)
    values["packing"] = not values.pop("no_packing")
    values.pop("sample", None)  # without a model, a request is for the sample
    return Request(**values, given=list_given(values))


def list_given(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of those that stand on the command line, or in its environment."""
    context = click.get_current_context(silent=True)
    if context is None:
        return ()
    given = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT, ParameterSource.PROMPT)
    return tuple(name for name in values if context.get_parameter_source(name) in given)


def ask_sources(
    options: dict[str, Any], *, data: bool, may_ask: bool = True, project: Path | None = None
) -> dict[str, Any]:
    """The options with --model, and for training --data where ``data`` is wanted: asked for on a terminal, else required.

    ``project``: the folder that is written, which may hold a project already. Raises ``UsageError`` off a terminal, and for --sample beside what it stands for.
    """
    if options["sample"]:
        if options["model"] is not None:
            raise UsageError("--sample brings a model, and --model names one", "give one of them")
        return options
    wanted = ["model"] + (["data"] if data and options["mode"] == "train" else [])
    missing = [name for name in wanted if options[name] is None]
    if not missing:
        return options
    if not (may_ask and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{' and '.join(f'--{name}' for name in missing)} must be given",
            f"perfgen {click.get_current_context().info_name} … --model FOLDER_OR_HUB_ID"
            + (" --data FILE_FOLDER_OR_HUB_ID" if "data" in wanted else "")
            + "; or --sample, for the embedded sample model and text"
            + (f"; or `perfgen update {project}`, which takes them from the project" if holds_plan(project) else ""),
        )
    questions = {
        "model": ("Model (folder, config.json or hub id)", check_model),
        "data": ("Data (file, folder or hub id)", check_data),
    }
    answers = dict(options)
    for name in missing:
        text, check = questions[name]
        answers[name] = click.prompt(text, value_proc=lambda value, check=check: check(value, answers), err=True)
    if "data" in missing and "task" not in list_given(options):
        answers["task"] = choose_task(answers)
    return answers


def holds_plan(folder: Path | None) -> bool:
    return folder is not None and (folder / "plan.json").is_file()


def choose_task(options: Mapping[str, Any]) -> str:
    """The task that an answered data set is for, said where it is not the usual one; what else is wrong with it is said later."""
    from generator.case.sources import read_request_data

    request = make_request(dict(options))
    try:
        read_request_data(request, options["data"])
    except OtherTask as error:
        click.echo(f"{error.message}: --task {error.task}", err=True)
        return error.task
    except PerfgenError:
        pass
    return request.task


def check_model(value: str, options: Mapping[str, Any]) -> str:
    """An answer that names a model; click asks again for one that does not."""
    from generator.inputs.model_files import read_model

    try:
        read_model(value.strip(), offline=options["offline"], config=options["config"], mode=options["mode"])
    except PerfgenError as error:
        raise click.UsageError(str(error)) from error
    return value.strip()


def check_data(value: str, _: Mapping[str, Any]) -> str:
    """An answer that names data: a path that is there, or what can be a hub id. Its rows are read later."""
    from pathlib import Path

    from generator.inputs.hub_ids import HUB_ID_RULE, is_hub_id

    value = value.strip()
    looks_local = value.startswith((".", "/", "~")) or bool(Path(value).suffix in LOCAL_ENDINGS)
    if "\0" in value or not (Path(value).exists() or (is_hub_id(value) and not looks_local)):
        raise click.UsageError(f"{value!r} is no file, no folder and no hub id: {HUB_ID_RULE}")
    return value


LOCAL_ENDINGS = (".jsonl", ".json", ".csv", ".parquet", ".txt", ".arrow", ".gz")
"""What a hub id could end in and hardly ever does."""
