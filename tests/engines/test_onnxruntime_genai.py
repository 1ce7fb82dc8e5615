"""ONNX Runtime on the graphs of onnxruntime-genai's builder: the same greedy tokens as Transformers, whoever asks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from engine_contract import EngineContract
from engine_projects import convert, find_model, find_python, make_project

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestOnnxruntimeGenai(EngineContract):
    leaf = "onnxruntime_genai"


def test_weights_are_written_whole_and_once(tmp_path):
    python = find_python("convert-onnxruntime_genai")
    made = make_project(tmp_path / "p", "onnxruntime_genai", "onnxruntime-genai", find_model(), weights="int4")
    for _ in range(2):
        begun = subprocess.Popen([python, "convert.py"], cwd=made, start_new_session=True, stdout=subprocess.DEVNULL)
        while not any((made / "weights.tmp").glob("model.onnx*")) and begun.poll() is None:
            time.sleep(0.05)
        assert begun.poll() is None
        os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()
        assert not (made / "weights").exists()
    assert "MB" in convert(python, made)
    assert [path.name for path in made.glob("weights*")] == ["weights"]
    written = (made / "weights" / "model.onnx").stat().st_mtime_ns
    assert "already" in convert(python, made)
    assert (made / "weights" / "model.onnx").stat().st_mtime_ns == written
    config = made / "config.yaml"
    config.write_text(config.read_text().replace("int4", "int8"))
    assert "already" not in convert(python, made)
    assert json.loads((made / "weights" / "converted.json").read_text())["weights"] == "int8"
