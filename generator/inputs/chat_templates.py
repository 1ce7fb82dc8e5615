"""Whether a tokenizer has a chat template, from the files that AutoTokenizer reads."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "additional_chat_templates"
TOKENIZER_CONFIG = "tokenizer_config.json"
OTHER_READERS = ("chat_template.json", "tekken.json")
"""a processor and Mistral's own tokenizer read a template from these, AutoTokenizer's others do not"""


def find_chat_template(folder: Path, listed: frozenset[str] | None = None, known: bool = True) -> bool | None:
    """None: the files do not say. ``listed``: names of all files of the model, None: those in ``folder``; ``known``: whether
    what is neither there nor listed is known to be missing.

    The order is that of ``PreTrainedTokenizerBase.from_pretrained`` in transformers 5.23.
    """
    if (folder / TEMPLATE_FILE).is_file() or any((folder / TEMPLATE_FOLDER).glob("*.jinja")):
        return True
    if read_template_setting(folder / TOKENIZER_CONFIG):
        return True
    if not known or any((folder / name).is_file() or name in (listed or ()) for name in OTHER_READERS):
        return None
    return False


def read_template_setting(path: Path) -> bool:
    """Whether a tokenizer_config.json holds one template or several."""
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return False
