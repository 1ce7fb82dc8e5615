"""The commit of a tokenizer that has a hub id of its own: what the project then loads, whatever is uploaded later."""

from __future__ import annotations

from pathlib import Path

from generator.inputs.chat_templates import TOKENIZER_CONFIG
from generator.inputs.hub_files import find_cached_file
from generator.inputs.hub_requests import HubUnreachable, ask_hub


def is_on_hub(tokenizer: str) -> bool:
    """Of what ``read_tokenizer`` returned: a full path, or a hub id."""
    return not tokenizer.startswith(("/", "./", "../"))


def find_tokenizer_revision(tokenizer: str, offline: bool) -> tuple[str | None, tuple[str, ...]]:
    """The newest commit, of the hub or of the local cache, and a note where nobody could say. Raises ``SourceError``."""
    if not is_on_hub(tokenizer):
        return None, ()
    cached = find_cached_file(tokenizer, TOKENIZER_CONFIG)
    if offline:
        revision = cached.parent.name if isinstance(cached, Path) else None
        return revision, () if revision else (explain_newest(tokenizer, "offline"),)
    from huggingface_hub import HfApi

    try:
        return ask_hub(tokenizer, "model", lambda: HfApi().model_info(tokenizer).sha), ()
    except HubUnreachable as error:
        return None, (explain_newest(tokenizer, error.message.removeprefix(f"{tokenizer}: ")),)


def explain_newest(tokenizer: str, why: str) -> str:
    return f"the tokenizer {tokenizer} was not looked at ({why}): its newest version is taken when the project runs"
