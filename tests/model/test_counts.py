"""Sizes from a config.json alone against the model that Transformers builds from it on the meta device, exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # small.py and variants.py lie beside this file

from variants import configs  # noqa: E402

from generator.inputs.config_checks import load_config  # noqa: E402
from generator.inputs.meta_device import build_model, count, describe_on_meta, make_config  # noqa: E402
from generator.inputs.model_files import read_model  # noqa: E402
from generator.inputs.model_sizes import read_spec  # noqa: E402
from generator.model import NeedsMetaDevice, describe  # noqa: E402
from generator.model.families import GROUPS, row_of, rows  # noqa: E402

SHARED = HERE.parents[1] / ".." / "shared" / "models"
TYPES = [model_type for group in GROUPS for model_type in rows(group)]
PUBLISHED = sorted(path.parent.name for path in SHARED.glob("*/config.json"))
transformers = pytest.importorskip("transformers")


def counted(told: dict) -> tuple[int, str]:
    """Parameters and kind of the model that Transformers makes."""
    model, kind = build_model(make_config(told))
    return sum(p.numel() for p in model.parameters()), kind


def same_sizes(told: dict) -> None:
    spec = describe(told, "x")
    assert (spec.params, spec.kind) == counted(told)
    assert spec.basis == "config" and 0 < spec.active_params <= spec.params and spec.linear_params < spec.params


def test_the_tables_hold_sixty_architectures_of_every_kind():
    assert len(TYPES) == len(set(TYPES)) >= 60
    kinds = {row.kind for group in GROUPS for row in rows(group).values()}
    assert kinds == {"decoder", "encoder", "encoder-decoder", "vision", "audio", "multimodal"}


@pytest.mark.parametrize("model_type", TYPES)
def test_parameters_are_those_of_the_meta_device(model_type):
    for told in configs(model_type):
        same_sizes(told)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_saved_config_says_the_same(model_type, tmp_path):
    """What ``save_pretrained`` writes holds every key, also the derived ones."""
    told = configs(model_type)[0]
    make_config(told).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert describe(saved, "x").params == describe(told, "x").params


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
    told = configs(model_type)[0]
    spec, found = describe(told, "x"), count(told)
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
    assert {name: getattr(spec, name) for name in names} == {name: found[name] for name in names}


@pytest.mark.parametrize("name", PUBLISHED or [pytest.param("none", marks=pytest.mark.skip("no shared folder"))])
def test_published_configs_in_full_size(name):
    told = json.loads((SHARED / name / "config.json").read_text())
    try:
        spec = describe(told, name)
    except NeedsMetaDevice as unknown:
        assert row_of(told["model_type"]) is None and told["model_type"] in str(unknown)
        return
    known = told | ({"model_type": "deepseek_v3"} if told["model_type"] == "kimi_k2" else {})
    assert (spec.params, spec.kind) == counted(known)


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


def kinds(model_type: str, **more) -> dict[str, int]:
    return dict(describe(configs(model_type)[0] | more, "x").layer_kinds)


def test_kinds_of_layers():
    assert kinds("llama") == {}
    assert kinds("gemma3_text") == {"sliding_attention": 5}
    assert kinds("gemma3_text", num_hidden_layers=7) == {"sliding_attention": 6, "full_attention": 1}
    assert kinds("qwen3_next") == {"linear_attention": 4, "full_attention": 1, "moe": 5}
    assert kinds("jamba") == {"linear_attention": 4, "full_attention": 1, "moe": 2}
    assert kinds("deepseek_v3") == {"full_attention": 5, "moe": 3}
    assert kinds("nemotron_h") == {"linear_attention": 1, "moe": 1, "full_attention": 1, "mlp": 1}
    assert kinds("bart") == {"encoder": 3, "decoder": 5}


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
    told = {"model_type": "diffllama", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    told |= {"num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 97, "head_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps(told))
    spec = read_spec(read_model(str(tmp_path / "config.json"), offline=True))
    assert spec.basis == "meta-device" and spec.params == counted(told)[0]
    assert "not in perfgen's tables: counted by Transformers" in spec.notes[0]
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was counted already"))
    assert describe_on_meta(load_config(tmp_path / "config.json"), spec.name, "why").params == spec.params


# ---- the tables themselves


def test_the_defaults_are_those_of_the_installed_classes():
    """``python tests/model/defaults.py`` writes them again after a new Transformers."""
    from defaults import TARGET, from_transformers, text_of

    recorded = json.loads(TARGET.read_text())
    if transformers.__version__ not in recorded["source"]:
        pytest.skip(f"recorded from {recorded['source']}, {transformers.__version__} is installed")
    assert TARGET.read_text() == text_of(from_transformers())


def test_nothing_heavy_is_imported():
    code = "import sys, generator.model as m; m.describe({'model_type': 'llama', 'hidden_size': 8, 'vocab_size': 9,"
    code += " 'num_hidden_layers': 1, 'num_attention_heads': 2}, 'x'); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=HERE.parents[1])
    loaded = done.stdout
    assert not [
        name for name in ("torch", "transformers", "numpy", "generator.model.encoders") if f"'{name}'" in loaded
    ]
