"""The smoke runner against projects that hang, crash, run out of memory or leave children behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from generator.errors import SmokeError, SourceError
from generator.run import smoke

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "cpu-2-cores-sample" / "project" / "plan.json"
PLAN = json.loads(EXAMPLE.read_text(encoding="utf-8")) | {"requirements": []}
PLAN["estimate"] |= {"step_seconds": 2.0, "tokens_per_second": 100.0, "peak_memory_gib": 1.0}
GOOD_TRAIN = """
import json, sys, pathlib
out = pathlib.Path(sys.argv[sys.argv.index("--output_dir") + 1]); out.mkdir(parents=True)
report = {"step_seconds": 1.0, "tokens_per_second": 200.0, "peak_memory_gib": 1.1, "losses": [2.0, 1.0], "steps": [1.0], "versions": {}}
(out / "run.json").write_text(json.dumps(report))
"""


def project(tmp_path: Path, train: str, infer: str = "print('the answer')") -> Path:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    (tmp_path / "train.py").write_text(textwrap.dedent(train))
    (tmp_path / "infer.py").write_text(textwrap.dedent(infer))
    return tmp_path


def run(folder: Path, seconds: int = 20) -> dict:
    return smoke.run_project(folder, say=lambda text="", **_: None, seconds=seconds, python=sys.executable)


def test_predicted_against_measured(tmp_path):
    result = run(project(tmp_path, GOOD_TRAIN))
    rows = {row["what"]: row for row in result["comparison"]}
    assert rows["step time"]["ratio"] == 0.5
    assert rows["peak memory"]["predicted"] == 1.0 and rows["peak memory"]["measured"] == 1.1
    assert result["losses"] == [2.0, 1.0] and result["answer"] == "the answer"
    assert json.loads((tmp_path / "smoke.json").read_text()) == result


def test_the_report_gets_the_comparison(tmp_path):
    (tmp_path / "report.html").write_text("<p>a</p>\n<!-- smoke:begin -->\n<p>no</p>\n<!-- smoke:end -->\n<p>b</p>\n")
    run(project(tmp_path, GOOD_TRAIN, "print('<script>x</script>')"))
    page = (tmp_path / "report.html").read_text()
    assert "step time" in page and "<p>no</p>" not in page and page.endswith("<p>b</p>\n")
    assert "<script>" not in page


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", "out of memory"),
        ("raise MemoryError", "out of memory"),
        ("raise OSError(28, 'No space left on device')", "the disk is full"),
        ("import no_such_package", "a package is missing"),
        ("import sys; sys.exit('x.jsonl: no usable text')", "no data"),
        ("import sys; sys.exit('step 3: non-finite loss (nan)')", "the loss is not finite"),
        ("import sys; sys.exit('This plan was made for an NVIDIA GPU')", "another machine"),
        ("import os; os.abort()", "crashed"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("1 / 0", "crashed (exit 1)"),
    ],
)
def test_what_went_wrong_is_named(tmp_path, train, words):
    with pytest.raises(SmokeError) as failed:
        run(project(tmp_path, train))
    assert words in failed.value.message and failed.value.message.startswith("train:")
    assert failed.value.code == 6


def test_a_failure_of_inference_is_its_own(tmp_path):
    with pytest.raises(SmokeError, match="infer: crashed"):
        run(project(tmp_path, GOOD_TRAIN, "1 / 0"))


def test_a_hang_is_killed_with_all_its_children(tmp_path):
    train = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        print("child", child.pid, flush=True)
        time.sleep(300)
    """
    started = time.monotonic()
    with pytest.raises(SmokeError, match="hung: not done after 2 s") as failed:
        run(project(tmp_path, train), seconds=2)
    assert time.monotonic() - started < 15
    child = int(str(failed.value).split("child ")[1].split()[0])
    assert gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_children_die_with_a_killed_perfgen(tmp_path):
    project(
        tmp_path,
        f"import os, time, pathlib; pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid())); time.sleep(300)",
    )
    code = f"from pathlib import Path; from generator.run import smoke; smoke.run_project(Path({str(tmp_path)!r}), say=print)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, cwd=Path(__file__).parent.parent)
    deadline = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert gone(int((tmp_path / "pid").read_text()))


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z":
            return True  # dead, not yet collected by whoever inherited it
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False


def test_a_folder_without_a_plan_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"plan\.json"):
        run(tmp_path)
