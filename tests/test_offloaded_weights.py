"""Models that fit nowhere: weights beyond the device stay with the host and on its disk, where the user allows it; room is looked for
before a byte is read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from engine_projects import find_model
from leaves import FRAGMENTS

from generator.case.request import Request
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.errors import NothingFits
from generator.pipeline import document_request, plan_request

MODELS = Path(__file__).parents[1] / "examples" / "models"
GIB = 1 << 30
ALLOWED = ("parallelism=device-map-offload",)


def plan_70b(**told):
    asked = {"model": str(MODELS / "llama-3.1-70b.json"), "mode": "infer", "offline": True} | told
    return document_request(Request(**asked))


def host_gib(host: str) -> float:
    """Of weights, in the host's memory."""
    request = Request(
        model=str(MODELS / "llama-3.1-70b.json"), mode="infer", hardware="1xrtx-4090", host_memory=host, allow=ALLOWED
    )
    estimate = plan_request(request).plan.best.estimate
    assert sum(item.value for item in estimate.host_memory) <= (estimate.host_limit_gib or 0.0)
    return next(item.value for item in estimate.host_memory if item.name == "offloaded weights")


def test_it_is_offered_where_nothing_fits_and_not_taken_unasked():
    with pytest.raises(NothingFits) as error:
        plan_70b(hardware="1xrtx-4090", host_memory="256gb")
    assert any("--allow parallelism=device-map-offload" in rung.option for rung in error.value.ladder)
    small = Request(model=str(MODELS / "llama-3.1-8b.json"), mode="infer", offline=True, hardware="1xrtx-4090")
    assert document_request(small).choice["parallelism"] == "single"


def test_device_host_and_disk_hold_the_weights_together():
    for host, on_disk in (("256gb", False), ("64gb", True)):
        document = plan_70b(hardware="1xrtx-4090", host_memory=host, allow=ALLOWED)
        assert document.choice["parallelism"] == "device-map-offload" and document.choice["engine"] == "transformers"
        device, there = document.estimate.memory_gib["weights"], host_gib(host)
        assert document.estimate.peak_memory_gib < document.estimate.limit_gib
        total = 2 * document.case.model.params / 2**30
        assert (device + there < total - 1) == on_disk and device + there <= total + 0.01
        assert document.estimate.basis == "assumed"
    slow = document.estimate.step_seconds
    assert slow > plan_70b(hardware="1xrtx-4090", host_memory="256gb", allow=ALLOWED).estimate.step_seconds


def test_a_machine_without_room_is_told_before_a_byte_is_read(load, tmp_path, monkeypatch):
    room = load("room")
    (tmp_path / "model.safetensors").write_bytes(b"\0" * (3 << 20))
    monkeypatch.setattr(room, "read_free_bytes", lambda: 1 << 20)
    room.check_room(tmp_path, {0: "2MiB", "cpu": "64MiB"})  # 1 MiB is left for the host
    with pytest.raises(SystemExit, match="stay in host memory, of which"):
        room.check_room(tmp_path, {0: "1MiB", "cpu": "64MiB"})
    with pytest.raises(SystemExit, match="stay in host memory, of which"):
        room.check_room("owner/name", {0: "1MiB", "cpu": "64MiB"})
    monkeypatch.setattr(room, "read_free_bytes", lambda: None)
    room.check_room(tmp_path, {0: "1MiB", "cpu": "64MiB"})
    monkeypatch.setattr(room.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 0}))
    with pytest.raises(SystemExit, match="are to go to the disk of"):
        room.check_room(tmp_path, {"cpu": "1MiB"})


MEMINFO = {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n"}
V2, V1 = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")


def lay_group(folder: str, names: tuple[str, str], limit: str, used: int, stat: str = "") -> dict[str, str]:
    top = f"sys/fs/cgroup{folder}"
    return {f"{top}/{names[0]}": f"{limit}\n", f"{top}/{names[1]}": f"{used}\n", f"{top}/memory.stat": stat}


@pytest.mark.parametrize(
    ("files", "free_gib"),
    [
        (MEMINFO, 8),
        ({"proc/self/cgroup": "0::/\n"} | lay_group("", V2, str(4 * GIB), GIB), 3),
        (
            {"proc/self/cgroup": "0::/system.slice/docker-a.scope\n"}
            | lay_group("/system.slice/docker-a.scope", V2, "max", GIB)
            | lay_group("/system.slice", V2, str(6 * GIB), 4 * GIB),
            2,
        ),
        (
            {"proc/self/cgroup": "0::/job\n"}
            | lay_group("/job", V2, str(4 * GIB), 4 * GIB, f"anon {GIB}\ninactive_file {GIB}\nactive_file {2 * GIB}\n"),
            3,
        ),
        (
            {"proc/self/cgroup": "4:cpu,memory:/docker/a\n0::/\n"}
            | lay_group("/memory/docker/a", V1, str(2 * GIB), GIB, f"inactive_file {GIB}\ntotal_inactive_file 0\n"),
            1,
        ),
        ({"proc/self/cgroup": "0::/../../kubepods/x\n"} | lay_group("", V2, str(2 * GIB), 3 * GIB), 0),
    ],
    ids=["no group", "top", "slice around a scope", "files are given back", "v1", "more than allowed"],
)
def test_what_is_free_is_what_the_tightest_group_leaves(load, tmp_path, files, free_gib):
    for name, text in (MEMINFO | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert load("room").read_free_bytes(tmp_path) == free_gib * GIB


@pytest.mark.slow
def test_a_model_on_memory_and_disk_answers_as_it_does_in_memory(tmp_path):
    """SmolLM2 in 32 bits, of which a quarter of a GiB has room: the rest is read off the disk for each token. Greedy tokens."""
    model = find_model()
    request = Request(
        model=str(model),
        mode="infer",
        hardware="cpu:2,1.6gb",
        offline=True,
        prompt_tokens=64,
        new_tokens=8,
        pins=(("parallelism", "device-map-offload"), ("engine", "transformers"), ("precision", "fp32")),
    )
    document = document_request(request, for_project=True)
    made = tmp_path / "p"
    made.mkdir()
    render(to_json(document), made)
    (made / "model").mkdir(exist_ok=True)
    link = made / "model" / model.name
    if not link.exists():
        link.symlink_to(model)
    command = [
        sys.executable,
        "infer.py",
        "--prompt",
        "What is the capital of France?",
        "--max_new_tokens",
        "8",
        "--json",
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    source = (made / "model.py").read_text()
    assert "check_room(source, " in source and "max_memory=" in source and (FRAGMENTS / "room.py").is_file()
    probe = "from model import load_model; import yaml; m = load_model(yaml.safe_load(open('config.yaml'))); "
    probe += "import json; print(json.dumps(m.hf_device_map))"
    placed = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=made,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
        env=environment,
    )
    assert {"cpu", "disk"} <= set(json.loads(placed.stdout.splitlines()[-1]).values())
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokens = loaded.generate(**inputs, max_new_tokens=8, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert json.loads(done.stdout)["answer"] == tokenizer.decode(tokens, skip_special_tokens=True)


def test_several_devices_hold_what_they_can_before_the_host_does(tmp_path):
    """405B on two H100: it was refused for any number of devices but one, with room for all of it in the host's memory."""
    asked = {"model": "meta-llama/Llama-3.1-405B-Instruct", "host_memory": "1000gb"}
    with pytest.raises(NothingFits) as error:
        plan_70b(**asked, hardware="2xh100-sxm-80gb")
    assert any("--allow parallelism=device-map-offload" in rung.option for rung in error.value.ladder)
    planned = {n: plan_70b(**asked, hardware=f"{n}xh100-sxm-80gb", allow=ALLOWED) for n in (1, 2)}
    assert [document.config.machine.gpus for document in planned.values()] == [1, 2]
    seconds = [document.estimate.step_seconds for document in planned.values()]
    assert 0.8 * seconds[0] < seconds[1] < seconds[0]  # less comes over the link
    render(to_json(planned[2]), tmp_path / "p")
    code = (tmp_path / "p" / "model.py").read_text()
    most = re.search(r"max_memory=\{0: \"(\d+)MiB\", 1: \"(\d+)MiB\", \"cpu\": \"(\d+)MiB\"\}", code)
    assert most and sum(map(int, most.groups())) > 2 * 405e9 / (1 << 20)
