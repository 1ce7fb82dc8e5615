"""Stages of a smoke run: started under a clock, none of their processes left behind."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from generator.errors import SmokeError
from generator.inputs.hub_connection import explain_no_connection
from generator.run.diagnosis import diagnose
from generator.run.stage import Stage
from hwdetect.machine.process import HeadAndTail, run_process

HUB = "https://huggingface.co"
"""Where huggingface_hub asks when HF_ENDPOINT names no other place (its constants.py)."""
HEAD_BYTES, TAIL_BYTES = 1 << 20, 1 << 20
"""of what a stage prints: a cause stands in the first lines or the last"""


def list_device_variables(plan: dict) -> dict[str, str]:
    """What hides the devices that the plan does not use, in the words of their maker."""
    if not plan["visible_devices"]:
        return {}
    project = plan["project"]
    beside = [pair.partition("=") for pair in (project["orders_devices"] or "").split()]
    return {name: value for name, _, value in beside} | {project["hides_devices"]: plan["visible_devices"]}


def list_hub_variables(plan: dict) -> dict[str, str]:
    """What ends the library's retries where nothing answers: half a minute for each file, though the cache may have all of them."""
    project, endpoint = plan["project"], os.environ.get("HF_ENDPOINT") or HUB
    asks = project.get("hub") or project.get("data_format") == "hub"
    return {"HF_HUB_OFFLINE": "1"} if asks and explain_no_connection(endpoint) else {}


def run_stage(name: str, command: tuple[str, ...], folder: Path, plan: dict, seconds: int) -> Stage:
    """Run one command to its end or its time, and leave no process behind. Raises ``SmokeError`` when it failed."""
    environment = os.environ | dict(plan["edits"]["environment"]) | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment |= list_device_variables(plan) | list_hub_variables(plan)
    started = time.monotonic()
    ended = run_process(
        command,
        seconds,
        errors=subprocess.STDOUT,
        environment=environment,
        folder=folder,
        output=HeadAndTail(HEAD_BYTES, TAIL_BYTES),
    )
    # of one that the kernel could not end in time there is no exit code either, and it was still started
    if ended.problem and ended.code is None and time.monotonic() - started < seconds:
        raise SmokeError(f"{name}: {command[0]}: {ended.problem}")
    done = Stage(
        name=name,
        command=command,
        returncode=None if ended.problem else ended.code,
        seconds=time.monotonic() - started,
        output=ended.raw.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n"),
    )
    if done.returncode != 0:
        raise SmokeError(*diagnose(done, seconds, folder, plan["estimate"]["step_seconds"]))
    return done
