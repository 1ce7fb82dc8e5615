"""No secret in any message: perfgen's, those of the libraries that it calls, and those of its projects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from leaves import FRAGMENTS
from local_hub import serve_hub
from test_hub_models import FILES

from generator.masking import mask_secrets

ROOT = Path(__file__).resolve().parents[1]
PASSWORD = "swordfish"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:swordfish@hub.example/api", "https://***@hub.example/api"),
        ("proxy http://me:sword@fish@proxy:80 refused", "proxy http://***@proxy:80 refused"),
        ("'https://swordfish@hub/a?b=c'", "'https://***@hub/a?b=c'"),
        ("https://hub/a?token=swordfish&x=1", "https://hub/a?token=***&x=1"),
        ("https://s3/a?X-Amz-Signature=swordfish", "https://s3/a?X-Amz-Signature=***"),
        ("{'Authorization': 'Bearer swordfish'}", "{'Authorization': 'Bearer ***'}"),
        ("token hf_abcdefghijklmnopqrst", "token hf_***"),
        ("git+ssh://git@host/a/b@main and a@b.c", "git+ssh://***@host/a/b@main and a@b.c"),
        ("there is no https:/me:swordfish@hub/plan.json", "there is no https:/***@hub/plan.json"),  # of a Path
        ("C:/me@home/x and /a:/b@c", "C:/me@home/x and /a:/b@c"),
        ("https://hub/user@1.0/file, 50 % @ 3", "https://hub/user@1.0/file, 50 % @ 3"),
    ],
)
def test_credentials_of_addresses_are_hidden_and_nothing_else(text, shown):
    assert mask_secrets(text) == shown


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_PASSWORD"])
def test_the_value_of_a_secret_variable_is_hidden_whatever_it_looks_like(monkeypatch, name):
    monkeypatch.setenv(name, "plain words")
    assert mask_secrets("refused: plain words!") == "refused: ***!"


def test_a_value_too_short_for_a_secret_hides_no_words(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "e")
    assert mask_secrets("the token was refused") == "the token was refused"


def test_what_libraries_log_warn_and_raise_is_hidden(tmp_path):
    """By the leaf alone, as a project has it; a record whose arguments do not fit is logging's to report."""
    code = (
        "import logging, warnings, masking\n"
        "masking.mask_messages()\n"
        "logging.getLogger('a').warning('asked %s', 'http://me:swordfish@hub')\n"
        "logging.getLogger('a').warning('%s %s', 'one')\n"
        "warnings.warn('http://me:swordfish@hub is old')\n"
        "raise ValueError('http://me:swordfish@hub is down')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(FRAGMENTS)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and PASSWORD not in done.stderr
    assert done.stderr.count("http://***@hub") == 3 and "Logging error" in done.stderr
    assert "ValueError" in done.stderr


# ---- a hub on localhost that wants a password


@pytest.fixture
def hub():
    with serve_hub() as server:
        server.add("models", "owner/model", {name: text for name, text in FILES.items() if isinstance(text, str)})
        server.password = PASSWORD
        yield server


def run(hub, folder: Path, *command: str, password: str = PASSWORD, **more: str) -> subprocess.CompletedProcess:
    names = ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    endpoint = hub.url.replace("://", f"://me:{password}@")
    own = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=clean | own | more, capture_output=True, text=True, check=False
    )


def plan(hub, folder: Path, **more: str) -> subprocess.CompletedProcess:
    words = ("plan", "--json", "--model", "owner/model", "--hardware", "cpu:2", "--mode", "infer")
    return run(hub, folder, "-m", "generator.cli", *words, **more)


def test_a_hub_with_a_password_is_read_and_the_plan_does_not_hold_it(hub, tmp_path):
    done = plan(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert hub.requests and PASSWORD not in done.stdout + done.stderr


@pytest.mark.parametrize("fault", ["wrong", "broken", "limited", "gone"])
def test_no_failure_of_the_hub_shows_the_password(hub, tmp_path, fault):
    password = PASSWORD
    if fault == "wrong":
        hub.password = "another"
    elif fault == "gone":
        hub.url = "http://127.0.0.1:9"  # nobody listens there
    else:
        setattr(hub, fault, True)
    done = plan(hub, tmp_path, password=password)
    assert done.returncode == 4 and "owner/model" in done.stderr and "Traceback" not in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "ask",
    [
        "HfApi().model_info('owner/model')",
        pytest.param(
            "hf_hub_download('owner/model', 'config.json')", marks=pytest.mark.slow
        ),  # it tries again for long
    ],
)
def test_a_project_that_asks_a_broken_hub_does_not_show_it(hub, tmp_path, ask):
    """The library's own retries log the address; train.py and infer.py end with the leaf's message or a traceback."""
    hub.broken = True
    code = f"from masking import mask_messages\nmask_messages()\nfrom huggingface_hub import *\n{ask}\n"
    done = run(hub, tmp_path, "-c", code, PYTHONPATH=str(FRAGMENTS))
    assert done.returncode == 1 and "127.0.0.1" in done.stderr and PASSWORD not in done.stdout + done.stderr
    shown = run(hub, tmp_path, "-c", code.replace("mask_messages()\n", "", 1), PYTHONPATH=str(FRAGMENTS))
    assert PASSWORD in shown.stderr  # without it the library does
