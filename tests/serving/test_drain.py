"""A server that is told to stop finishes what it is answering, and takes nothing new."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import yaml
from leaves import FRAGMENTS

SCRIPT = """
import asyncio, json, os, signal, sys
from drain import Drain
told = []
async def app(scope, receive, send):
    if scope["type"] == "http":
        await asyncio.sleep(scope["seconds"])
        told.append("answered")
async def ask(drain, seconds):
    sent = []
    async def send(message):
        sent.append(message)
    await drain({"type": "http", "seconds": seconds}, None, send)
    return [message.get("status") for message in sent if "status" in message]
async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: (told.append("ended"), ended.set()))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: told.append("cut"))
    drain = Drain(app)
    await drain({"type": "lifespan"}, None, None)
    assert await ask(drain, 0) == []
    under_way = asyncio.ensure_future(ask(drain, float(sys.argv[1])))
    await asyncio.sleep(0.1)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
    told.append(await ask(drain, 0))
    await asyncio.wait_for(ended.wait(), 30)
    under_way.cancel()
    print(json.dumps(told))
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (1.5, ["answered", [503], "answered", "ended"]),
        (60, ["answered", [503], "ended"]),  # its time is over
    ],
)
def test_what_is_under_way_is_answered(tmp_path, seconds, told):
    for name, leaf in {"drain": "serving/drain", "config_file": "config_file", "terminal": "terminal"}.items():
        shutil.copyfile(FRAGMENTS / f"{leaf}.py", tmp_path / f"{name}.py")
    serving = {"flags": {"shutdown-timeout": 6}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": "m", "serving": serving}))
    (tmp_path / "run.py").write_text(SCRIPT)
    command = [sys.executable, "run.py", str(seconds)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == told
