"""llama.cpp on what its own converter wrote, a token's text its number."""

from __future__ import annotations

import pytest
from engine_contract import EngineContract

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestLlamaCpp(EngineContract):
    leaf = "llama_cpp"
