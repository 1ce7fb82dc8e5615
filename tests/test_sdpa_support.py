"""Which model types Transformers has no SDPA for: a project that asked for it would stop before its first step."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from leaves import FRAGMENTS
from making import case, llama

from generator.case.request import Request
from generator.cost.activations import select_attention_kernel
from generator.cost.of_case import build_cost_model
from generator.model import decoders, encoders, hybrids, moe
from generator.pipeline import plan_request
from generator.techniques.attention.sdpa import WITHOUT_SDPA, Sdpa

KNOWN = {name for module in (decoders, encoders, hybrids, moe) for name in module.FAMILIES}


def supports_sdpa(model_type: str) -> bool:
    """Of the class that Transformers loads."""
    from transformers import AutoConfig, AutoModel

    return AutoModel._model_mapping[type(AutoConfig.for_model(model_type))]._supports_sdpa


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss", "llama"])
def test_as_transformers_has_it(model_type):
    assert supports_sdpa(model_type) != (model_type in WITHOUT_SDPA)


@pytest.mark.slow
def test_as_transformers_has_it_for_every_type():
    from transformers import CONFIG_MAPPING

    present = {name for name in KNOWN if name in CONFIG_MAPPING}
    assert len(present) > 80
    assert {name for name in present if not supports_sdpa(name)} == WITHOUT_SDPA & present


def test_the_plan_says_so():
    assert "no SDPA for models of type gemma2" in Sdpa().obstacle(case(model=llama(model_type="gemma2")))
    assert Sdpa().obstacle(case()) is None


def test_as_every_language_model_and_classifier_has_it():
    """A project for DeepSeek-V4 asked for SDPA in infer.py, which raised."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto import modeling_auto as auto

    names = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
    classes = {name: getattr(transformers, of, None) for name, of in names.items()}
    without = {name for name, kind in classes.items() if kind is not None and not kind._supports_sdpa}
    assert len(classes) > 200
    assert without <= WITHOUT_SDPA
    assert not {name for name in WITHOUT_SDPA & classes.keys() if classes[name] is not None} - without


QLORA = {"train": "qlora", "task": "causal-lm"}
LLAMA = str(Path(__file__).resolve().parent.parent / "examples/models/llama-3.1-8b.json")


@pytest.mark.parametrize(
    ("hardware", "mode", "repeats"),
    [("1xt4", QLORA, True), ("1xv100-pcie-32gb", {"mode": "infer", "pins": (("engine", "transformers"),)}, True),
     ("1xl4", QLORA, False), ("1xrx-7900-xtx", QLORA, False)],
)  # fmt: skip
def test_before_ampere_keys_of_groups_are_repeated(hardware, mode, repeats):
    """The memory-efficient kernel takes no groups, and PyTorch would make all scores: 34 GiB for an 8B at 8,192 tokens."""
    request = Request(
        model="meta-llama/Llama-3.1-8B", config=LLAMA, hardware=hardware, offline=True, seq_len=2048, **mode
    )
    plan = plan_request(request).plan
    assert plan.best.execution.repeats_keys == repeats and ("repeated_keys" in plan.edits.fragments) == repeats
    assert ("repeat_keys()" in (*plan.edits.setup, *plan.edits.infer_setup)) == repeats
    if repeats and request.mode == "train":
        assert select_attention_kernel(build_cost_model(plan.case).shape, plan.best.execution) == "efficient"


def test_repeated_keys_are_what_the_kernel_is_given(monkeypatch):
    """By Transformers' own forward pass: as many heads of keys as of queries, no groups, and the same output."""
    torch = pytest.importorskip("torch")
    from transformers.integrations import sdpa_attention

    monkeypatch.setattr(
        sdpa_attention, "use_gqa_in_sdpa", sdpa_attention.use_gqa_in_sdpa
    )  # what the leaf sets is undone
    monkeypatch.syspath_prepend(FRAGMENTS)
    called = []
    function = torch.nn.functional.scaled_dot_product_attention

    def watch(query, key, value, **words):
        called.append((query.shape[1], key.shape[1], words.get("enable_gqa", False)))
        return function(query, key, value, **words)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    module = SimpleNamespace(num_key_value_groups=4, is_causal=True)
    query, key, value = (torch.randn(1, heads, 16, 8) for heads in (8, 2, 2))
    grouped, _ = sdpa_attention.sdpa_attention_forward(module, query, key, value, None)
    import_module("repeated_keys").repeat_keys()
    repeated, _ = sdpa_attention.sdpa_attention_forward(module, query, key, value, None)
    assert called == [(8, 2, True), (8, 8, False)]
    assert torch.allclose(grouped, repeated, atol=1e-6)
