"""Flags of train.py: every name of TrainingArguments, and one line for what cannot be."""

import argparse
import os
import shutil
import sys
from importlib.util import find_spec
from netrc import NetrcParseError, netrc
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import HfApi
from transformers import HfArgumentParser

from masking import mask_secrets
from terminal import describe_unknown, suggest_names

TRACKERS = ("tensorboard", "wandb", "trackio", "mlflow")
"""Values of --report_to: each is the name of its module, and of its extra in pyproject.toml."""


def parse_arguments(parser: HfArgumentParser, config: dict):
    """The arguments; one line and exit code 2 for what TrainingArguments refuses."""
    parser.usage = argparse.SUPPRESS  # it would stand before a message
    parser.description = "train.py --NAME VALUE …: every name of TrainingArguments"
    known = {action.dest for action in parser._actions}
    wrong = [name for name in config["training"] if name not in known]
    if wrong:
        near = suggest_names(wrong, known)
        parser.error(f"config.yaml: training.{wrong[0]} is no name of TrainingArguments{near}")
    fit_saves_and_evaluations(parser, config)
    follow_old_names(parser, config)
    refuse_unread(parser, list_given(config) & known)
    try:
        args, unknown = parser.parse_args_into_dataclasses(return_remaining_strings=True)
    except (ValueError, TypeError, ImportError, RuntimeError, OSError, NotImplementedError) as error:
        parser.error(" ".join(str(error).split()))
    if unknown:
        parser.error(describe_unknown(parser, unknown))
    if args.resume_from_checkpoint is not None:  # Trainer does not read it, and nothing here would
        parser.error(
            "--resume_from_checkpoint is not read: a run that can go on does so by itself, from the newest checkpoint "
            "in --output_dir. To go on from an earlier one, move the newer ones away."
        )
    if args.fp16 and "fp16" in list_given(config) and args.device.type == "cpu":
        parser.error("--fp16: Accelerate computes in 32 bits on a CPU, and says nothing; --bf16 True is for CPUs too")
    if getattr(args, "padding_free", False) and args.packing:
        parser.error("--packing: rows stand one after the other already (padding_free), and have no padding")
    if getattr(args, "padding_free", False) and args.neftune_noise_alpha:
        parser.error(
            "--neftune_noise_alpha: its noise shrinks with the length of a row, and the texts of a batch are one row "
            "here (padding_free): plan with --pin packing=padded"
        )
    if args.use_liger_kernel and find_spec("liger_kernel") is None:
        parser.error("--use_liger_kernel: not installed; .venv/bin/pip install liger-kernel")
    if problem := explain_shared_memory(args, config.get("seq_len", 0)):
        parser.error(problem)
    check_trackers(parser, args)
    if args.push_to_hub and args.process_index == 0:
        check_hub(parser, args)
    return args


def explain_shared_memory(args, seq_len: int) -> str | None:
    """Data workers hand batches over in it: where it is full one of them prints an error, and the training waits for it
    without an end."""
    workers, ahead = args.dataloader_num_workers, args.dataloader_prefetch_factor or AHEAD
    if not workers or not SHARED_MEMORY.is_dir():
        return None
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    needed = processes * workers * ahead * args.per_device_train_batch_size * seq_len * TOKEN_BYTES
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free >= needed:
        return None
    return (
        f"{SHARED_MEMORY} has room for {free / 2**20:.1f} MiB, and {processes * workers} data workers hand over up to "
        f"{needed / 2**20:.1f} MiB there: --dataloader_num_workers 0, or a container with --shm-size=1g"
    )


SHARED_MEMORY = Path("/dev/shm")
TOKEN_BYTES = 24
"""of a batch: its number, its label and its mask"""
AHEAD = 2
"""batches that a worker of PyTorch's DataLoader has ready, where nothing is said"""


def list_given(config: dict) -> set[str]:
    """Names of TrainingArguments that flags or config.yaml set."""
    flags = {word.split("=")[0][2:].replace("-", "_") for word in sys.argv[1:] if word.startswith("--")}
    return flags | config.get("training", {}).keys()


def follow_old_names(parser: HfArgumentParser, config: dict) -> None:
    """TrainingArguments reads an old name only where the new one is not set, and the plan sets it."""
    given = list_given(config)
    for old, new in OLD_NAMES.items():
        if old in given and new not in given:
            parser.set_defaults(**{new: None})


OLD_NAMES = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}


def refuse_unread(parser: HfArgumentParser, given: set[str]) -> None:
    """What SFTTrainer does with rows that have no tokens yet."""
    for name in OF_DATA:
        if name in given:
            parser.error(
                f"--{name} is not read: data.py makes the tokens, and config.yaml says of what (columns) and which "
                "are learned (loss_on)"
            )


OF_DATA = ("assistant_only_loss", "chat_template_path", "completion_only_loss", "dataset_text_field", "eos_token")


def fit_saves_and_evaluations(parser: HfArgumentParser, config: dict) -> None:
    """The best model can be kept only where it is evaluated and saved. Else the last one is, and that is said."""
    values, _ = parser.parse_known_args()
    evaluates = str(getattr(values.eval_strategy, "value", values.eval_strategy)) != "no"
    if evaluates and config["eval_data"] is None:
        parser.error("--eval_strategy: nothing is held out; set eval_data in config.yaml to a file or a share")
    if not evaluates:
        parser.set_defaults(eval_on_start=False)
    if str(values.metric_for_best_model).endswith("perplexity"):  # Trainer takes the largest of all that is no loss
        parser.set_defaults(greater_is_better=False)
    asked = "load_best_model_at_end" in list_given({})
    if asked or not values.load_best_model_at_end:
        return
    reason = describe_mismatch(values, evaluates)
    if reason:
        parser.set_defaults(load_best_model_at_end=False)
        if evaluates and os.environ.get("RANK", "0") == "0":
            print(f"the last model is kept, not the best one: {reason}")


def describe_mismatch(values, evaluates: bool) -> str | None:
    """Why TrainingArguments would refuse to keep the best model."""
    strategy = {name: str(getattr(getattr(values, name), "value", getattr(values, name))) for name in STRATEGIES}
    if not evaluates:
        return "there is no evaluation"
    if strategy["save_strategy"] == "best":
        return None
    if strategy["save_strategy"] != strategy["eval_strategy"]:
        return f"saved by {strategy['save_strategy']}, evaluated by {strategy['eval_strategy']}"
    steps = values.eval_steps or values.logging_steps
    if strategy["eval_strategy"] == "steps" and (values.save_steps < 1) == (steps < 1) and values.save_steps % steps:
        return f"--save_steps {values.save_steps:g} is no multiple of --eval_steps {steps:g}"
    return None


STRATEGIES = ("save_strategy", "eval_strategy")


def check_trackers(parser: HfArgumentParser, args) -> None:
    """Each tracker is installed; W&B without a key writes to disk in place of asking for one, which is said."""
    for name in args.report_to:
        if name in TRACKERS and find_spec(name) is None:
            parser.error(f"--report_to {name}: not installed; .venv/bin/pip install '.[{name}]'")
    os.environ.setdefault("WANDB_DIR", args.output_dir)
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(Path(args.output_dir, "tensorboard")))
    if "wandb" in args.report_to and "WANDB_MODE" not in os.environ and not has_wandb_key():
        os.environ["WANDB_MODE"] = "offline"
        if args.process_index == 0:
            print(f"W&B: no key, so the log stays in {args.output_dir}, and `wandb sync` sends it later")


def has_wandb_key() -> bool:
    """In the environment, or where `wandb login` writes it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser()).authenticators(host or "") is not None
    except (OSError, RuntimeError, NetrcParseError):
        return False


def check_hub(parser: HfArgumentParser, args) -> None:
    """Trainer would ask it after the data is prepared, and end with a traceback."""
    try:
        HfApi(token=args.hub_token).whoami()
    except Exception as error:  # of whichever HTTP client the library uses
        reason = mask_secrets(" ".join(str(error).split()))
        parser.error(f"--push_to_hub takes a network and a token (hf auth login): {reason}")
