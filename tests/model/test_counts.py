"""Sizes from a config.json alone against the model that Transformers builds from it on the meta device, exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # small.py and variants.py lie beside this file

from small import small  # noqa: E402
from variants import configs  # noqa: E402

from generator.inputs.config_checks import load_config  # noqa: E402
from generator.inputs.meta_device import build_model, count, describe_on_meta, make_config  # noqa: E402
from generator.inputs.model_files import read_model  # noqa: E402
from generator.inputs.model_sizes import read_spec  # noqa: E402
from generator.model import NeedsMetaDevice, describe  # noqa: E402
from generator.model.description import build_components, read_family  # noqa: E402
from generator.model.families import GROUPS, find_family, load_families  # noqa: E402
from generator.model.settings import load_defaults  # noqa: E402

SHARED = HERE.parents[1] / ".." / "shared" / "models"
TYPES = [model_type for group in GROUPS for model_type in load_families(group)]
ENTRIES = load_defaults()["types"]
LISTING = [name for name in TYPES if "layer_types" in {**ENTRIES[name]["defaults"], **ENTRIES[name].get("aliases", {})}]
"""types whose config class has a list of the layers' kinds"""
PUBLISHED = sorted(path.parent.name for path in SHARED.glob("*/config.json"))
transformers = pytest.importorskip("transformers")


def count_with_transformers(config: dict) -> tuple[int, str]:
    """Parameters and kind of the model that Transformers makes."""
    model, kind = build_model(make_config(config))
    return sum(p.numel() for p in model.parameters()), kind


def assert_same_sizes(config: dict) -> None:
    spec = describe(config, "x")
    assert (spec.params, spec.kind) == count_with_transformers(config)
    assert spec.basis == "config" and 0 < spec.active_params <= spec.params and spec.linear_params < spec.params


def test_the_tables_hold_sixty_architectures_of_every_kind():
    assert len(TYPES) == len(set(TYPES)) >= 60
    kinds = {row.kind for group in GROUPS for row in load_families(group).values()}
    assert kinds == {"decoder", "encoder", "encoder-decoder", "vision", "audio", "multimodal"}


@pytest.mark.parametrize("model_type", TYPES)
def test_parameters_are_those_of_the_meta_device(model_type):
    for config in configs(model_type):
        assert_same_sizes(config)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_saved_config_says_the_same(model_type, tmp_path):
    """What ``save_pretrained`` writes holds every key, also the derived ones."""
    config = configs(model_type)[0]
    make_config(config).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert describe(saved, "x").params == describe(config, "x").params


@pytest.mark.parametrize(
    "model_type",
    [
        "llama",
        "qwen2",
        "qwen3",
        "gemma",
        "phi3",
        "gpt2",
        "mixtral",
        "qwen3_moe",
        "deepseek_v3",
        "gpt_oss",
        "granitemoe",
    ],
)
def test_sizes_agree_with_those_read_off_the_model(model_type):
    """The tables and the count of modules say the same of everything that both know."""
    config = configs(model_type)[0]
    spec, counts = describe(config, "x"), count(config)
    names = (
        "params",
        "active_params",
        "linear_params",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "vocab",
        "tied_embeddings",
    )
    names += ("experts", "experts_per_token", "expert_ffn", "gated")
    assert {name: getattr(spec, name) for name in names} == {name: counts[name] for name in names}


@pytest.mark.parametrize("name", PUBLISHED or [pytest.param("none", marks=pytest.mark.skip("no shared folder"))])
def test_published_configs_in_full_size(name):
    config = json.loads((SHARED / name / "config.json").read_text())
    try:
        spec = describe(config, name)
    except NeedsMetaDevice as unknown:
        assert find_family(config["model_type"]) is None and config["model_type"] in str(unknown)
        return
    known = config | ({"model_type": "deepseek_v3"} if config["model_type"] == "kimi_k2" else {})
    assert (spec.params, spec.kind) == count_with_transformers(known)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Mixtral-8x7B-v0.1", 46.7), ("DeepSeek-V3", 671.0), ("Qwen3-30B-A3B", 30.5), ("Meta-Llama-3.1-70B", 70.6)],
)
def test_the_counts_that_their_makers_publish(name, billions):
    paths = list(SHARED.glob(f"*--{name}/config.json"))
    if not paths:
        pytest.skip("no shared folder")
    assert round(describe(json.loads(paths[0].read_text()), name).params / 1e9, 1) == billions


# ---- layers


def list_kinds(config: dict) -> list[str]:
    return build_components(*read_family(config))[1]


def count_layer_kinds(model_type: str, **more) -> dict[str, int]:
    return dict(describe(configs(model_type)[0] | more, "x").layer_kinds)


@pytest.mark.parametrize("model_type", LISTING)
def test_kinds_of_layers_are_those_of_the_config_class(model_type):
    for config in configs(model_type):
        assert list_kinds(config) == make_config(config).layer_types


def test_kinds_of_layers():
    assert count_layer_kinds("llama") == {}
    assert count_layer_kinds("gemma3_text") == {"sliding_attention": 5}
    assert count_layer_kinds("gemma3_text", num_hidden_layers=7) == {"sliding_attention": 6, "full_attention": 1}
    assert count_layer_kinds("qwen3_next") == {"linear_attention": 4, "full_attention": 1, "moe": 5}
    assert count_layer_kinds("jamba") == {"linear_attention": 4, "full_attention": 1, "moe": 2}
    assert count_layer_kinds("deepseek_v3") == {"full_attention": 5, "moe": 3}
    assert count_layer_kinds("nemotron_h") == {"linear_attention": 1, "moe": 1, "full_attention": 1, "mlp": 1}
    assert count_layer_kinds("bart") == {"encoder": 3, "decoder": 5}


def test_widths_and_windows():
    deepseek = describe(configs("deepseek_v3")[0], "x")
    assert (deepseek.ffn, deepseek.expert_ffn, deepseek.shared_expert_ffn) == (80, 40, 80)
    assert deepseek.head_dim * 2 == 4 + 6 + 10, "keys rotate and do not, values are of another size"
    assert describe(configs("mistral")[0], "x").sliding_window == 11
    assert describe(configs("qwen2")[0], "x").sliding_window is None
    sliding = configs("qwen2")[0] | {"use_sliding_window": True}
    assert describe(sliding | {"max_window_layers": 0}, "x").sliding_window == 11
    assert describe(sliding | {"max_window_layers": 2}, "x").sliding_window is None, "two layers see everything"
    falcon = describe(configs("falcon")[0], "x")
    assert (falcon.heads, falcon.kv_heads) == (6, 1)


# ---- what the tables do not know


@pytest.mark.parametrize(
    "more",
    [
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"use_qk_norm": True},
        {"add_cross_attention": True},
        {"shared_layers": [1, 2]},
        {"n_extra_heads": 3},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_field_that_may_be_news_is_left_to_transformers(more):
    with pytest.raises(NeedsMetaDevice, match=next(iter(more))):
        describe(configs("llama")[0] | more, "x")


@pytest.mark.parametrize(
    "key", ["rope_theta", "use_cache", "attention_dropout", "bos_token_id", "pretraining_tp", "n_ctx"]
)
def test_a_field_that_changes_no_count_is_not_news(key):
    assert describe(configs("llama")[0] | {key: 2}, "x").params == describe(configs("llama")[0], "x").params


@pytest.mark.parametrize("model_type", ["xlnet", "no-such-model", 5, None, ["llama"]])
def test_an_unknown_type_is_named(model_type):
    with pytest.raises(NeedsMetaDevice, match="not in perfgen's tables"):
        describe({"model_type": model_type, "hidden_size": 8}, "x")


def test_an_unknown_architecture_is_counted_by_transformers_once(tmp_path, monkeypatch):
    """In a process of its own, kept by the config's content, and said in the notes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = {"model_type": "diffllama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 97, "head_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = read_spec(read_model(str(tmp_path / "config.json"), offline=True))
    assert spec.basis == "meta-device" and spec.params == count_with_transformers(config)[0]
    assert "not in perfgen's tables: counted by Transformers" in spec.notes[0]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was counted already"))
    assert describe_on_meta(load_config(tmp_path / "config.json"), spec.name, "why").params == spec.params


@pytest.mark.parametrize(("model_type", "scans"), [("kimi_linear", True), ("diffllama", False)])
def test_layers_with_a_state_are_told_of_where_transformers_counts(tmp_path, monkeypatch, model_type, scans):
    """Zamba2's peak was 35 % above what a plain transformer's activations take, and nothing was said of its scan."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = describe_on_meta(small(model_type), "x", "why")
    assert any("recurrent state" in note for note in spec.notes) == scans


# ---- the tables themselves


def test_the_defaults_are_those_of_the_installed_classes():
    """``python tests/model/defaults.py`` writes them again after a new Transformers."""
    from defaults import TARGET, format_defaults, read_transformers

    recorded = json.loads(TARGET.read_text())
    if transformers.__version__ not in recorded["source"]:
        pytest.skip(f"recorded from {recorded['source']}, {transformers.__version__} is installed")
    assert TARGET.read_text() == format_defaults(read_transformers())


def test_nothing_heavy_is_imported():
    code = "import sys, generator.model as m; m.describe({'model_type': 'llama', 'hidden_size': 8, 'vocab_size': 9,"
    code += " 'num_hidden_layers': 1, 'num_attention_heads': 2}, 'x'); print(sorted(sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE.parents[1]
    )
    heavy = ("torch", "transformers", "numpy", "generator.model.encoders")
    assert not [name for name in heavy if f"'{name}'" in process.stdout]


@pytest.mark.parametrize("model_type", ["aimv2", "altclip"])
def test_what_has_no_one_embedding_is_named_after_what_it_takes(model_type):
    """Transformers raises where a model of images and texts is asked for its input embedding: the refusal was of that."""
    config = transformers.AutoConfig.for_model(model_type).to_dict() | {"model_type": model_type}
    assert count(config)["kind"] == "multimodal"


def test_numbers_that_json_has_no_word_for(tmp_path):
    """Transformers 5 writes the infinite time step of Nemotron-H as an object; read as it stands it is refused."""
    from transformers import AutoConfig

    AutoConfig.for_model("nemotron_h").save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["time_step_limit"] == [0.0, {"__float__": "Infinity"}]
    assert list(make_config(saved).time_step_limit) == [0.0, float("inf")]
