"""CTranslate2 on what its own converter wrote."""

from __future__ import annotations

import pytest
from engine_contract import EngineContract
from engine_projects import drive

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestCtranslate2(EngineContract):
    leaf = "ctranslate2"

    def test_a_seed_decides_what_is_drawn(self, python, project, prompts):
        """It does not: what is drawn is drawn, and the server's log says so."""
        drawn = {"max_new_tokens": 16, "temperature": 1.0, "top_p": 0.9, "seed": 7, "ends": False}
        found = drive(python, project, "generate", prompts=prompts[:2], sampling=drawn)
        assert [len(tokens) for tokens in found["alone"]] == [16, 16]
        assert found["batches"][0] != found["batches"][1]
