"""What a shell completes, asked as shells ask: bash runs click's own function, in its own words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from generator.model.catalog import load_catalog
from generator.show import completion
from generator.techniques.base import list_axes
from hwdetect import catalog

ROOT = Path(__file__).resolve().parent.parent
ASK = """
source <(_PERFGEN_COMPLETE=bash_source perfgen)
compopt() {{ :; }}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
_perfgen_completion perfgen
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    """A PATH with a `perfgen` that is this checkout's."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "perfgen"
    command.write_text(f"#!{sys.executable}\nfrom generator.cli import main\n\nmain()\n")
    command.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def ask_bash(path: str, *words: str) -> list[str]:
    script = ASK.format(words=" ".join(f"'{word}'" for word in ("perfgen", *words)))
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env=variables)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("pla",), ["plan"]),
        (("plan", "--hardware", "2x8xh100-p"), ["2x8xh100-pcie-80gb"]),
        (("plan", "--hardware", "p5.48"), ["p5.48xlarge"]),
        (("plan", "--hardware", "a30-mig"), ["a30-mig-1g.6gb", "a30-mig-2g.12gb", "a30-mig-4g.24gb"]),
        (("plan", "--pin", "precision=tf"), ["precision=tf32"]),
        (("plan", "--pin", "precision", "=", "tf"), ["tf32"]),
        (("plan", "--pin", "cache", "="), ["dynamic", "engine", "engine-fp8", "none", "static"]),
        (("init", "p", "--allow", "optimizer", "=", "gal"), ["galore"]),
        (("why-not", "precision=tf"), ["precision=tf32"]),
        (("devices", "RTX-3090-"), ["rtx-3090-ti"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bash(path, words, expected):
    assert ask_bash(path, *words) == expected


def test_every_technique_is_completed():
    ours = {f"{axis.name}={member.name}" for axis in list_axes() for member in axis.members}
    assert ours == set(completion.list_techniques())


def test_every_model_that_perfgen_lists_is_completed():
    assert sorted(completion.list_models()) == sorted(load_catalog())


def test_models_are_those_of_the_catalogue(tmp_path, monkeypatch):
    folder = tmp_path / "model" / "published"
    folder.mkdir(parents=True)
    (folder / "_sources.toml").write_text('x = "y"\n')
    (folder / "owner.toml").write_text('["a-1.5b"]\nsource = "x"\n["a-1.5b".text_config]\n[b-2]\n[b-2.text_config]\n')
    monkeypatch.setattr(completion, "GENERATOR", tmp_path)
    completion.list_models.cache_clear()
    try:
        assert completion.list_models() == ("owner/a-1.5b", "owner/b-2")
    finally:
        completion.list_models.cache_clear()


def test_it_is_quick():
    """Two tenths of a second on an idle machine, processor time: whoever presses a key waits for it."""
    asked = {"COMP_WORDS": "perfgen plan --hardware 8xh1", "COMP_CWORD": "3", "_PERFGEN_COMPLETE": "bash_complete"}
    code = "import sys; sys.argv[0] = 'perfgen'; from generator.cli import main; main()"
    spent = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | asked, cwd=ROOT
        )
        after = os.times()
        assert "plain,8xh100-sxm-80gb" in done.stdout, done.stderr
        spent.append(after.children_user - before.children_user)
    assert min(spent) < 0.4, spent
    loaded = f"{code.removesuffix('main()')}print(sorted(set(sys.modules) & {{'torch', 'copier', 'pydantic', 'rich', 'yaml', 'jinja2'}}))"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, cwd=ROOT).stdout == "[]\n"


def test_what_plans_starts_without_what_few_plans_need():
    """unittest.mock alone brings asyncio and ssl, a quarter of the imports' time."""
    dear = {"torch", "transformers", "numpy", "copier", "asyncio", "ssl", "unittest"}
    code = f"import sys, generator.pipeline; print(sorted(set(sys.modules) & {dear}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "[]\n"


def test_devices_are_all_completed():
    assert {item.value for item in completion.complete_device(None, None, "")} == set(catalog.list_ids())
