"""The chat template of a tokenizer, from the files that AutoTokenizer reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generator.inputs.json_files import is_small_file, load_json

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
OTHER_READERS = ("chat_template.json", "tekken.json")
"""a processor and Mistral's own tokenizer read a template from these, AutoTokenizer's others do not"""


def find_chat_template(folder: Path, listed: frozenset[str] | None = None, known: bool = True) -> bool | None:
    """None: the files do not say. ``listed``: names of all files of the model, None: those in ``folder``; ``known``: whether
    what is neither there nor listed is known to be missing.

    The order is that of ``PreTrainedTokenizerBase.from_pretrained`` in transformers 5.23.
    """
    if (folder / TEMPLATE_FILE).is_file() or any(map(Path.is_file, (folder / TEMPLATE_FOLDER).glob("*.jinja"))):
        return True
    if read_template_setting(folder / TOKENIZER_CONFIG):
        return True
    if not known or any((folder / name).is_file() or name in (listed or ()) for name in OTHER_READERS):
        return None
    return False


def read_template_setting(path: Path) -> bool:
    """Whether a tokenizer_config.json holds one template or several."""
    return bool(read_settings(path).get("chat_template"))


def read_chat_templates(folder: Path) -> dict[str, str]:
    """The templates of a folder by name, in the order of ``find_chat_template``; a single one is the default."""
    try:
        files = {"default": folder / TEMPLATE_FILE} if (folder / TEMPLATE_FILE).is_file() else {}
        files |= {file.stem: file for file in (folder / TEMPLATE_FOLDER).glob("*.jinja")}
        if files:
            # never a pipe, nor what is larger than a template can be
            return {name: file.read_text(encoding="utf-8") for name, file in files.items() if is_small_file(file)}
    except (OSError, UnicodeDecodeError):
        return {}
    setting = read_settings(folder / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(setting, list):
        setting = {row.get("name"): row.get("template") for row in setting if isinstance(row, dict)}
    templates = {"default": setting} if isinstance(setting, str) else setting if isinstance(setting, dict) else {}
    return {name: text for name, text in templates.items() if isinstance(name, str) and isinstance(text, str)}


def read_special_tokens(folder: Path) -> dict[str, str]:
    """What templates call eos_token, bos_token and so on; those of special_tokens_map.json, which Transformers reads only in
    the place of an added_tokens_decoder."""
    settings = read_settings(folder / TOKENIZER_CONFIG)
    older = {} if "added_tokens_decoder" in settings else read_settings(folder / SPECIAL_TOKENS)
    values = {name: value for name, value in (settings | older).items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def read_settings(path: Path) -> dict[str, Any]:
    """An object of JSON; empty where there is none."""
    try:
        settings = load_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}
