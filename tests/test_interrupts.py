"""A program that still imports: Ctrl-C is the status of an interrupted one, and what cannot be imported is no traceback."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from leaves import load_leaf
from projects import render_small_project

ROOT = Path(__file__).resolve().parents[1]
posix = pytest.mark.skipif(os.name == "nt", reason="signals as on Unix")
SLOW_MODULE = "import pathlib, time\npathlib.Path({sign!r}).touch()\ntime.sleep(60)\n"
INTERRUPTED = (-signal.SIGINT, 130)
"""a shell shows both as 130"""


def interrupt_imports(command: list[str], folder: Path, module: str, beside: Path) -> tuple[int, str]:
    """Ctrl-C once ``module``, which takes its time, is being imported."""
    sign = folder / "importing"
    (beside / f"{module}.py").write_text(SLOW_MODULE.format(sign=str(sign)))
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(beside), str(ROOT)])}
    process = subprocess.Popen(
        command, cwd=folder, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, preexec_fn=listen
    )
    ends = time.monotonic() + 60
    while not sign.exists():
        assert process.poll() is None and time.monotonic() < ends
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=60)[1]
    return process.returncode, errors


def listen() -> None:
    """A shell's background job starts with SIGINT ignored, and tests may run in one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@posix
@pytest.mark.parametrize("program", ["train.py", "infer.py", "data.py"])
def test_ctrl_c_while_a_project_imports_is_no_traceback(tmp_path, program):
    folder = render_small_project(tmp_path / "s")
    (tmp_path / "beside").mkdir()
    code, errors = interrupt_imports([sys.executable, program], folder, "torch", tmp_path / "beside")
    assert code in INTERRUPTED and errors == ""


ENGINES = {"h100-x8-70b-serve", "rtx-4090-8b-serve", "rtx-4090-8b-weights-only"}
"""Their server.py becomes the engine's own server, which takes signals as it will."""
PLAIN = {"lock.py", "lock_image.py", "addresses.py"}
"""They need no library."""
CHILDREN = {"bench_baseline.py", "compare_reference.py"}
"""Scripts start them, and say what they end with."""


def list_scripts(project: Path) -> list[Path]:
    """Those that a user starts and that need libraries."""
    engine = {"server.py"} if project.parent.name in ENGINES else set()
    scripts = [path for path in sorted(project.glob("*.py")) if '__name__ == "__main__"' in path.read_text()]
    return [path for path in scripts if path.name not in PLAIN | CHILDREN | engine]


@pytest.mark.parametrize("project", sorted((ROOT / "examples").glob("*/project")), ids=lambda path: path.parent.name)
def test_every_script_imports_quietly_first(project):
    for path in list_scripts(project):
        first = next(
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
        )
        assert isinstance(first, ast.Import) and first.names[0].name == "quiet_imports", path


@pytest.mark.parametrize("name", ["cpu-2-cores-serve", "rtx-4090-8b-lora"])
def test_a_script_before_make_setup_says_what_installs_libraries(tmp_path, name):
    """It was a traceback that ends in ModuleNotFoundError."""
    project = shutil.copytree(ROOT / "examples" / name / "project", tmp_path / "p")
    for path in list_scripts(project):
        command = [sys.executable, "-S", "-E", path.name]  # nothing that is installed is found
        done = subprocess.run(
            command, cwd=project, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        missing, advice = done.stderr.splitlines()
        assert done.returncode == 1 and missing.startswith("No module named ") and sys.executable in missing, path
        assert "`make setup`" in advice


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("import quiet_imports\nimport middle", True),
        ("import quiet_imports\ndef main():\n    import middle\nmain()", False),  # at work: where it came from matters
        ("import quiet_imports\n1 / 0", False),
    ],
)
def test_only_what_cannot_be_imported_is_a_line(tmp_path, program, shown):
    shutil.copy(ROOT / "templates" / "fragments" / "quiet_imports.py", tmp_path)
    (tmp_path / "middle.py").write_text("from json import no_such_name")
    (tmp_path / "script.py").write_text(program)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and ("Traceback" not in done.stderr) is shown
    assert ("no_such_name" in done.stderr) is ("1 / 0" not in program)


@pytest.mark.parametrize(
    "content", ["no JSON", '{"model": {"vocab": {}, "merges": 3}}', '{"version": "1.0", "added_tokens": []}']
)
def test_a_tokenizer_without_sense_is_a_line(tmp_path, capsys, content):
    """Transformers raises JSONDecodeError, KeyError, or what its library in Rust raises; it was a traceback of each."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "tokenizer.json").write_text(content)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(Exception) as raised:
        transformers.AutoTokenizer.from_pretrained(tmp_path)
    load_leaf("quiet_imports").show_error(raised.type, raised.value, raised.tb)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"the tokenizer of {tmp_path} cannot be read: {raised.typename}(")
    assert said[1:] == ["fetch its files again"]


@posix
def test_a_program_of_others_that_imports_a_module_keeps_its_signals(tmp_path):
    (tmp_path / "p").mkdir()
    shutil.copy(ROOT / "templates" / "fragments" / "quiet_imports.py", tmp_path / "p")
    (tmp_path / "other.py").write_text(
        "import signal, sys\nsys.path.append('p')\nimport quiet_imports\n"
        "print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL, sys.excepthook is sys.__excepthook__)\n"
    )
    done = subprocess.run([sys.executable, "other.py"], cwd=tmp_path, capture_output=True, text=True, preexec_fn=listen)
    assert done.stdout.split() == ["False", "True"], done.stderr


@posix
def test_ctrl_c_while_perfgen_imports_is_no_traceback(tmp_path):
    (tmp_path / "beside").mkdir()
    command = [sys.executable, "-P", "-c", "from generator.start import main; main()", "devices"]
    code, errors = interrupt_imports(command, tmp_path, "click", tmp_path / "beside")
    assert code in INTERRUPTED and errors == ""


@posix
def test_ctrl_c_later_is_said(tmp_path):
    """What a command imports for itself."""
    (tmp_path / "beside").mkdir()
    command = [sys.executable, "-P", "-c", "from generator.start import main; main()", "plan", "--sample", "--offline"]
    code, errors = interrupt_imports(command, tmp_path, "rich", tmp_path / "beside")
    assert (code, errors.strip()) == (130, "interrupted")


@posix
@pytest.mark.parametrize(("ignored", "code"), [(False, 129), (True, 0)])
def test_a_terminal_that_is_closed_ends_it_in_order(tmp_path, ignored, code):
    """A kill by SIGHUP left the draft of `init` beside DEST; under nohup it goes on."""
    script = "import os, signal, time, click; from generator import cli\n"
    script += (
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})\n"  # these may run under nohup
    )
    script += "@cli.perfgen.command()\ndef hang():\n  try: os.kill(os.getpid(), signal.SIGHUP); time.sleep(0.1)\n"
    script += "  finally: print('tidied')\n"
    command = [sys.executable, "-P", "-c", f"{script}cli.main()", "hang"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert (done.returncode, done.stdout.split()) == (code, [b"tidied"]), done.stderr


@posix
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("detect", 0), ("devices h100", 0), ("init new", 2), ("update .", 5)])
def test_a_closed_stream_is_no_traceback(tmp_path, words, code, closed):
    """`init` asked whether None was a terminal."""
    program = f"{sys.executable} -P -c 'from generator.start import main; main()'"
    done = subprocess.run(["sh", "-c", f"{program} {words} {closed}"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
