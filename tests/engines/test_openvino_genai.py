"""OpenVINO GenAI on what the exporter of Transformers wrote: the same greedy tokens as Transformers, whoever asks."""

from __future__ import annotations

import pytest
from engine_contract import EngineContract

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestOpenvinoGenai(EngineContract):
    leaf = "openvino_genai"
