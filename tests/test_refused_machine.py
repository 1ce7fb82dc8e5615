"""The emitted server, batch.py and infer.py compare memory with the plan before a byte of the weights is read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from serving_projects import find_smollm2, make_tiny_model

from generator.case.request import Request
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.pipeline import document_request

pytest.importorskip("uvicorn", reason="uvicorn, on which the server runs, is not installed")


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize(
    "command", [["server.py", "--port", "0"], ["batch.py", "--input", "in.jsonl", "--output", "o.jsonl"]]
)
def test_what_does_not_fit_is_refused_before_it_is_read(command, tmp_path):
    model, project = find_smollm2() or make_tiny_model(tmp_path / "tiny"), tmp_path / "p"
    pins = (("engine", "transformers"),)
    request = Request(model=str(model), hardware="cpu:2,64gb", mode="infer", pins=pins, offline=True)
    project.mkdir()
    render(to_json(document_request(request)), project)
    copied = tmp_path / "model"
    copied.mkdir()
    for file in model.iterdir():
        if file.suffix != ".safetensors":
            (copied / file.name).symlink_to(file)
    (copied / "model.safetensors").write_bytes(b"no weights")  # who opens it says so
    config = yaml.safe_load((project / "config.yaml").read_text())
    config |= {"model": str(copied), "machine": config["machine"] | {"needs_gib": 12345.0}}
    (project / "config.yaml").write_text(yaml.safe_dump(config))
    (project / "in.jsonl").write_text(json.dumps({"prompt": "a"}) + "\n")
    ended = subprocess.run([sys.executable, *command], cwd=project, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 1
    assert "This plan was made for 12345.0 GiB of memory, and" in ended.stderr
    assert "Traceback" not in ended.stderr and "safetensors" not in ended.stderr.lower()
