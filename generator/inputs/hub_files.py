"""Files of a model of the hub: in the cache that huggingface_hub keeps, or fetched into it."""

from __future__ import annotations

from pathlib import Path

from generator.inputs.chat_templates import TEMPLATE_FILE, TEMPLATE_FOLDER, TOKENIZER_CONFIG
from generator.inputs.hub_requests import ask_hub

SMALL_FILES = (
    TOKENIZER_CONFIG,
    TEMPLATE_FILE,
    "chat_template.json",
    "special_tokens_map.json",
    "generation_config.json",
)
"""What a plan reads beside config.json, and what a tokenizer needs; each may be missing"""


def find_cached_file(name: str, file: str, revision: str | None = None) -> Path | bool | None:
    """Of the newest snapshot in the hub cache (HF_HUB_CACHE, HF_HOME); False: the model is known not to have it."""
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, file, revision=revision)
    except (OSError, ValueError):  # a damaged cache: refs that are no text
        return None
    if cached is _CACHED_NO_EXIST:
        return False
    return Path(cached) if isinstance(cached, str) and Path(cached).is_file() else None


def fetch_config(name: str) -> Path | None:
    """The newest config.json, None where the model has none. Raises ``SourceError``."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError

    def fetch() -> str:
        get_hf_file_metadata(
            hf_hub_url(name, "config.json")
        )  # fails at once, where a download would wait and try again
        return hf_hub_download(name, "config.json")

    try:
        return Path(ask_hub(name, "model", fetch))
    except EntryNotFoundError:
        return None


def list_files(name: str, revision: str | None) -> frozenset[str]:
    """The names of all files, with their folders. Raises ``SourceError``."""
    from huggingface_hub import HfApi

    siblings = ask_hub(name, "model", lambda: HfApi().model_info(name, revision=revision).siblings)
    return frozenset(sibling.rfilename for sibling in siblings or ())


def fetch_small_files(name: str, revision: str, listed: frozenset[str]) -> None:
    """Into the cache, where train.py finds them too; what is missing is noted there. Raises ``SourceError``."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    templates = sorted(n for n in listed if n.startswith(f"{TEMPLATE_FOLDER}/") and n.endswith(".jinja"))

    def fetch() -> None:
        for file in (*SMALL_FILES, *templates):
            try:
                hf_hub_download(name, file, revision=revision)
            except EntryNotFoundError:
                continue

    ask_hub(name, "model", fetch)
