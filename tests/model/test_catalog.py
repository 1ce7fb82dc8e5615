"""The catalogue: each model is sized by the tables, has the parameters that its name says, and can be planned."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # catalog.py lies beside this file

import catalog as adder  # noqa: E402
from click.testing import CliRunner  # noqa: E402

from generator import pipeline  # noqa: E402
from generator.case.request import Request  # noqa: E402
from generator.cli import perfgen  # noqa: E402
from generator.emit.document import build_document  # noqa: E402
from generator.errors import PerfgenError, SourceError, UsageError  # noqa: E402
from generator.inputs import hub  # noqa: E402
from generator.inputs.config_checks import find_implausible, find_oddities  # noqa: E402
from generator.inputs.meta_device import build_model, make_config  # noqa: E402
from generator.model import describe  # noqa: E402
from generator.model.catalog import ABOUT, FOLDER, SOURCES, find_catalog_model, list_nearest_names, load_catalog  # noqa: E402

SHARED = HERE.parents[1] / ".." / "shared" / "models"
CATALOG = load_catalog()
OWN = {
    f"{path.stem}/{name}": entry
    for path in FOLDER.glob("[!_]*.toml")
    for name, entry in tomllib.loads(path.read_text()).items()
}
"""without the ids that an entry has beside its own"""
NAMED = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z])")
ROUNDED_DOWN = {"google/gemma-7b", "tiiuae/Falcon3-1B-Instruct", "ibm-granite/granite-3.1-2b-instruct"}
"""have more than their names say, whether the vocabulary counts or not"""


def read_nominal(name: str) -> float | None:
    """The parameters that a model's name says, of the first size in it; 8x7B is no such number."""
    size = NAMED.search(name.rpartition("/")[2].lower())
    if size is None or "x" in name.lower().partition(size[0])[0][-2:]:
        return None
    return float(size[1]) * {"b": 1e9, "m": 1e6}[size[2]]


def test_there_are_enough_of_what_people_use():
    assert len(OWN) >= 60 and len(CATALOG) > 150
    families = {describe(model.config, name).model_type for name, model in CATALOG.items()}
    assert len(families) >= 20, families


@pytest.mark.parametrize("name", OWN)
def test_an_entry_is_sized_by_the_tables_as_its_name_says(name):
    entry, spec = OWN[name], describe(CATALOG[name].config, name)
    assert (
        spec.basis == "config"
        and not list(find_oddities(dict(CATALOG[name].config)))
        and not list(find_implausible(spec))
    )
    assert spec.architecture and spec.model_type == entry["model_type"]
    expected = read_nominal(name)
    if expected is None:
        return
    # names are rounded: 7B is what has 6.7 or 7.2 billion; some count the parameters outside the vocabulary
    tolerance = 0.02 if expected < 1e9 else 0.11 if expected < 10e9 else 0.06
    tolerance = 0.25 if name in ROUNDED_DOWN else tolerance
    counts = (spec.params, spec.params - spec.embedding_params)
    assert min(abs(count / expected - 1) for count in counts) < tolerance, (counts, expected)


def test_every_field_is_of_the_type_and_every_source_is_named():
    sources = tomllib.loads((FOLDER / f"{SOURCES}.toml").read_text())
    used = set()
    for name, entry in OWN.items():
        short = {entry["source"].partition(": ")[0]} | (
            {entry["same_source"].partition(": ")[0]} if "same" in entry else set()
        )
        used |= short
        assert short <= sources.keys(), (name, short)
        assert ("same" in entry) == ("same_source" in entry), name
        kept = {key: value for key, value in entry.items() if key not in ABOUT}
        assert adder.reduce_config(dict(CATALOG[name].config), name).keys() >= kept.keys() - {"null"}, (
            "fields without effect"
        )
    assert used == sources.keys(), "a source that nothing is from"


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_an_entry_has_as_many_parameters_as_transformers_builds(name):
    pytest.importorskip("transformers")
    spec = describe(CATALOG[name].config, name)
    model, kind = build_model(make_config(dict(CATALOG[name].config)))
    assert (spec.params, spec.kind) == (sum(p.numel() for p in model.parameters()), kind)


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in SHARED.glob("*/config.json")))
def test_entries_are_sized_as_the_published_files_are(folder):
    model = find_catalog_model(folder.replace("--", "/", 1))
    if model is not None:
        config = json.loads((SHARED / folder / "config.json").read_text())
        assert describe(model.config, "x") == describe(config, "x")


def test_a_model_is_added_by_one_command(tmp_path, monkeypatch):
    monkeypatch.setattr(adder, "FOLDER", tmp_path)
    config = json.loads((HERE.parents[1] / "examples" / "models" / "llama-3.1-8b.json").read_text())
    adder.add_model(
        "owner/New-8B", config | {"use_cache": True, "bos_token_id": 1}, source="examples: llama-3.1-8b.json", null=None
    )
    entry = tomllib.loads((tmp_path / "owner.toml").read_text())["New-8B"]
    kept = {key: value for key, value in entry.items() if key not in ABOUT}
    assert "use_cache" not in kept and "bos_token_id" not in kept
    assert describe(kept, "x") == describe(config, "x")


def test_near_names():
    assert list_nearest_names("meta-llama/Llama-3.1-8b-instruct")[0] == "meta-llama/Llama-3.1-8B-Instruct"
    assert "mistralai/Mistral-7B-v0.3" in list_nearest_names("mistral/mistral-7b-v0.3")
    assert list_nearest_names("nobody/zzzzzz") == []


WAYS = ({"train": "full"}, {"train": "lora"}, {"mode": "infer", "seq_len": 512}, {"train": "qlora"})


def plan_entry(name: str, way: dict, hardware: str) -> bool:
    """Whether it is planned; where it is, the plan says where the sizes are from."""
    task = {} if describe(CATALOG[name].config, name).kind == "decoder" else {"task": "text-classification"}
    try:
        document = build_document(
            pipeline.plan_request(Request(model=name, offline=True, hardware=hardware, **(task | way))), None
        )
    except PerfgenError as refused:
        assert refused.message, name
        return False
    notes = [note.text for note in document.notes if note.kind == "model"]
    assert any("perfgen's catalogue" in text and "offline" in text for text in notes), notes
    assert any(OWN[name]["source"].partition(": ")[2] in text for text in notes), notes
    return True


def test_models_are_planned_or_refused_for_a_reason(monkeypatch):
    monkeypatch.setattr(hub, "find_cached_file", lambda *_: None)
    some = [name for name in OWN if describe(CATALOG[name].config, name).params < 9e9][::7]
    planned = [plan_entry(name, WAYS[i % 4], "1xh100-sxm-80gb") for i, name in enumerate(some)]
    assert sum(planned) > len(some) / 2


@pytest.mark.slow
def test_all_models_are_planned_or_refused_for_a_reason(monkeypatch):
    """Every entry, in turn on one of three machines and for one of the ways to train or serve it."""
    monkeypatch.setattr(hub, "find_cached_file", lambda *_: None)
    machines = ("8xh100-sxm-80gb", "1xrtx-4090", "8xa100-sxm-80gb")
    planned = [plan_entry(name, WAYS[i % 4], machines[i % 3]) for i, name in enumerate(OWN)]
    assert sum(planned) > len(OWN) / 2


def test_a_model_that_it_lacks_is_refused_with_its_nearest():
    with pytest.raises(SourceError, match=r"(?s)not in the local cache.*--config FILE.*Qwen/Qwen3-8B"):
        hub.read_hub("Qwen/Qwen3-88B", offline=True, config=None)


def test_the_listing():
    listed = CliRunner().invoke(perfgen, ["models", "--json"])
    assert [row["id"] for row in json.loads(listed.output)["models"]] == list(CATALOG)
    shown = CliRunner().invoke(perfgen, ["models", "qwen3-30b"]).output
    assert "Qwen/Qwen3-30B-A3B " in shown and "30.53 B" in shown and "3.35 B" in shown and "aiconfigurator" in shown
    refused = CliRunner().invoke(perfgen, ["models", "llama-3.1-8c"])
    assert isinstance(refused.exception, UsageError) and "meta-llama/Llama-3.1-8B" in str(refused.exception)
