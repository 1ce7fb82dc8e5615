"""What a run depends on: to resume with another value would silently shift data, numbers or the model."""

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from transformers import Trainer

COPIES = "copies of the model"
"""Processes that have all of it: others go on with what one of them saved, as they draw rows in one order."""
MAY_CHANGE = ("learning rate", "warmup", "length", COPIES)
"""What a run may go on with that began with another value; that is printed, and stands in the model's README.md."""
MEASURED = "best model by"
EVALUATED = "every row of the evaluation"
COMPARED = (MEASURED, EVALUATED)
"""May change too: numbers of another metric, or of other rows, say nothing of which model is better."""
LATER = (
    *COMPARED,
    *("processes", "Adam", "weight decay", "schedule", *MAY_CHANGE, "learned from", "data order", "gradient clipping"),
    *("label smoothing", "NEFTune", "optimizer arguments", "LoRA", "config of the model", "weights of the model"),
    *("loss of the routers", "every row"),
)
"""What seals of earlier versions leave out."""
SAMPLES = 4096
"""Tensors of the base weights that are looked into, and bytes of each: a second on a cold network disk."""


def describe_run(trainer: Trainer, config: dict, model: str | Path, rows_hash: str, trained_parameters: int) -> dict:
    """``model`` is the folder, config.json or hub id that training began with, ``rows_hash`` that of all its data."""
    args, dataset = trainer.args, trainer.train_dataset
    data_seed = args.seed if args.data_seed is None else args.data_seed
    optim_args = " ".join(filter(None, (args.optim_args, describe_plainly(args.optim_target_modules))))
    return {
        "data": describe_rows(dataset),
        "every row": rows_hash,
        "learned from": config.get("loss_on", "all"),
        "sequence length": config["seq_len"],
        "global batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "data order": f"{args.train_sampling_strategy}, seed {data_seed}",
        **describe_base(model, config.get("revision")),
        "trained parameters": trained_parameters,
        "LoRA": describe_adapter(trainer.model),
        "weights": str(trainer.model.dtype),
        "autocast": "bf16" if args.bf16 else "fp16" if args.fp16 else "off",
        "optimizer": args.optim.value,
        "optimizer arguments": optim_args or "none",
        "Adam": f"beta1 {args.adam_beta1:g}, beta2 {args.adam_beta2:g}, epsilon {args.adam_epsilon:g}",
        "gradient clipping": args.max_grad_norm,
        "label smoothing": args.label_smoothing_factor,
        "NEFTune": args.neftune_noise_alpha or 0.0,
        **({"loss of the routers": f"times {trainer.router_aux_loss_coef:g}"} if "router_loss" in config else {}),
        "schedule": f"{args.lr_scheduler_type.value} {args.lr_scheduler_kwargs or ''}".strip(),
        "seed": args.seed,
        **({COPIES: args.world_size} if has_whole_states(trainer) else {"processes": args.world_size}),
        "learning rate": args.learning_rate,
        "weight decay": args.weight_decay,
        "warmup": args.warmup_steps,
        "length": f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs",
        MEASURED: describe_measure(args, trainer.eval_dataset),
        EVALUATED: hash_evaluated_rows(args, trainer.eval_dataset),
        "changes": [],
    }


def has_whole_states(trainer: Trainer) -> bool:
    """Whether each process saves and reads all weights and optimizer states: not where a library divides them."""
    divided = ("is_fsdp_enabled", "is_deepspeed_enabled")
    return not any(getattr(trainer, name, True) for name in divided)  # a loop of its own says itself who goes on


def describe_rows(rows) -> str:
    indices = range(0, len(rows), max(1, len(rows) // 64))
    sample = hashlib.sha256(repr([rows[index] for index in indices]).encode(errors="surrogatepass"))
    return f"{len(rows)} examples, sha256 {sample.hexdigest()[:16]}"


def describe_measure(args, rows) -> str:
    if rows is None or args.metric_for_best_model is None:
        return "none"
    rows = getattr(rows, "rows", rows)  # without those that fill the last batch of several processes
    return (
        f"{'largest' if args.greater_is_better else 'smallest'} {args.metric_for_best_model} of {describe_rows(rows)}"
    )


def hash_evaluated_rows(args, rows) -> str:
    """Of all: an evaluation takes longer than their hash, which a run that keeps no best model does without."""
    if rows is None or args.metric_for_best_model is None:
        return "none"
    value = hashlib.sha256()
    for row in getattr(rows, "rows", rows):
        value.update(repr(row).encode(errors="surrogatepass"))
    return f"sha256 {value.hexdigest()[:16]}"


def list_changes(saved: dict, run: dict, keys: Iterable[str]) -> list[str]:
    """The values of a seal that are others now."""
    known = [key for key in keys if key in run and (key in saved or key not in LATER)]
    return [f"{key}: {saved.get(key)} then, {run[key]} now" for key in known if saved.get(key) != run[key]]


def describe_adapter(model) -> str:
    configs = getattr(model, "peft_config", None)
    if not configs:
        return "none"
    lora = next(iter(configs.values()))
    parts = [f"rank {lora.r}", f"alpha {lora.lora_alpha}", f"dropout {lora.lora_dropout:g}", f"bias {lora.bias}"]
    parts += [name for name in ("use_rslora", "use_dora") if getattr(lora, name)]
    parts += [f"also trained {describe_plainly(lora.modules_to_save)}"] if lora.modules_to_save else []
    parts += [f"tokens {lora.trainable_token_indices}"] if lora.trainable_token_indices else []
    return ", ".join([*parts, f"on {describe_plainly(lora.target_modules)}"])


def describe_plainly(names: str | Iterable[str] | None) -> str:
    """Sets have no order of their own: it is another one in every process."""
    return (names or "") if isinstance(names, str | None) else " ".join(sorted(names))


def describe_base(model: str | Path, revision: str | None) -> dict[str, str]:
    """The model before training, by what it holds and not by its name: a copy elsewhere is the same."""
    path = Path(model)
    if not path.exists():  # an id of the hub
        cached = try_to_load_from_cache(str(model), "config.json", revision=revision)
        if not isinstance(cached, str):
            return {"config of the model": f"that of {model} at {revision}"}
        path = Path(cached).parent
    config = json.loads((path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    parts = {"config of the model": f"sha256 {digest[:16]}"}
    return parts | ({"weights of the model": sample_weights(path)} if path.is_dir() and list_weights(path) else {})


def check_base(run: Path, model: str | Path, revision: str | None) -> None:
    """An adapter belongs to the weights that it was trained beside, which are here by now.

    ``run`` is the folder of a finished run.
    """
    base = describe_base(model, revision)
    changed = list_changes(read_identity(run / "run.json"), base, base)
    if changed:
        sys.exit("\n  ".join([f"{run} was trained on another model than {model} is now:", *changed]))


def read_identity(report: Path) -> dict:
    """Nothing, where there is no report. Ends the process where it cannot be read."""
    try:
        match json.loads(report.read_text(encoding="utf-8")):
            case {"run": dict(identity)}:
                return identity
            case {**others} if "run" not in others:  # of an earlier version
                return {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        pass
    sys.exit(f"{report} is damaged, and says which model this was trained on: python train.py writes it anew.")


def list_weights(folder: Path) -> list[Path]:
    """The files that from_pretrained reads."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not index.is_file():
        return []
    return [folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))]


def sample_weights(folder: Path) -> str:
    """A hash of every file's size and header, and of 4 KiB from the middle of each tensor (of 4096 of them at most).

    Training moves all of a tensor, so it is seen; a hand that changes one number elsewhere in it is not.
    """
    value = hashlib.sha256()
    tensors: list[tuple[Path, int, int]] = []
    for path in list_weights(folder):
        header, places = read_header(path)
        value.update(f"{path.stat().st_size} ".encode() + header)
        tensors += [(path, begin, end) for begin, end in places]
    for path, part in read_middles(tensors[:: -(-len(tensors) // SAMPLES) or 1]):
        value.update(f"{path.name} ".encode() + part)
    return f"sampled sha256 {value.hexdigest()[:16]}"


def read_header(path: Path) -> tuple[bytes, list[tuple[int, int]]]:
    """Of a safetensors file: names, shapes and dtypes as they stand, and where each tensor begins and ends."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length)
    rows = [row["data_offsets"] for name, row in json.loads(header).items() if name != "__metadata__"]
    return header, sorted((8 + length + begin, 8 + length + end) for begin, end in rows)


def read_middles(tensors: list[tuple[Path, int, int]]) -> Iterator[tuple[Path, bytes]]:
    for path, begin, end in tensors:
        with path.open("rb", buffering=0) as file:
            start = max(begin, (begin + end) // 2 - SAMPLES // 2)
            yield path, os.pread(file.fileno(), min(SAMPLES, end - start), start)
