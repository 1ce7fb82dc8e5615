"""MLX, whose kernels for CPUs stand in for Metal's, on the model's own files.

mlx-cpu 0.32 on Linux multiplies 2.5e9 times a second, of one row as of many (0.11 s a token of SmolLM2-135M, read or written): what takes
other engines a minute took it a quarter of an hour."""

from __future__ import annotations

import pytest
from engine_contract import EngineContract

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestMlx(EngineContract):
    leaf = "mlx"
    questions = 2
    new_tokens = 16
    batch_rows = 8
