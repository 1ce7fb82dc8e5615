"""What can be the name of a model or a data set of the hub."""

from __future__ import annotations

import re

HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?", re.ASCII)
HUB_ID_RULE = "a hub id is NAME or OWNER/NAME of letters, digits, dots, dashes and underscores"


def is_hub_id(text: str) -> bool:
    return bool(HUB_ID.fullmatch(text)) and ".." not in text


def advise_on_name(text: str) -> str:
    """What to do about a text that is no hub id, and names nothing that is there: of what was meant as a path, to correct it."""
    if text.startswith("~"):
        return "the shell has not expanded the ~: write the whole path"
    if text.startswith((".", "/")) or "\\" in text or text.count("/") > 1:
        return "check the path: nothing is there (a relative one begins in the current folder)"
    return HUB_ID_RULE
