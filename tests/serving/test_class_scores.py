"""What a row is told of a classifier is what Transformers' pipeline says of the same outputs, whatever it was trained for."""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, pipeline

from benchmarks.zoo import TEXT, make_tokenizer

KINDS = {
    "one label of all": {"num_labels": 3},
    "each label by itself": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "one output": {"num_labels": 1},
    "a value": {"num_labels": 1, "problem_type": "regression"},
    "several values": {"num_labels": 2, "problem_type": "regression"},
}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    from transformers import AutoTokenizer

    make_tokenizer(folder := tmp_path_factory.mktemp("words") / "t")
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_pipeline(load, words, kind):
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=300, **SIZES, **KINDS[kind])).eval()
    torch.nn.init.normal_(model.classifier.weight)
    expected = pipeline("text-classification", model=model, tokenizer=words, top_k=None)([TEXT])[0]
    with torch.inference_mode():
        logits = model(**words(TEXT, return_tensors="pt")).logits
    (row,) = load("serving/class_scores", "class_scores").describe_scores(model.config, logits)
    found = row["values"] or row["probabilities"]
    assert found == pytest.approx({each["label"]: each["score"] for each in expected}, abs=1e-6)
    assert (row["values"] is None) != (KINDS[kind].get("problem_type") == "regression")
    assert row["label"] == (None if row["values"] else expected[0]["label"])


def test_the_likeliest_alone(load):
    config = BertConfig(num_labels=4)
    (row,) = load("serving/class_scores", "class_scores").describe_scores(
        config, torch.tensor([[0.0, 2.0, 1.0, -1.0]]), 2
    )
    assert list(row["probabilities"]) == ["LABEL_1", "LABEL_2"] and row["label"] == "LABEL_1"
