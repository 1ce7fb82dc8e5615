"""perfgen's plan beside published runs of the same setting."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import peers

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "../shared/measured"


@pytest.mark.skipif(not MEASURED.is_dir(), reason="no published measurements here (../shared/measured)")
def test_plans_of_torchtitans_settings_stand_beside_its_runs(tmp_path):
    out = tmp_path / "peers.json"
    words = ["benchmarks/peers.py", str(MEASURED), "--table", "train_torchtitan", "--out", str(out)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    result = json.loads(out.read_text(encoding="utf-8"))
    ratios = [setting["ratio"] for setting in result["settings"]]
    assert len(ratios) >= 7 and all(0.8 <= ratio <= 1.3 for ratio in ratios)
    assert max(ratios, key=lambda ratio: max(ratio, 1 / ratio)) == ratios[0]
    summary = result["summary"]["train_torchtitan: torchtitan FSDP2"]
    assert summary["settings"] == summary["planned"] == len(ratios) and summary["same_stack"]
    assert "torchtitan FSDP2" in done.stdout


def test_a_setting_without_a_plan_says_why():
    from generator.inputs.model_files import read_model
    from generator.inputs.model_sizes import read_spec

    setting = peers.Setting(
        model="meta-llama/Llama-2-70b-hf",
        machine="1xt4",
        devices=1,
        train="full",
        quant="none",
        pure=False,
        seq_len=2048,
        global_batch=8,
    )
    spec = read_spec(read_model(setting.model, offline=True))
    assert peers.plan_setting(setting, spec) == (None, "nothing fits 1 devices")


def test_names_of_tables_are_those_of_the_catalogue():
    known = peers.list_known_models()
    assert known[peers.shorten_name("NousResearch/Llama-2-70b-hf")] == "meta-llama/Llama-2-70b-hf"
    assert known[peers.shorten_name("Llama-3.1-8B")] == "meta-llama/Llama-3.1-8B"
    same = [name for name in ("torchtitan FSDP2", "HF Trainer", "megatron-deepspeed") if peers.SAME_STACK.search(name)]
    assert same == ["torchtitan FSDP2", "HF Trainer"]
