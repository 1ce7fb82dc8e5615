"""A folder that holds an adapter alone, as PEFT saves it: served beside the model that it was trained for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from generator.errors import SourceError
from generator.inputs.json_files import read_json
from generator.inputs.model_folder import TOKENIZER_FILES, check_tokenizer_config, explain_merging
from generator.inputs.model_source import AdapterSource, ModelSource

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
UNRUN = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "use_bdlora",
    "use_qalora",
)
"""Settings of LoraConfig (PEFT 0.21) that make another computation of it: some are not merged (a bias beside a layer that has none),
layers that are repeated are not in the base model, none was run"""
UNEVEN = {
    "patterned": ("rank_pattern", "alpha_pattern"),
    "of parameters": ("target_parameters",),
}
"""Forms, and the settings that make them: an engine that reads rank and alpha alone would scale or leave out what is not by them."""


def is_adapter(folder: Path) -> bool:
    return (folder / SETTINGS).is_file() and not (folder / "config.json").exists()


def read_adapter(folder: Path, shown: str, read_base: Callable[[str], ModelSource]) -> ModelSource:
    """The base model as its files show it, with the adapter and its tokenizer. Raises ``SourceError``."""
    settings = read_json(folder / SETTINGS, "download it again")
    if not isinstance(settings, dict):
        raise SourceError(f"{folder / SETTINGS} holds no object but {type(settings).__name__}", "download it again")
    if problem := explain_unserved(settings, folder):
        raise SourceError(f"{shown} holds an adapter {problem}", explain_merging(Path(shown)))
    named = settings["base_model_name_or_path"]
    base = find_base(named, folder)
    try:
        source = read_base(base)
    except SourceError as error:
        hint = f"write where its model is into {folder / SETTINGS}, as base_model_name_or_path"
        raise SourceError(f"{shown} holds an adapter of {named}: {error.message}", hint) from error
    if not source.has_weights or source.kind == "gguf":
        raise SourceError(
            f"{shown} holds an adapter of {named}, which has no safetensors", "give it a base model that has"
        )
    own = any((folder / name).is_file() for name in TOKENIZER_FILES)
    if own:
        check_tokenizer_config(folder)
    adapter = AdapterSource(
        path=str(folder),
        rank=settings["r"],
        bytes=(folder / WEIGHTS).stat().st_size,
        form=find_form(settings),
    )
    name = f"{source.name.rsplit('/', 1)[-1]}-{folder.name}"
    return replace(source, name=name, adapter=adapter, tokenizer=str(folder) if own else source.tokenizer)


def explain_unserved(settings: dict[str, Any], folder: Path) -> str | None:
    """In words that follow "an adapter"; ``None`` where it is served."""
    kind, rank, named = settings.get("peft_type"), settings.get("r"), settings.get("base_model_name_or_path")
    if kind != "LORA" or not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        return f"of type {kind} and rank {rank}, and LoRA is what is served"
    if settings.get("task_type") not in ("CAUSAL_LM", None):
        return f"for {settings['task_type']}, and those of models that write are served"
    if settings.get("modules_to_save") or settings.get("trainable_token_indices"):
        return "with whole layers beside it (modules_to_save), which engines do not take"
    if unrun := next((key for key in UNRUN if settings.get(key)), None):
        return f"with {unrun}, which nobody ran here"
    if not isinstance(named, str) or not named:
        return "that does not say of which model (base_model_name_or_path)"
    return None if (folder / WEIGHTS).is_file() else f"without {WEIGHTS}"


def find_form(settings: dict[str, Any]) -> str:
    """What an engine must know of beside rank and alpha; ``lora`` where nothing."""
    if settings.get("bias", "none") != "none":
        return "biased"
    uneven = next((form for form, keys in UNEVEN.items() if any(settings.get(key) for key in keys)), None)
    return uneven or next((form for form in ("dora", "rslora") if settings.get(f"use_{form}")), "lora")


def find_base(named: str, folder: Path) -> str:
    """A path may be relative to the folder of the project that trained it."""
    below = (place / named for place in (folder, *folder.parents))
    return next((str(path) for path in below if path.is_dir()), named)
