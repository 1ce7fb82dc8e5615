"""Models of the hub: what is cached, and the config.json of what is not."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from queue import Empty, Queue

from generator.errors import SourceError
from generator.inputs.config_checks import load_config
from generator.inputs.model_folder import check_tokenizer_config, has_chat_template, refuse_other_weights
from generator.inputs.model_source import ModelSource

HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?", re.ASCII)
HUB_ID_RULE = "a hub id is NAME or OWNER/NAME of letters, digits, dots, dashes and underscores"
HUB_SECONDS = 20
"""How long the hub may take to hand over a config.json of a few KiB."""


def is_hub_id(text: str) -> bool:
    return bool(HUB_ID.fullmatch(text)) and ".." not in text


def read_hub(name: str, offline: bool, config: str | None) -> ModelSource:
    """From ``config``, the local cache, or the hub. Weights and tokenizer are taken to be there."""
    if config is not None:
        return ModelSource(
            **make_hub_fields(name),
            config=json.dumps(load_config(Path(config))),
            has_chat_template=False,
            notes=(f"sizes of {name} come from {Path(config).name}, its files were not looked at",),
        )
    path = find_cached_config(name)
    if path is None and not offline:
        path = fetch_config(name)
    if path is None:
        raise SourceError(
            f"the config.json of {name} is not in the local cache, and the hub may not be asked (offline)",
            "download it first (`hf download " + name + " config.json`), or give a folder, or --config FILE",
        )
    names = {p.name for p in path.parent.iterdir()}
    has_weights = any(n.endswith(".safetensors") for n in names)
    if not has_weights:
        refuse_other_weights(name, names)
    check_tokenizer_config(path.parent)
    missing = f"the weights of {name} are not in the local cache: the project downloads them when it first runs"
    return ModelSource(
        **make_hub_fields(name),
        config=json.dumps(load_config(path)),
        has_chat_template=has_chat_template(path.parent),
        revision=path.parent.name,
        notes=(missing,) if offline and not has_weights else (),
    )


def make_hub_fields(name: str) -> dict:
    return {"kind": "hub", "name": name, "path": name, "has_weights": True, "has_tokenizer": True}


def find_cached_config(name: str) -> Path | None:
    """The config.json of the newest snapshot in the hub cache (HF_HUB_CACHE, HF_HOME)."""
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except (OSError, ValueError):  # a damaged cache: refs that are no text
        return None
    return Path(cached) if isinstance(cached, str) and Path(cached).is_file() else None


def fetch_config(name: str) -> Path:
    """Ask the hub, for at most ``HUB_SECONDS``. Raises ``SourceError``."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    answer: Queue[str | Exception] = Queue()

    def ask() -> None:
        try:
            answer.put(hf_hub_download(name, "config.json", etag_timeout=HUB_SECONDS / 2))
        except (HfHubHTTPError, OSError, ValueError) as error:
            answer.put(error)

    # a thread, for the library has no deadline of its own: it tries six times and waits longer each time
    threading.Thread(target=ask, daemon=True).start()
    hint = "check the name and your access, or give a folder, or --config FILE; --offline does not ask"
    try:
        path = answer.get(timeout=HUB_SECONDS)
    except Empty:
        raise SourceError(f"{name}: the model hub did not answer in {HUB_SECONDS} s", hint) from None
    if isinstance(path, Exception):
        raise SourceError(f"{name}: {(str(path).strip() or type(path).__name__).splitlines()[0]}", hint) from path
    return Path(path)
