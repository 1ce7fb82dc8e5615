"""What generation keeps of a token, against the cache that Transformers fills."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # small.py and variants.py lie beside this file
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from small import small  # noqa: E402
from variants import configs  # noqa: E402

from generator.inputs import meta_device  # noqa: E402
from generator.inputs.kept_on_meta import measure_kept  # noqa: E402
from generator.inputs.meta_device import build_model, build_text_model, count, describe_on_meta, make_config  # noqa: E402
from generator.model import describe  # noqa: E402
from generator.model.families import GROUPS, load_families  # noqa: E402

TOKENS = 40
ELSEWHERE = {
    "openai-gpt": "keeps nothing",
    "recurrent_gemma": "keeps it in its modules",
    "minimax": "keeps states beside the layers of its cache",
    "biogpt": "looks at the values of its mask",
    "gpt_neo": "keeps all tokens also where it sees a window",
    "falcon": "with new_decoder_architecture keeps keys of every head; vLLM those of the groups alone, as planned",
    "helium": "small sizes contradict its heads",
    "gptj": "small sizes contradict its heads",
    "codegen": "small sizes contradict its heads",
}
TABLES = [
    name
    for group in GROUPS
    for name, row in load_families(group).items()
    if row.kind == "decoder" and name not in ELSEWHERE
]
LONG = dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 1024)


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "glm4_moe_lite", "gemma4_text", "afmoe", "cwm", "minicpm3"])
def test_shapes_say_what_a_model_with_values_keeps(model_type):
    config = small(model_type) | {"vocab_size": 97}
    model = transformers.AutoModelForCausalLM.from_config(make_config(config)).eval()
    with torch.no_grad():
        caches = model(input_ids=torch.ones((1, TOKENS), dtype=torch.long), use_cache=True).past_key_values.layers
    held = sum(
        t.numel()
        for cache in caches
        for value in vars(cache).values()
        for t in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value])
        if isinstance(t, torch.Tensor) and t.dim() > 1
    )
    sizes = count(config)
    assert sizes["attention"]
    # the newest token is attended to beside a window that is full, and does not stay
    kept = sum(n * each * min(TOKENS, (window or TOKENS + 1) - 1) for n, _, each, window in sizes["attention"])
    assert kept + sizes["state_elements"] == held


@pytest.mark.parametrize(
    ("model_type", "each"),
    [
        ("deepseek_v32", 61 * (512 + 64 + 128)),  # latent, rotated key, the indexer's key
        ("qwen3_5_text", 8 * 2 * 4 * 256),  # three of four blocks keep a state
        ("kimi_linear", 6 * (512 + 64)),
        ("mimo_v2_flash", 9 * 4 * (192 + 128) + 39 * 8 * (192 + 128)),  # more heads where a window is seen
        ("gemma4_text", 25 * 2 * 4 * 256 + 5 * 2 * 4 * 512),  # wider heads where all tokens are seen
    ],
)
def test_published_sizes_without_a_table(tmp_path, monkeypatch, model_type, each):
    """28 times as much was planned of DeepSeek-V3.2: heads of 128, as if each had keys and values of its own. Counted here, but for one
    type: another process imports Transformers again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if model_type != "qwen3_5_text":
        monkeypatch.setattr(
            meta_device, "ask_child", lambda text, name: json.loads(json.dumps(count(json.loads(text))))
        )
    config = transformers.AutoConfig.for_model(model_type).to_dict()
    spec = describe_on_meta(config | {"model_type": model_type}, "m", "x")
    assert spec.kv_bytes_per_token == 2 * each
    assert describe_on_meta(config | {"model_type": model_type}, "m", "x") == spec, "as the cache file has it"


@pytest.mark.parametrize(
    ("model_type", "widths"),
    [
        ("gemma4_text", {8 * 256, 8 * 512}),
        ("mimo_v2_flash", {64 * (192 + 128) // 2}),  # keys are larger than values
        ("glm4_moe_lite", {20 * (192 + 64 + 256) // 2}),  # of what a latent is made into
    ],
)
def test_a_score_and_its_value_are_as_wide_as_a_layers_own_heads(model_type, widths):
    config = transformers.AutoConfig.for_model(model_type).to_dict() | {"model_type": model_type}
    assert {width for _, width, _, _ in count(config)["attention"]} == widths


@pytest.mark.parametrize("model_type", TABLES)
def test_the_tables_say_what_transformers_keeps(model_type):
    for small_config in configs(model_type):
        config = small_config | {key: LONG[key] for key in LONG if key in small_config}
        spec = describe(config, "m")
        if not spec.attention:  # which is refused, or all of it states
            continue
        transformed = make_config(config)
        model, _ = build_model(transformed)
        measured, state = measure_kept(build_text_model(transformed.get_text_config(), model), spec.layers, 0, 0)
        kept: Counter[int | None] = Counter()
        for layers, _, each, window in measured:
            kept[window] += layers * each
        planned: Counter[int | None] = Counter()
        for kind in spec.attended:
            planned[kind.window] += kind.layers * kind.cached
        assert (+planned, spec.state_elements) == (+kept, state), config
