"""Write docs/plan.svg, the picture of the README: COMMAND as a terminal shows it.

python docs/picture.py      (`make golden` does it too; a test holds the file equal)
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "plan.svg"
COMMAND = (
    "perfgen plan --model meta-llama/Llama-3.1-8B --config examples/models/llama-3.1-8b.json",
    "--data HuggingFaceH4/no_robots --task sft --hardware 8xh100-sxm-80gb",
)
WIDTH = 118


def run_command() -> str:
    """What it prints, in colour."""
    words = shlex.split(" ".join(COMMAND))[1:]
    environment = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environment |= {"HF_HUB_OFFLINE": "1"}  # the same picture with and without a network
    environment.pop("NO_COLOR", None)
    done = subprocess.run(
        [sys.executable, "-m", "generator.cli", *words],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def draw_terminal() -> str:
    """As SVG, without the fonts that rich fetches from the web: any monospaced one does."""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, highlight=False)
    typed = " \\\n    ".join(COMMAND)
    console.print(f"[green]$[/green] [bold]{typed}[/bold]\n")
    console.print(Text.from_ansi(run_command()))
    svg = console.export_svg(title="perfgen plan", unique_id="plan")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return "".join(line.rstrip() + "\n" for line in svg.replace("Fira Code, monospace", "monospace").splitlines())


if __name__ == "__main__":
    PICTURE.write_text(draw_terminal(), encoding="utf-8")
