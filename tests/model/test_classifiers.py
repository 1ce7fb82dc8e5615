"""Which models can be classifiers of texts: for others Transformers raises before the first step, or makes up a head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from generator import pipeline
from generator.case.request import Request
from generator.errors import UsageError
from generator.model import decoders, encoders, hybrids, moe
from generator.model.classifiers import CLASSIFIED

KNOWN = {name for module in (decoders, encoders, hybrids, moe) for name in module.FAMILIES}
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 4, "vocab_size": 512}


def plan(folder: Path, model_type: str, architecture: str, **asked):
    config = SIZES | {"model_type": model_type, "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config))
    request = {"hardware": "1xa100-sxm-80gb", "task": "text-classification", "given": ("task",)}
    request |= {"offline": True, "seq_len": 64}
    return pipeline.plan_request(Request(model=str(folder / "config.json"), **(request | asked)))


def test_the_table_is_that_of_transformers():
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as classes

    assert classes.keys() >= CLASSIFIED
    assert KNOWN & classes.keys() == KNOWN & CLASSIFIED


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("granite", "perfgen knows none in Transformers"),
        ("cohere2", "perfgen knows none in Transformers"),
        ("glm4_moe", "perfgen knows none in Transformers"),
        ("vit", "is vision"),
        ("t5", "is encoder-decoder"),  # of which Transformers has a classifier
    ],
)
def test_a_type_without_a_classifier_is_refused(tmp_path, model_type, words, mode):
    with pytest.raises(UsageError, match=words):
        plan(tmp_path, model_type, "AnyForSequenceClassification", mode=mode)


@pytest.mark.parametrize(("model_type", "other"), [("bert", "BertForMaskedLM"), ("llama", "LlamaForCausalLM")])
def test_a_head_that_nobody_trained_answers_nothing(tmp_path, model_type, other):
    assert plan(tmp_path, model_type, other, mode="train").plan.best
    assert plan(tmp_path, model_type, f"{model_type.title()}ForSequenceClassification", mode="infer").plan.best
    with pytest.raises(UsageError, match="its answers would be random"):
        plan(tmp_path, model_type, other, mode="infer")
