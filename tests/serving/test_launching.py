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
    leaves |= {name: f"serving/{name}" for name in ("api_key", "launching")}
    for name, leaf in leaves.items():
        shutil.copyfile(FRAGMENTS / f"{leaf}.py", tmp_path / f"{name}.py")
    flags = {"enable-metrics": True, "tp-size": 2, "context-length": 512}
    serving = {"name": "m", "host": "127.0.0.1", "port": 8000, "max_new_tokens": 8, "flags": flags}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": str(tmp_path / "sglang"), "serving": serving}))
    (drafts := tmp_path / "drafts").mkdir()
    environment = os.environ | {"API_KEY": KEY, "TMPDIR": str(drafts)}
    command = [sys.executable, "server.py", "--port", "8123", "--their-own", "flag"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines, said = process.communicate(timeout=60)
    told = [json.loads(line) for line in lines.splitlines()]
    assert "a chat to the end of 512 tokens, and 16 of a text, and not 8" in said  # a limit that it has not
    assert process.returncode == 0 and [each["name"] for each in told] == ["__main__", "__mp_main__"]
    assert told[0]["pid"] == process.pid != told[1]["pid"]
    for each in told:
        assert Path(each["argv"][0]) == package / "launch_server.py"
        words = each["argv"][1:]
        assert f"--api-key={KEY}" in words and words[-2:] == ["--their-own", "flag"]
        assert words[words.index("--port") + 1] == "8123" and KEY not in each["shown"]
    assert not list(drafts.iterdir())
