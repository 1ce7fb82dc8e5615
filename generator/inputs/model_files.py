"""--model and --tokenizer: a folder, a config.json, or a hub id."""

from __future__ import annotations

from pathlib import Path

from generator.errors import SourceError
from generator.inputs.adapter_folder import is_adapter, read_adapter
from generator.inputs.chat_templates import TEMPLATE_FOLDER, find_chat_template
from generator.inputs.gguf_files import read_gguf
from generator.inputs.hub import read_hub
from generator.inputs.hub_ids import advise_on_name, is_hub_id
from generator.inputs.model_folder import (
    TOKENIZER_FILES,
    check_tokenizer_config,
    is_weights_file,
    read_config_file,
    read_folder,
)
from generator.inputs.model_source import ModelSource


def read_model(source: str, *, offline: bool, config: str | None = None, mode: str = "train") -> ModelSource:
    """A folder, a config.json, a GGUF file, or a hub id. ``config`` is a file to use for a hub id. Raises ``SourceError``."""
    path = Path(source)
    try:
        is_dir, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise SourceError(f"--model {source!r}: {error}", "give a folder, a config.json or a hub id") from error
    if is_dir and mode == "infer" and is_adapter(path):
        return read_adapter(path.resolve(), source, lambda base: read_model(base, offline=offline, mode=mode))
    if is_dir:
        return read_folder(path.resolve(), source, mode)
    if is_file and path.suffix == ".gguf":
        return read_gguf(path.resolve() if path.resolve().suffix == ".gguf" else path.absolute(), mode)
    if is_file:
        return read_config_file(path.resolve(), mode)
    if not is_hub_id(source):
        raise SourceError(
            f"--model {source!r} is neither a folder, nor a config.json or a GGUF file, nor a hub id",
            advise_on_name(source),
        )
    try:
        return read_hub(source, offline, config, mode)
    except SourceError as error:  # a folder may have been meant
        if config is not None:
            raise
        raise SourceError(
            f"--model {source}: there is no such folder or file here; on the hub: {error.message}", error.hint
        ) from error


def read_tokenizer(source: str) -> str:
    """``--tokenizer``: a folder (its full path is returned) or a hub id. Raises ``SourceError``."""
    path = Path(source)
    try:
        is_dir = path.is_dir()
    except (OSError, ValueError) as error:
        raise SourceError(f"--tokenizer {source!r}: {error}", "give a folder or a hub id") from error
    if is_dir:
        if not any((path / name).is_file() for name in TOKENIZER_FILES):
            raise SourceError(f"--tokenizer {source} holds none of {', '.join(TOKENIZER_FILES)}", "check the folder")
        check_tokenizer_config(path)
        return str(path.resolve())
    if path.exists():  # tokenizer.json itself would be asked for on the hub
        raise SourceError(f"--tokenizer {source} is no folder", "give the folder that holds it")
    if not is_hub_id(source):
        raise SourceError(f"--tokenizer {source!r} is neither a folder nor a hub id", advise_on_name(source))
    return source


def list_tokenizer_parts(folder: Path) -> list[Path]:
    """The folder; of one that holds a model too, what is none of its weights: the folders below it are left out, but templates'."""
    files = sorted(folder.iterdir())
    if not any(is_weights_file(file) for file in files):
        return [folder]
    templates = [file for file in files if file.is_dir() and file.name == TEMPLATE_FOLDER]
    return [file for file in files if file.is_file() and not is_weights_file(file)] + templates


def find_tokenizer_template(tokenizer: str) -> bool | None:
    """Whether what ``read_tokenizer`` returned has a chat template; of a hub id that is seen when the project runs."""
    return find_chat_template(Path(tokenizer)) if Path(tokenizer).is_dir() else None
