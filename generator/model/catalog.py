"""Sizes of well-known models, so that a hub id can be planned without network and without weights.

``published/<owner>.toml`` holds, for each model, the fields of its config.json that decide its sizes, and where they were
read; ``published/_sources.toml`` says what a source's short name stands for. Fields that change no size are left out.
``python tests/model/catalog.py OWNER/NAME config.json --source WHERE`` adds a model.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "published"
SOURCES = "_sources"
ABOUT = ("source", "same", "same_source", "revision", "null")
"""Keys of an entry that are not of its config: where it was read; other ids with the same sizes, and who says so; the hub's
commit; which fields are null (TOML has none)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """``config``: what of its config.json decides sizes; ``revision``: the hub's commit that it is of, where that is known."""

    name: str
    config: Mapping
    source: str
    revision: str | None = None


@cache
def load_catalog() -> Mapping[str, CatalogModel]:
    """Every model by its hub id, in the order of the files."""
    sources = tomllib.loads((FOLDER / f"{SOURCES}.toml").read_text(encoding="utf-8"))
    models: dict[str, CatalogModel] = {}
    for path in sorted(FOLDER.glob("[!_]*.toml"), key=lambda path: path.stem.lower()):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            config = set_null({key: value for key, value in entry.items() if key not in ABOUT}, entry.get("null", ()))
            where = expand_source(entry["source"], sources)
            ids = {f"{path.stem}/{name}": where}
            for same in entry.get("same", ()):
                by = f", of the same sizes by {expand_source(entry['same_source'], sources)}"
                # "/gpt2" is an id without owner
                ids[same.removeprefix("/") if "/" in same else f"{path.stem}/{same}"] = (
                    f"{path.stem}/{name}: {where}{by}"
                )
            for full, source in ids.items():
                revision = entry.get("revision") if full == f"{path.stem}/{name}" else None
                models[full] = CatalogModel(name=full, config=config, source=source, revision=revision)
    return models


def set_null(config: dict, names: Iterable[str]) -> dict:
    """``config`` with the fields of ``names`` null, ``text_config.field`` inside another."""
    for name in names:
        outer, _, inner = name.rpartition(".")
        (config[outer] if outer else config)[inner] = None
    return config


def expand_source(source: str, sources: Mapping[str, str]) -> str:
    """``short: file`` with what the short name stands for."""
    short, _, file = source.partition(": ")
    return f"{sources[short]}{', ' if file else ''}{file}"


def find_catalog_model(name: str) -> CatalogModel | None:
    return load_catalog().get(name)


def find_full_name(name: str) -> str | None:
    """The id that ``name`` is but for letter case, its owner, or what tables of runs leave out, where all that it may be are of the same
    sizes: ``llama-3.1-8b`` is meta-llama's, and so is ``Llama3.1 8B``."""
    models, wanted, folded = load_catalog(), name.lower(), fold_name(name)
    alike = [full for full in models if full.lower() == wanted]
    alike = alike or [full for full in models if full.lower().rpartition("/")[2] == wanted]
    alike = alike or [full for full in models if fold_name(full) == folded]
    return alike[0] if alike and all(models[full].config == models[alike[0]].config for full in alike) else None


UNSAID = ("meta", "hf", "chat", "instruct")
"""Words of an id that say nothing of sizes."""


def fold_name(name: str) -> str:
    """Letters and digits of its telling words, without the owner: ``llama27b`` of meta-llama/Llama-2-7b-chat-hf."""
    words = re.findall(r"[a-z]+|\d+", name.lower().rpartition("/")[2])
    return "".join(word for word in words if word not in UNSAID)


def list_nearest_names(name: str, most: int = 3) -> list[str]:
    """The ids that look most like ``name``; none where none does."""
    by_lower = {full.lower(): full for full in load_catalog()}
    by_lower |= {full.lower().rpartition("/")[2]: full for full in load_catalog()}
    near = get_close_matches(name.lower(), by_lower, 2 * most, 0.6)
    near += get_close_matches(name.lower().rpartition("/")[2], by_lower, 2 * most, 0.6)
    return list(dict.fromkeys(by_lower[match] for match in near))[:most]
