"""MLX, whose kernels for CPUs stand in for Metal's, on the model's own files."""

from __future__ import annotations

import pytest
from engine_contract import EngineContract

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestMlx(EngineContract):
    leaf = "mlx"
