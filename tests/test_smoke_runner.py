"""The smoke runner against a real project, and against what goes wrong: a hang, a crash, no memory, children left behind.

Only what must fail is written here by hand. What succeeds is the rendered train.py and infer.py, or files that their own
leaves wrote.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from endless import ENDLESS_KINDS, make_endless
from jsonschema import Draft202012Validator
from projects import ANSWERED, TRAINED, render_small_project

from generator.emit.place import lock_destination
from generator.errors import DestinationError, SmokeError, SourceError
from generator.inputs.json_files import replace_file
from generator.run import process, smoke
from generator.run.comparison import (
    compare,
    compare_inference,
    compare_training,
    compare_value,
    describe_place,
    explain_ratios,
    format_lines,
)
from generator.run.figures import InferFigures, RunFigures, read_figures
from generator.run.schema import FOLDER, TYPES, dump_schema
from generator.run.stage import Stage
from hwdetect.machine.process import EndedProcess

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> Path:
    return render_small_project(tmp_path_factory.mktemp("smoke"))


@pytest.fixture
def project(rendered, tmp_path):
    """A copy of the project, with another train.py or infer.py in the place of its own."""

    def replace_scripts(train: str = TRAINED, infer: str = ANSWERED) -> Path:
        folder = shutil.copytree(rendered, tmp_path / "p")
        (folder / "train.py").write_text(textwrap.dedent(train))
        (folder / "infer.py").write_text(textwrap.dedent(infer))
        return folder

    return replace_scripts


def run(folder: Path, seconds: int = 100, say=lambda text="", **_: None) -> dict:
    return smoke.run_project(folder, say=say, seconds=seconds, python=sys.executable)


def validate(path: Path, name: str) -> dict:
    content = json.loads(path.read_text(encoding="utf-8"))
    schema = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(content)
    return content


@pytest.fixture(scope="module")
def smoked(rendered) -> tuple[Path, dict, list[str]]:
    """The project after a smoke run of its own scripts, the result, and what was said."""
    folder = shutil.copytree(rendered, rendered.parent / "smoked")
    lines: list[str] = []
    return folder, run(folder, say=lambda text="", **_: lines.append(text)), lines


@pytest.mark.slow
@pytest.mark.core
def test_a_real_project_is_trained_and_asked(smoked):
    folder, result, lines = smoked
    out = folder / "runs" / "smoke"
    trained, answered = validate(out / "run.json", "run.json"), validate(out / "infer.json", "infer.json")
    assert validate(folder / "smoke.json", "smoke.json") == result
    assert len(result["losses"]) == smoke.STEPS == trained["finished_step"] and result["losses"] == trained["losses"]
    measured = {row["what"]: row["measured"] for row in result["comparison"]}
    assert measured["step time"] == trained["step_seconds"] and measured["peak memory"] == trained["peak_memory_gib"]
    assert answered["prompt"] == "To be, or not" and answered["new_tokens"] == 16 and answered["calls"] == 1
    assert result["answer"] == answered["answer"] and answered["answer"].startswith("To be, or not")
    assert any(line.startswith("inference: ") for line in lines)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "step time" in page and "Not run yet" not in page


@pytest.mark.slow
def test_a_project_that_only_answers(smoked, tmp_path):
    trained = smoked[0] / "runs" / "smoke"
    folder = render_small_project(
        tmp_path / "i",
        model=str(trained),
        mode="infer",
        max_steps=None,
        pins=(("engine", "transformers"),),
        new_tokens=16,
    )
    result = run(folder)
    assert result["losses"] == [] and result["inference"]["new_tokens"] == 16
    answer, memory = result["comparison"]
    predicted = json.loads((folder / "plan.json").read_text())["config"]["predicted"]
    assert (answer["what"], answer["predicted"]) == ("answer", predicted["decode_tokens_per_s"])
    assert (memory["what"], memory["predicted"]) == ("its memory", predicted["peak_memory_gib"])
    figures = json.loads((folder / "runs" / "smoke" / "infer.json").read_text())
    assert answer["measured"] == pytest.approx(15 / (figures["seconds"] - figures["ttft_s"]))
    assert memory["measured"] == figures["peak_memory_gib"]
    assert validate(folder / "smoke.json", "smoke.json") == result
    assert not (folder / "infer.json").exists()  # the user's own is left alone


def test_a_smoke_run_evaluates_nothing_and_writes_to_no_tracker(project):
    folder = project()
    command = smoke.build_train_command(smoke.load_plan(folder), sys.executable, 8, folder / "runs/smoke")
    flags = dict(zip(command[2::2], command[3::2], strict=True))
    assert flags["--eval_strategy"] == "no" and flags["--report_to"] == "none" and flags["--max_steps"] == "8"


def test_of_two_smoke_runs_at_once_the_second_is_refused(project):
    """It emptied the folder in which the first one was training."""
    folder = project()
    (folder / "runs" / "smoke").mkdir(parents=True)
    (folder / "runs" / "smoke" / "mine").touch()
    with lock_destination(folder / "runs" / "smoke"), pytest.raises(DestinationError, match="by another perfgen"):
        run(folder)
    assert (folder / "runs" / "smoke" / "mine").exists()
    run(folder)
    assert {path.name for path in (folder / "runs").iterdir()} == {"smoke"}


def test_predicted_against_measured(project):
    folder = project()
    result = run(folder)
    plan = json.loads((folder / "plan.json").read_text())
    rows = {row["what"]: row for row in result["comparison"]}
    memory = rows["peak memory"]
    assert (memory["predicted"], memory["measured"]) == (plan["estimate"]["peak_memory_gib"], 1.1)
    assert memory["ratio"] == pytest.approx(1.1 / memory["predicted"])
    assert result["losses"] == [2.0, 1.0] and result["answer"] == "<script>x</script>\nand a second line"
    assert result["inference"]["seconds"] == 1.5 and result["inference"]["first_call_seconds"] == 3.0
    assert result["inference"]["tokens_per_second"] == pytest.approx((4 / 1 + 4 / 2) / 2)
    assert validate(folder / "smoke.json", "smoke.json") == result


def test_the_report_gets_the_comparison(project):
    folder = project()
    page = folder / "report.html"
    page.write_text("<p>a</p>\n<!-- smoke:begin -->\n<p>no</p>\n<!-- smoke:end -->\n<p>b</p>\n")
    run(folder)
    text = page.read_text()
    assert "step time" in text and "<p>no</p>" not in text and text.endswith("<p>b</p>\n")
    assert "<script>" not in text and "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (33.7, "a step takes 33.7 times what was predicted: plan again with --measure"),
        (0.25, "a step takes 1/4 of what was predicted: plan again with --measure"),
        (1.9, None),
        (0.51, None),
    ],
)
def test_a_prediction_that_is_far_off_is_said_in_words(ratio, words):
    plan = {"case": {"hardware": {"measured": []}}}
    rows = [compare_value("step time", "s", 2.0, 2.0 * ratio), compare_value("peak memory", "GiB", 1.0, 1.0)]
    lines = explain_ratios(rows, plan)
    assert len(lines) == (words is not None) and all(line.startswith(words) for line in lines)


def test_rates_that_were_measured_are_not_measured_again():
    (line,) = explain_ratios(
        [compare_value("step time", "s", 1.0, 9.0)], {"case": {"hardware": {"measured": [{"what": "matmul"}]}}}
    )
    assert "--measure" not in line and "what else runs" in line
    (line,) = explain_ratios(
        [compare_value("step time", "s", 1.0, 9.0)], {}, "as it began, other work wanted 13.2 of 2 CPUs"
    )
    assert "13.2 of 2 CPUs: try again" in line and "--measure" not in line
    (line,) = explain_ratios([compare_value("peak memory", "GiB", 1.0, 3.0)], {})
    assert line == "it needs 3 times the memory that was predicted"
    answers = [compare_value("answer", "tokens/s", 32.0, 0.8), compare_value("its memory", "GiB", 1.0, 0.4)]
    token, memory = explain_ratios(answers, {}, "as it began, other work wanted 9.0 of 2 CPUs")
    assert token.startswith("a token of an answer takes 40 times what was predicted: as it began, other work wanted")
    assert memory == "to answer it needs 1/2.5 of the memory that was predicted"


@pytest.mark.parametrize("name", TYPES)
def test_the_published_schemas_are_those_of_the_types(name):
    assert (FOLDER / name).read_text(encoding="utf-8") == dump_schema(name), "python -m generator.run.schema"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "left no readable"),
        ("{", "left no readable"),
        ("[]", "should be a valid"),
        ('{"schema": 1}', "lacks tokens_per_second"),
        ('{"schema": 2, "tokens_per_second": 0}', "lacks"),
    ],
)
def test_figures_that_cannot_be_read_are_named(tmp_path, content, words):
    path = tmp_path / "infer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SmokeError, match=words) as failed:
        read_figures(InferFigures, path, "infer")
    assert failed.value.message.startswith("infer: ")


def test_a_figure_that_cannot_be_is_refused(project):
    folder = project()
    run(folder)
    path = folder / "runs" / "smoke" / "run.json"
    path.write_text(path.read_text().replace('"peak_memory_gib": 1.1', '"peak_memory_gib": 0'))
    with pytest.raises(SmokeError, match="peak_memory_gib: Input should be greater than 0"):
        read_figures(RunFigures, path, "train")


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
        ("pass", "left no readable"),
    ],
)
def test_what_went_wrong_is_named(project, train, words):
    with pytest.raises(SmokeError) as failed:
        run(project(train))
    assert words in failed.value.message and failed.value.message.startswith("train:")
    assert failed.value.code == 6


@pytest.mark.parametrize(("infer", "words"), [("1 / 0", "infer: crashed"), ("print('an answer')", "infer: ended well")])
def test_a_failure_of_inference_is_its_own(project, infer, words):
    with pytest.raises(SmokeError, match=words):
        run(project(TRAINED, infer))


def test_a_hang_is_killed_with_all_its_children(project):
    train = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        print("child", child.pid, flush=True)
        time.sleep(300)
    """
    started = time.monotonic()
    with pytest.raises(SmokeError, match="hung: not done after 3 s") as failed:
        run(project(train), seconds=3)
    assert time.monotonic() - started < 30
    child = int(str(failed.value).split("child ")[1].split()[0])
    assert is_gone(child)


def test_a_slow_run_is_not_said_to_hang(project):
    """It did steps: how many, how fast they should have been, and the whole command that waits longer."""
    train = """
        import time
        print("step  1/80  loss 4\\nstep  5/80  loss 3", flush=True)
        time.sleep(300)
    """
    folder = project(train)
    with pytest.raises(
        SmokeError, match=r"train: too slow: 5 of 80 steps after 3 s \([\d.e-]+ s a step were planned\)"
    ) as failed:
        run(folder, seconds=3)
    assert f"`perfgen smoke {folder} --timeout SECONDS`" in str(failed.value)


def test_time_over_is_said_where_the_kernel_was_slow_to_end_it(project, monkeypatch):
    """Then there is no exit code, as of a program that was never started."""
    out = EndedProcess(raw=b"step  3/8  loss 4\n", code=None, problem="no answer within 5.0 s")
    monkeypatch.setattr(process, "run_process", lambda *_, **__: out)
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(process.time, "monotonic", lambda: next(clock))
    with pytest.raises(SmokeError, match="train: too slow: 3 of 8 steps after 5 s") as failed:
        run(project(), seconds=5)
    assert "--timeout SECONDS" in str(failed.value)


def test_init_begins_no_run_that_its_plan_says_has_no_time_to_end(project):
    """Ten minutes of waiting for exit code 6, of a project that is right."""
    assert [smoke.choose_steps(seconds) for seconds in (None, 1e-9, 37.5, 60, 150, 151)] == [8, 8, 8, 5, 2, 1]
    folder = project("1 / 0")
    plan = json.loads((folder / "plan.json").read_text())
    plan["estimate"]["step_seconds"] = 240.0
    (folder / "plan.json").write_text(json.dumps(plan))
    lines = []
    assert smoke.try_project(folder, lambda text="", **_: lines.append(text)) is None
    assert lines == [
        f"smoke run: not done, a step is planned to take 4 minutes: `perfgen smoke {folder} --steps 2 --timeout SECONDS`"
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_CHILD_SUBREAPER is Linux")
def test_no_process_of_the_run_outlives_a_killed_perfgen(project, tmp_path):
    """Nor the workers: a launcher starts each in a session of its own, and a daemon has no parent that could end it."""
    pids = tmp_path / "pids"
    train = f"""
        import os, subprocess, sys, time
        def note():
            with open({str(pids)!r}, "a") as file:
                file.write(f"{{os.getpid()}}\\n")
        note()
        code = "import os, time; open({str(pids)!r}, 'a').write(str(os.getpid()) + chr(10)); time.sleep(300)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                note()
            else:
                os._exit(0)
        time.sleep(300)
    """
    code = f"from pathlib import Path; from generator.run import smoke; smoke.run_project(Path({str(project(train))!r}), say=print)"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, cwd=ROOT)
    deadline = time.monotonic() + 60
    while not pids.exists() or pids.read_text().count("\n") < 3:
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert [pid for pid in map(int, pids.read_text().split()) if not is_gone(pid)] == []


def test_an_interpreter_is_named_from_here(project, tmp_path, monkeypatch):
    """The stages run in the project's folder, where the path would lead elsewhere."""
    (tmp_path / "env").symlink_to(sys.prefix)
    monkeypatch.chdir(tmp_path)
    folder = project()
    python = smoke.find_interpreter(folder, "env/bin/python")
    assert python == str(tmp_path / "env/bin/python"), "not where the link leads: an environment is known by its own"
    assert smoke.find_missing_modules(python, folder) == []


def test_a_flood_of_output_keeps_its_beginning_and_its_end(project):
    train = "print('CUDA out of memory')\nfor _ in range(300):\n    print('x' * 100_000)\nprint('the end')\nraise SystemExit(1)"
    with pytest.raises(SmokeError, match="train: out of memory") as failed:
        run(project(train))
    assert "the end" in str(failed.value) and len(str(failed.value)) < 5000


def is_gone(pid: int) -> bool:
    for _ in range(200):
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


def change_plan(folder: Path, *place: str | int, value: object) -> None:
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    *way, last = place
    part = plan
    for key in way:
        part = part[key]
    part[last] = value
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")


@pytest.mark.parametrize("way", ["absolute", "dots", "itself"])
def test_no_folder_outside_the_project_is_emptied(project, tmp_path, way):
    folder, precious = project(), tmp_path / "victim" / "smoke" / "precious"
    precious.parent.mkdir(parents=True)
    precious.write_text("x")
    names = {"absolute": str(tmp_path / "victim"), "dots": "../victim", "itself": "."}
    change_plan(folder, "config", "output_dir", value=names[way])
    with pytest.raises(SourceError, match=r"config\.output_dir .* outside the project"):
        run(folder)
    assert precious.read_text() == "x"


PARALLEL = {
    "strategy": "ddp",
    "nodes": 1,
    "per_node": 2,
    "world_size": 2,
    "cpus_per_task": None,
    "at_load": False,
    "parameter_count_attribute": None,
    "expected": {"wrapper": "x", "world_size": 2, "backend": "gloo", "device": "cpu"},
    "deepspeed": {},
    "accelerate": {},
}


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("config", "output_dir"), "a\0b", r"config\.output_dir is not a string without NUL"),
        (("config", "output_dir"), None, r"config\.output_dir is not a string"),
        (("edits", "environment"), [["A", "b\0"]], r"edits\.environment\.0\.1 is not a string without NUL"),
        (("edits", "environment"), [["A=B", "c"]], "'A=B', which is no variable's name"),
        (("edits", "environment"), [["", "c"]], "'', which is no variable's name"),
        (("edits", "environment"), [["a"]], r"edits\.environment\.0 is not a list of 2"),
        (("visible_devices",), "\0", "visible_devices"),
        (("requirements",), ["a\0b"], r"requirements\.0"),
        (("parallel",), PARALLEL | {"launcher": []}, r"parallel\.launcher is \[\]"),
        (("parallel",), PARALLEL | {"launcher": ["rm", "-rf"]}, r"parallel\.launcher .* none of torchrun, accelerate"),
        (("parallel",), PARALLEL | {"launcher": ["torchrun", "\0"]}, r"parallel\.launcher\.1"),
        (("estimate", "step_seconds"), 10**400, r"estimate\.step_seconds"),
        (("estimate", "step_seconds"), float("inf"), "Infinity"),
    ],
)
def test_a_plan_that_was_tampered_with_starts_nothing(project, place, value, words):
    folder = project("import pathlib; pathlib.Path('CANARY').touch()")
    change_plan(folder, *place, value=value)
    with pytest.raises(SourceError, match=words) as refused:
        run(folder)
    assert refused.value.code == 4 and not (folder / "CANARY").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[" * 200_000 + "]" * 200_000, "recursion"),
        ('{"a":' + "[" * 900 + "]" * 900 + "}", "nests deeper than 100"),
        ('{"step_seconds": NaN}', "NaN is no finite number"),
        ('{"step_seconds": 1e999}', "1e999 is no finite number"),
        ('{"finished_step": 1' + "0" * 5000 + "}", "digits"),
        ('{"answer": "\\ud800"}', "surrogates"),
        (b"\xff\xfe", "decode"),
    ],
    ids=["deep", "nested", "nan", "infinite", "long", "surrogate", "bytes"],
)
@pytest.mark.parametrize("kind", [RunFigures, InferFigures])
def test_results_that_nobody_writes_are_refused(tmp_path, kind, content, words):
    path = tmp_path / "run.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SmokeError, match=words) as failed:
        read_figures(kind, path, "train")
    assert failed.value.message.startswith("train: ended well, but left no readable")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs pipes and /dev/zero")
@pytest.mark.parametrize("kind", ENDLESS_KINDS)
def test_results_that_never_end_are_not_read(tmp_path, kind):
    path = make_endless(tmp_path / "run.json", kind)
    with pytest.raises(SmokeError, match="no file of at most 64 MiB"):
        read_figures(RunFigures, path, "train")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_the_place_of_the_result_is_replaced(project):
    folder = project()
    os.mkfifo(folder / "smoke.json")
    result = run(folder)
    assert validate(folder / "smoke.json", "smoke.json") == result
    assert not list(folder.glob(".smoke.json*"))


def test_a_report_that_is_no_text_is_left_alone(project):
    folder = project()
    (folder / "report.html").write_bytes(b"\xff\xfe<!-- smoke:begin -->\n<!-- smoke:end -->")
    assert run(folder)["comparison"]
    assert (folder / "report.html").read_bytes() == b"\xff\xfe<!-- smoke:begin -->\n<!-- smoke:end -->"


@pytest.mark.parametrize(
    ("text", "failure"), [("new \ud800", UnicodeEncodeError), ("new", IsADirectoryError)], ids=["surrogate", "folder"]
)
def test_a_file_that_cannot_be_replaced_stays_as_it_is(tmp_path, text, failure):
    path = tmp_path / "report.html"
    if failure is IsADirectoryError:
        path.mkdir()
    else:
        path.write_text("old")
    with pytest.raises(failure):
        replace_file(path, text)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert path.is_dir() or path.read_text() == "old"


def test_a_ratio_that_is_no_number_is_none():
    assert compare_value("step time", "s", 5e-324, 1.0).ratio is None
    assert compare_value("step time", "s", 0.0, 1.0).ratio is None


def test_the_lines_for_people(rendered, tmp_path):
    plan = json.loads((rendered / "plan.json").read_text())
    figures = {"schema": 1, "tokens_per_second": 8.0, "peak_memory_gib": 0.5, "versions": {"torch": "2"}}
    answered = {"prompt": "a", "answer": "b\nc", "prompt_tokens": 1, "new_tokens": 8, "seconds": 1.0, "calls": 2}
    inference = InferFigures.model_validate(figures | answered | {"first_call_seconds": 4.0})
    stage = Stage(name="infer", command=("python", "infer.py"), returncode=0, seconds=5.0, output="")
    result = compare(plan, None, inference, [stage])
    assert result.answer == "b\nc"
    times, planned = plan["serving"]["estimate"]["time_seconds"], plan["serving"]["estimate"]
    speed = (planned["tokens_per_step"] - 1) / (times["decode"] + times["launch"])
    head, answer, memory, *_, last = format_lines(result, plan)
    assert head.split() == ["predicted", "measured", "ratio"]
    assert answer.split() == ["answer", f"{speed:.4g}", "8", f"{8 / speed:.2f}", "(tokens/s)"]
    gib = planned["peak_memory_gib"]
    assert memory.split() == ["its", "memory", f"{gib:.4g}", "0.5", f"{0.5 / gib:.2f}", "(GiB)"]
    assert last == "inference: 8 tokens/s, 0.5 GiB at peak; the first call took 4 s"


def test_what_only_reads_is_compared_with_nothing(rendered):
    plan = json.loads((rendered / "plan.json").read_text())
    figures = {"schema": 1, "tokens_per_second": 8.0, "peak_memory_gib": 0.5, "versions": {"torch": "2"}}
    read = {"prompt": "a", "answer": "b", "prompt_tokens": 9, "new_tokens": 0, "seconds": 1.0, "calls": 2}
    assert compare_inference(plan, InferFigures.model_validate(figures | read | {"first_call_seconds": 4.0})) == []


def test_an_answer_of_a_server_is_timed_behind_its_first_token(rendered):
    plan = json.loads((rendered / "plan.json").read_text())
    figures = {"schema": 1, "tokens_per_second": 8.0, "peak_memory_gib": 0.5, "versions": {"torch": "2"}, "ttft_s": 0.5}
    read = {"prompt": "a", "answer": "b", "prompt_tokens": 9, "new_tokens": 5, "seconds": 1.0, "calls": 2}
    figures = InferFigures.model_validate(figures | read | {"first_call_seconds": 4.0})
    answer, _ = compare_inference(plan, figures)
    assert answer.measured == 8.0
    plan["config"]["predicted"] = {"decode_tokens_per_s": 16.0, "peak_memory_gib": 2.0}
    assert [row.ratio for row in compare_inference(plan, figures)] == [0.5, 0.25]


def test_the_range_that_was_predicted_is_compared():
    """P10 and P90 of the plan: inside or outside is said, of a GPU's memory without what its allocator does not see."""
    figures = SimpleNamespace(step_seconds=1.2, tokens_per_second=100.0, peak_memory_gib=30.0)
    estimate = {
        "step_seconds": 1.0,
        "step_seconds_p10": 0.9,
        "step_seconds_p90": 1.1,
        "tokens_per_second": 120.0,
        "peak_memory_gib": 31.0,
        "peak_memory_gib_p10": 30.5,
        "peak_memory_gib_p90": 33.0,
        "allocator_peak_gib": 30.0,
    }
    plan = {"estimate": estimate, "project": {"device": "cuda"}, "case": {"hardware": {"measured": []}}}
    elsewhere = {**plan, "project": {"device": "xla"}}  # what was measured is of the host's process
    assert [row.what for row in compare_training(elsewhere, figures)] == ["step time", "tokens/s"]
    step, speed, memory = compare_training(plan, figures)
    assert step.is_inside is False and (step.p10, step.p90) == (0.9, 1.1)
    assert speed.is_inside is False and (speed.p10, speed.p90) == pytest.approx((120 / 1.1, 120 / 0.9))
    assert memory.is_inside is True and (memory.p10, memory.p90) == (29.5, 32.0)
    assert describe_place(step) == ", outside 0.9–1.1 (P10–P90)" and "inside" in describe_place(memory)
    estimate |= {"step_seconds_p10": None, "step_seconds_p90": None}
    step, speed, _ = compare_training(plan, figures)
    assert step.is_inside is None and speed.is_inside is None and describe_place(step) == ""


@pytest.mark.parametrize(("hub", "offline"), [(True, "1"), (False, None)])
def test_a_hub_that_does_not_answer_is_not_asked_for_each_file(project, monkeypatch, hub, offline):
    """Its library tries six times and waits half a minute, though the cache has all that is needed."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    folder = project(train="import os, sys\nsys.exit(f'offline: {os.environ.get(\"HF_HUB_OFFLINE\")}')")
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["project"]["hub"] = hub
    (folder / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(SmokeError) as caught:
        run(folder)
    assert f"offline: {offline}" in caught.value.hint
