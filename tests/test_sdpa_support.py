"""Which model types Transformers has no SDPA for: a project that asked for it would stop before its first step."""

from __future__ import annotations

import pytest
from making import case, llama

from generator.model import decoders, encoders, hybrids, moe
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
