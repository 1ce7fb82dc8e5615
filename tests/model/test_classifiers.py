"""Which models can be classifiers of texts: for others Transformers raises before the first step, or makes up a head."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from generator import pipeline
from generator.case.request import Request
from generator.errors import PerfgenError, UsageError
from generator.model import decoders, encoders, hybrids, moe, seq2seq
from generator.model.classifiers import CLASSIFIED, NAMES_NO_LABELS, NEEDS, READS_END

KNOWN = {name for module in (decoders, encoders, hybrids, moe, seq2seq) for name in module.FAMILIES}
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
    assert classes.keys() - CLASSIFIED == NEEDS.keys() | {
        "perceiver",
        "reformer",
    }  # whose layers the cost model does not know


def test_what_a_forward_reads_is_that_of_transformers():
    """Whether the head looks for end tokens, and whether labels are named."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as classes

    forwards = {name: getattr(transformers, cls).forward for name, cls in classes.items() if name in CLASSIFIED}
    sources = {name: inspect.getsource(inspect.unwrap(forward)) for name, forward in forwards.items()}
    assert {name for name, text in sources.items() if "eos_mask" in text} == READS_END
    unnamed = {name for name, forward in forwards.items() if "labels" not in inspect.signature(forward).parameters}
    assert unnamed == NAMES_NO_LABELS


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("granite", "perfgen knows none in Transformers"),
        ("cohere2", "perfgen knows none in Transformers"),
        ("glm4_moe", "perfgen knows none in Transformers"),
        ("vit", "is vision"),
        ("pegasus", "is encoder-decoder"),
        ("fnet", "is not planned: its layers mix tokens by Fourier transforms"),
        ("funnel", "is not planned: its blocks see fewer and fewer tokens"),
        ("tapas", "reads a table for each question besides"),
    ],
)
def test_a_type_without_a_classifier_is_refused(tmp_path, model_type, words, mode):
    with pytest.raises(PerfgenError, match=words):
        plan(tmp_path, model_type, "AnyForSequenceClassification", mode=mode)


@pytest.mark.parametrize(("model_type", "other"), [("bert", "BertForMaskedLM"), ("llama", "LlamaForCausalLM")])
def test_a_head_that_nobody_trained_answers_nothing(tmp_path, model_type, other):
    assert plan(tmp_path, model_type, other, mode="train").plan.best
    assert plan(tmp_path, model_type, f"{model_type.title()}ForSequenceClassification", mode="infer").plan.best
    with pytest.raises(UsageError, match="its answers would be random"):
        plan(tmp_path, model_type, other, mode="infer")
