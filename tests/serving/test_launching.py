"""The launcher of an engine's own server becomes that server, and shows nobody the key."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from leaves import FRAGMENTS

SERVER = """
import json, multiprocessing, os, sys
from pathlib import Path
def tell(report):
    words = Path("/proc/self/cmdline").read_bytes().decode()
    print(json.dumps({"pid": os.getpid(), "name": __name__, "argv": sys.argv, "shown": words}), flush=True)
if __name__ == "__main__":
    tell(None)
    child = multiprocessing.get_context("spawn").Process(target=tell, args=(None,))
    child.start()
    child.join()
"""
KEY = "-secret-of-somebody"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_key_stands_in_no_command_line_and_in_no_file(tmp_path):
    """SGLang's takes it as a flag alone. Its processes begin anew as multiprocessing's do, from the server's module."""
    (package := tmp_path / "sglang").mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(SERVER)
    leaves = {"server": "serving/launch_sglang", "sources": "sources", "config_file": "config_file"}
    leaves |= {name: name for name in ("stop_tokens", "template_limits")}
    leaves |= {name: f"serving/{name}" for name in ("api_key", "generation_defaults", "launching", "prompts")}
    for name, leaf in leaves.items():
        shutil.copyfile(FRAGMENTS / f"{leaf}.py", tmp_path / f"{name}.py")
    flags = {"enable-metrics": True, "tp-size": 2, "context-length": 512}
    serving = {"name": "m", "host": "127.0.0.1", "port": 8000, "max_new_tokens": 8, "flags": flags}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": str(tmp_path / "sglang"), "serving": serving}))
    (package / "generation_config.json").write_text('{"suppress_tokens": [7], "repetition_penalty": 1.1}')
    (drafts := tmp_path / "drafts").mkdir()
    environment = os.environ | {"API_KEY": KEY, "TMPDIR": str(drafts)}
    command = [sys.executable, "server.py", "--port", "8123", "--their-own", "flag"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines, said = process.communicate(timeout=60)
    told = [json.loads(line) for line in lines.splitlines()]
    assert "a chat to the end of 512 tokens, and 16 of a text, and not 8" in said  # a limit that it has not
    assert "asks what SGLang does not do: suppress_tokens [7]\n" in said
    assert process.returncode == 0 and [each["name"] for each in told] == ["__main__", "__mp_main__"]
    assert told[0]["pid"] == process.pid != told[1]["pid"]
    for each in told:
        assert Path(each["argv"][0]) == package / "launch_server.py"
        words = each["argv"][1:]
        assert f"--api-key={KEY}" in words and words[-2:] == ["--their-own", "flag"]
        assert words[words.index("--port") + 1] == "8123" and KEY not in each["shown"]
    assert not list(drafts.iterdir())


@pytest.mark.parametrize(
    "own, said",
    [
        ({}, "writes to the end of 512 tokens, and not 8 as config.yaml says"),
        ({"max_new_tokens": 2048}, "writes to 2048 tokens, of the model's generation_config.json, and not 8"),
        ({"temperature": 0.6, "forced_eos_token_id": 2}, "asks what vLLM does not do: forced_eos_token_id 2\n"),
    ],
)
def test_vllm_is_said_to_do_what_it_does(load, monkeypatch, tmp_path, capsys, own, said):
    """Of its server: the model's own file is where a default length comes from, and half of it is left out."""
    for leaf in ("sources", "stop_tokens", "template_limits", "config_file"):
        load(leaf)
    for leaf in ("prompts", "generation_defaults", "api_key", "launching"):
        load(f"serving/{leaf}", leaf)
    launch = load("serving/launch_vllm", "server")
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    serving = {"name": "m", "host": "127.0.0.1", "port": 1, "max_new_tokens": 8, "flags": {"max-model-len": 512}}
    started = []
    monkeypatch.setattr(launch, "read_config", lambda: {"model": str(tmp_path), "serving": serving})
    monkeypatch.setattr(launch, "become", lambda module, words: started.append(words))
    monkeypatch.setattr(sys, "argv", ["server.py"])
    launch.main()
    assert said in capsys.readouterr().err and started[0][:2] == ["serve", str(tmp_path)]
