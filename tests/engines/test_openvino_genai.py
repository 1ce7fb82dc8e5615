"""OpenVINO GenAI on what the exporter of Transformers wrote: the same greedy tokens as Transformers, whoever asks."""

from __future__ import annotations

import pytest
from engine_contract import EngineContract
from engine_projects import convert, drive, encode_questions, find_model, find_python, make_project, score_eagerly

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestOpenvinoGenai(EngineContract):
    leaf = "openvino_genai"


def test_rounded_weights_score_a_text_nearly_alike(tmp_path):
    """Also where the processor has bf16, in which products and the cache are then computed and kept."""
    model = find_model()
    made = make_project(tmp_path / "p", "openvino_genai", "openvino-genai", model, weights="int8")
    convert(find_python("convert-openvino_genai"), made)
    texts = encode_questions(model)
    scores = drive(find_python("serve-openvino_genai"), made, "score", texts=texts)["scores"]
    for found, exact in zip(scores, score_eagerly(model, texts), strict=True):
        differences = [abs(a - b) for a, b in zip(found, exact, strict=True)]
        assert 0 < sum(differences) / len(differences) < 0.15
