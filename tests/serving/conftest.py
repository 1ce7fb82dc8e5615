"""The real model that servers and engines are tested with."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model() -> Path:
    """SmolLM2-135M-Instruct, as `make demo` keeps it."""
    spec = importlib.util.spec_from_file_location("demo_prepare", ROOT / "docs" / "demo" / "prepare.py")
    assert spec and spec.loader
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    if not (prepare.CACHE / prepare.MODEL).is_dir():
        pytest.importorskip("gguf", reason="gguf, which reads the packaged model, is not installed")
        try:
            prepare.prepare(prepare.CACHE)
        except SystemExit as error:
            pytest.skip(str(error))
    return prepare.CACHE / prepare.MODEL
