"""A model folder, or a config.json alone: weights, tokenizer, chat template."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from generator.errors import SourceError
from generator.inputs.chat_templates import find_chat_template
from generator.inputs.config_checks import load_config
from generator.inputs.json_files import read_json
from generator.inputs.model_source import ModelSource
from generator.inputs.safetensors_headers import check_weights

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "tekken.json")
OTHER_WEIGHTS = re.compile(r".*\.(gguf|bin|pt|pth|ckpt|h5|msgpack|onnx)")
WITHOUT_WEIGHTS = {
    "train": "training starts from random weights",
    "infer": "the plan is for its size, a project needs weights to serve",
    "adapt": "the plan is for its size, a project needs weights to adapt",
}
"""what a model that is sizes alone means, by mode, and for training that adapts weights"""
MERGING = (
    "import sys; from peft import AutoPeftModelForCausalLM as M; from transformers import AutoTokenizer as T; "
    "a, merged, t = sys.argv[1:]; M.from_pretrained(a, dtype='auto').merge_and_unload().save_pretrained(merged); "
    "T.from_pretrained(t).save_pretrained(merged)"
)
"""By PEFT itself: adapter, folder of the whole model, whose tokenizer."""
CONVERTING = (
    "import sys, transformers as t; old, new = sys.argv[1:]; "
    "M = getattr(t, t.AutoConfig.from_pretrained(old).architectures[0]); "
    "M.from_pretrained(old, dtype='auto').save_pretrained(new); t.AutoTokenizer.from_pretrained(old).save_pretrained(new)"
)
"""Pickled weights as safetensors, by the class that their config names: AutoModel would leave the head of a model out."""
NO_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|rng_state.*|scaler)\.(bin|pt|pth)")


def is_weights_file(path: Path) -> bool:
    """By its name; what a training saves beside them is counted too."""
    return path.suffix == ".safetensors" or bool(OTHER_WEIGHTS.fullmatch(path.name))


def read_config_file(path: Path, mode: str) -> ModelSource:
    """Only sizes: training from scratch. What lies beside it is not taken for its weights. Raises ``SourceError``."""
    if is_weights_file(path):
        raise SourceError(*explain_weights_file(path))
    has_tokenizer = any((path.parent / name).is_file() for name in TOKENIZER_FILES)
    return ModelSource(
        kind="config",
        name=path.parent.name if path.stem == "config" else path.stem,
        path=str(path),
        config=json.dumps(load_config(path)),
        has_weights=False,
        has_tokenizer=has_tokenizer,
        has_chat_template=has_tokenizer and find_chat_template(path.parent),
        tokenizer=str(path.parent) if has_tokenizer else None,
        notes=(f"{path.name} holds sizes only: {WITHOUT_WEIGHTS[mode]}",),
    )


def explain_weights_file(path: Path) -> tuple[str, str]:
    """What a file of weights in the place of a config.json is, and what to give in its place."""
    return f"{path} holds weights, and no sizes", f"give the folder with its config.json: {path.parent}"


def read_folder(folder: Path, shown_path: str, mode: str) -> ModelSource:
    try:
        names = {p.name for p in folder.iterdir()}
    except OSError as error:
        raise SourceError(f"{shown_path}: {error.strerror}", "give a folder that you may read") from error
    if "config.json" not in names:
        raise SourceError(*explain_missing_config(shown_path, names))
    config = load_config(folder / "config.json")
    check_tokenizer_config(folder)
    weight_bytes = check_weights(folder, names, config.get("transformers_weights"))
    if weight_bytes is None:
        refuse_other_weights(shown_path, names)
    notes = () if weight_bytes is not None else (f"{shown_path} holds no weights: {WITHOUT_WEIGHTS[mode]}",)
    return ModelSource(
        kind="folder",
        name=folder.name,
        path=str(folder),
        config=json.dumps(config),
        has_weights=weight_bytes is not None,
        has_tokenizer=any(name in names for name in TOKENIZER_FILES),
        has_chat_template=find_chat_template(folder),
        weight_bytes=weight_bytes,
        notes=notes,
    )


def explain_missing_config(shown_path: str, names: set[str]) -> tuple[str, str]:
    """What a folder without a config.json is, and what to give in its place."""
    if "adapter_config.json" in names:
        return f"{shown_path} holds an adapter only", explain_merging(Path(shown_path))
    if files := sorted(name for name in names if name.endswith(".gguf")):
        one = Path(shown_path, files[0])
        served = f"to serve one: --mode infer --model {one if one.is_file() else 'FILE.gguf, once it is downloaded'}"
        return (
            f"{shown_path} holds GGUF files only",
            f"{served}; to train, the safetensors checkpoint that they were made from",
        )
    if "model_index.json" in names:
        return f"{shown_path} holds a diffusion pipeline", "perfgen plans for language models and classifiers"
    return f"{shown_path} holds no config.json", "give --model the folder of a Transformers model"


def explain_merging(folder: Path) -> str:
    """The command that makes a whole model of an adapter; a project of perfgen's that trained it has one of its own."""
    path = folder / "adapter_config.json"
    settings = read_json(path, "download it again") if path.is_file() else {}  # of the hub, only names are known
    base = settings.get("base_model_name_or_path") if isinstance(settings, dict) else None
    if not isinstance(base, str) or not base:
        return "give the base model; merge the adapter into it first"
    merged = f"{folder}-merged"
    own_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
    words = (str(folder), merged, str(folder) if own_tokenizer else base)
    command = f"python -c {shlex.quote(MERGING)} {shlex.join(words)}"
    return (
        f"merge it into its base model ({base}) first, and give {merged}: `python merge.py` in the project of perfgen's that "
        f"trained it; else, where peft is installed: {command}"
    )


def refuse_other_weights(shown_path: str, names: set[str]) -> None:
    """Without safetensors, random weights are meant only where there are no trained ones. Raises ``SourceError``."""
    if "adapter_config.json" in names:
        raise SourceError(*explain_missing_config(shown_path, names))
    others = sorted(n for n in names if OTHER_WEIGHTS.fullmatch(n) and not NO_WEIGHTS.fullmatch(n))
    if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in others):
        raise SourceError(
            f"{shown_path} holds pickled weights only ({others[0]}), which can run code when they are loaded",
            f"where they are trusted, convert them first, and give {shown_path}-safetensors: python -c {shlex.quote(CONVERTING)} "
            f"{shlex.join((shown_path, f'{shown_path}-safetensors'))}"
            if others[0].startswith("pytorch_model")
            else "give the model as Transformers saves it, with safetensors",
        )
    if others:
        raise SourceError(
            f"{shown_path} holds no safetensors, only {', '.join(others[:3])}",
            "give the safetensors checkpoint; to train from random weights, give its config.json alone",
        )


def check_tokenizer_config(folder: Path) -> None:
    """Refuse a tokenizer that needs code of its own. Raises ``SourceError``."""
    path = folder / "tokenizer_config.json"
    settings = read_json(path, "download it again") if path.exists() else {}
    if not isinstance(settings, dict):
        raise SourceError(f"{path} holds no object but {type(settings).__name__}", "download it again")
    if settings.get("auto_map"):
        raise SourceError(
            f"{path}: the tokenizer needs its own Python code (auto_map), which perfgen never runs",
            "use a model that Transformers itself knows",
        )
