"""A serving project on a disk, as `perfgen init --mode infer` lays it down, for servers that tests really start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from leaves import FRAGMENTS

httpx = pytest.importorskip("httpx", reason="httpx, which asks the server, is not installed")

MODULES = {
    "engine": "engines/transformers",
    "machine": "machine/cpu",
    **{name: name for name in ("config_file", "fields", "masking", "quiet_imports", "sources", "stop_tokens")},
    **{name: name for name in ("template_limits", "terminal")},
    "proposals": "serving/proposals/prompt_lookup",
    **{
        name: f"serving/{name}"
        for name in (
            *("api_key", "chat", "decoding", "http_call", "openai_answers", "openai_requests", "prompts"),
            *("own_server", "sampling", "server"),
            *("direct_step", "engine_thread", "generation_defaults", "scheduler", "server_metrics", "service", "slots"),
        )
    },
}
MODEL = '''"""The model of config.yaml as the plan has it."""

import torch
from sources import find_source
from transformers import AutoModelForCausalLM


def load_model(config):
    return AutoModelForCausalLM.from_pretrained(
        find_source(config, "model"), dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
    ).eval()
'''
SERVE = '#!/bin/sh\ncd "$(dirname "$0")" || exit\nexec "$PYTHON" server.py "$@"\n'
NAME = "tested"
SECONDS = 240
"""for a server to start on a busy machine"""


def make_project(folder: Path, model: Path, **serving) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, leaf in MODULES.items():
        shutil.copy(FRAGMENTS / f"{leaf}.py", folder / f"{name}.py")
    (folder / "model.py").write_text(MODEL)
    (folder / "serve.sh").write_text(SERVE)
    (folder / "serve.sh").chmod(0o755)
    limits = {"max_context": 512, "max_concurrency": 4, "max_waiting": 8, "max_new_tokens": 32, "threads": 2}
    address = {
        "engine": "transformers",
        "weights": "float32",
        "cache": "static",
        "name": NAME,
        "host": "127.0.0.1",
        "port": 0,
    }
    config = {"model": str(model), "serving": {**address, "prompt_tokens": 128, **limits, **serving}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


class RunningServer:
    """Its process, where it listens, and what it says on standard error."""

    def __init__(self, folder: Path, python: str, **environment: str) -> None:
        quiet = {"PYTHON": python, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [python, "server.py"],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet, **environment},
        )
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self.read_lines, daemon=True)
        self.reader.start()
        self.url = self.wait_for("http://", SECONDS).split("/v1")[0]

    def read_lines(self) -> None:
        assert self.process.stderr
        self.lines.extend(line.rstrip("\n") for line in iter(self.process.stderr.readline, ""))

    def wait_for(self, text: str, seconds: float = SECONDS) -> str:
        """The first line of its log that has it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := next((line for line in list(self.lines) if text in line), None):
                return found
            assert self.process.poll() is None or self.reader.is_alive(), "\n".join(self.lines)
            time.sleep(0.02)
        raise AssertionError(f"no {text!r} in:\n" + "\n".join(self.lines))

    def ask(self, method: str, path: str, **more):
        return httpx.request(method, self.url + path, timeout=SECONDS, **more)

    def wait_until_ready(self) -> None:
        self.wait_for("is loaded")
        assert self.ask("GET", "/health").json() == {"status": "ready"}

    def read_metric(self, name: str) -> float:
        lines = self.ask("GET", "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def wait_for_metric(self, name: str, value: float) -> None:
        end = time.monotonic() + SECONDS
        while self.read_metric(name) != value:
            assert time.monotonic() < end, f"{name} is {self.read_metric(name)}, not {value}"
            time.sleep(0.05)

    @property
    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def run_server(folder: Path, python: str = sys.executable, **environment: str) -> Iterator[RunningServer]:
    server = RunningServer(folder, python, **environment)
    try:
        yield server
    finally:
        server.end()
