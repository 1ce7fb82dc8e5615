"""What the command line says: every command of transcripts/commands.txt gives the recorded output, errors and exit code.

`python tests/test_transcripts.py` records anew. Read the difference before it is committed: outside checks read these words.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "transcripts"
RECORD = FOLDER / "record.txt"


def read_commands() -> list[str]:
    lines = (FOLDER / "commands.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


SIZE = re.compile(r"(  project +\d+ files +)\d+ kB")
"""of all files of a project, rounded"""


def run_command(command: str, scratch: Path) -> str:
    """One command as text: its words, output, errors, exit code; folders of this machine by their placeholders."""
    models = ROOT / "examples" / "models"
    words = [word.replace("{models}", str(models)).replace("{tmp}", str(scratch)) for word in shlex.split(command)]
    done = subprocess.run(
        [sys.executable, "-m", "generator.cli", *words],
        cwd=FOLDER / "inputs",
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "140",
            "HOME": str(scratch),
            "LC_ALL": "C.UTF-8",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    text = f"$ perfgen {command}\n{done.stdout}--- stderr\n{done.stderr}--- exit {done.returncode}\n"
    text = text.replace(str(models), "{models}").replace(str(scratch), "{tmp}").replace(str(ROOT), "{root}")
    text = SIZE.sub(r"\1{size}", text)  # every line of a template changes it
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def transcribe() -> str:
    with tempfile.TemporaryDirectory() as scratch:
        return "\n".join(run_command(command, Path(scratch)) for command in read_commands())


def test_every_command_says_what_was_recorded():
    assert len(read_commands()) >= 60
    new, old = transcribe(), RECORD.read_text(encoding="utf-8")
    difference = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "recorded", "now", lineterm="", n=2))
    assert not difference, "\n".join(difference[:200])


if __name__ == "__main__":
    RECORD.write_text(transcribe(), encoding="utf-8")
