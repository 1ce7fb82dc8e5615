"""Which decoders vLLM and SGLang run: what the techniques refuse is what their own registries have not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from engine_projects import find_python

from generator.model import decoders, hybrids, moe
from generator.techniques.engines import GpuEngine, list_engines

pytestmark = [pytest.mark.engines, pytest.mark.slow]
ENGINES = {engine.leaf: engine for engine in list_engines() if isinstance(engine, GpuEngine)}


@pytest.mark.parametrize("leaf", sorted(ENGINES))
def test_decoders_that_an_engine_cannot_run_are_those_it_refuses(leaf):
    kinds = dict.fromkeys([*decoders.FAMILIES, *moe.FAMILIES], False) | dict.fromkeys(hybrids.FAMILIES, True)
    command = [find_python("serve-vllm"), Path(__file__).with_name("registries.py"), leaf]
    ended = subprocess.run(command, input=json.dumps(kinds), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    runs = json.loads(ended.stdout.splitlines()[-1])
    assert len(runs) > 60
    assert {kind for kind, run in runs.items() if not run} == ENGINES[leaf].unknown_types & runs.keys()
