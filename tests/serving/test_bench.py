"""bench.py: what it counts and draws, and the whole of it against a server that is really started."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter
from serving_projects import ANSWERS, BATCH, BENCH, SERVER, make_serving_project, make_tiny_model

from generator.run.figures import BenchFigures


@pytest.fixture
def requests(load):
    return load("serving/bench_requests", "bench_requests")


@pytest.fixture
def figures(load, requests):
    return load("serving/bench_figures", "bench_figures")


def test_quantiles_are_those_of_the_standard_library(figures):
    values = [random.Random(3).expovariate(1.0) for _ in range(1)] + [random.Random(n).random() for n in range(200)]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert figures.describe_quantiles(values) == pytest.approx({"p50": cuts[49], "p90": cuts[89], "p99": cuts[98]})
    assert (
        figures.describe_quantiles([2.0]) == {"p50": 2.0, "p90": 2.0, "p99": 2.0}
        and figures.describe_quantiles([]) is None
    )


def test_arrivals_are_those_of_independent_users(requests):
    arrivals = requests.draw_arrivals(4.0, 4000, seed=1)
    gaps = [after - before for before, after in zip([0.0, *arrivals], arrivals, strict=False)]
    assert (
        arrivals
        == sorted(arrivals)
        == requests.draw_arrivals(4.0, 4000, seed=1)
        != requests.draw_arrivals(4.0, 4000, 2)
    )
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)  # an exponential's is its mean


def test_requests_are_sent_when_they_are_due_and_late_ones_at_once(requests, monkeypatch):
    slept, clock = [], iter([10.0, *[11.0] * 4])  # a second goes by as the threads start
    clocked = SimpleNamespace(perf_counter=lambda: next(clock), sleep=slept.append)
    monkeypatch.setattr(requests, "time", clocked)
    answers, seconds = requests.run_open(lambda number, due: (number, due), [0.0, 1.5, 3.0], lambda: None)
    assert answers == [(0, 10.0), (1, 11.5), (2, 13.0)] and seconds == 1.0
    assert sorted(slept) == [0.0, 0.5, 2.0]


def make_answers(requests, count: int, **more) -> list:
    return [requests.Answer(ttft=0.5, seconds=0.5 + 0.1 * 9, tokens=10, prompt_tokens=7, **more) for _ in range(count)]


def test_a_load_counts_who_was_refused_and_who_failed(requests, figures):
    lost = [requests.fail(time.perf_counter(), problem) for problem in ("refused", "refused", "HTTP 500: no")]
    row = figures.describe_load(make_answers(requests, 4) + lost, 2.0, kind="closed", users=7)
    assert (row["requests"], row["refused"], row["failed"], row["first_failure"]) == (7, 2, 1, "HTTP 500: no")
    assert row["throughput_tokens_per_s"] == 20.0 and row["requests_per_s"] == 2.0
    assert row["tpot_s"]["p99"] == pytest.approx(0.1) and row["ttft_s"]["p50"] == 0.5
    nothing = figures.describe_load(lost, 2.0, kind="open", rate=1.0)
    assert nothing["ttft_s"] is None and nothing["throughput_tokens_per_s"] == 0.0
    assert "2 of 3, 1 failed" in figures.format_loads([nothing])[1]


def make_figures(requests, figures, **more) -> dict:
    closed = [
        figures.describe_load(make_answers(requests, users), 2.0, kind="closed", users=users) for users in (1, 2, 4)
    ]
    arrived = [figures.describe_load(make_answers(requests, 3), 2.0, kind="open", rate=rate) for rate in (0.5, 1.5)]
    numbers = dict.fromkeys(("decode_tokens_per_s", "prefill_tokens_per_s", "throughput_tokens_per_s"), 10.0)
    return {
        **numbers,
        "ttft_s": 0.5,
        "peak_memory_gib": 1.0,
        "baseline": {"decode_tokens_per_s": 5.0},
        "baseline_tokens_per_s": 5.0,
        "predicted": {"decode_tokens_per_s": 8.0, "throughput_tokens_per_s": 30.0},
        "loads": closed + arrived,
        **more,
    }


def test_the_table_has_measured_predicted_ratio_and_baseline(requests, figures):
    table = figures.format_comparison(make_figures(requests, figures))
    assert table[1].split() == ["decode,", "one", "request", "10", "8", "1.25", "5", "tokens/s"]
    assert table[3].split() == ["time", "to", "first", "token", "0.5", "s"]


@pytest.mark.parametrize("bare", [False, True])
def test_the_plot_is_svg_with_every_point_inside(load, requests, figures, bare):
    plot = load("serving/bench_plot", "bench_plot")
    lost = figures.describe_load([requests.fail(0.0, "refused")], 2.0, kind="open", rate=1.0)
    least = {"predicted": {}, "baseline": None, "baseline_tokens_per_s": None, "loads": [lost]}
    tree = ElementTree.fromstring(plot.draw_bench(make_figures(requests, figures, **(least if bare else {}))))
    circles = [node.attrib for node in tree.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(circles) == (0 if bare else 3 + 1 + 3 + 2 * 2)
    for circle in circles:
        assert plot.LEFT <= float(circle["cx"]) <= plot.WIDTH - plot.RIGHT
        assert plot.TOP <= float(circle["cy"]) <= plot.HEIGHT - plot.BOTTOM


def test_an_axis_ends_at_a_round_number_above_all(load, requests, figures):
    plot = load("serving/bench_plot", "bench_plot")
    for largest in (0.003, 0.99, 1.0, 7.9, 10.0, 123.0, 98765.0):
        end = plot.choose_end(largest)
        assert largest <= end <= 2.6 * largest and float(f"{end / 4:.2g}") == pytest.approx(end / 4)


def test_the_peak_on_amds_gpus_is_read_from_their_driver(load, requests, monkeypatch, tmp_path):
    """vLLM's metrics have none, and the host's memory is not the device's."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    server = load("serving/bench_server", "bench_server")
    monkeypatch.setattr(server, "AMD_CARDS", tmp_path)
    assert server.DeviceMemory().peak_gib is None
    for card in ("card0", "card1"):
        (tmp_path / card / "device").mkdir(parents=True)
        (tmp_path / card / "device" / "mem_info_vram_used").write_text(f"{1 << 30}\n")
        (tmp_path / card / "device" / "mem_info_gtt_used").write_text("0\n")
    (tmp_path / "card1" / "device" / "product_name").write_text("AMD Instinct MI300X OAM\n")
    device = server.DeviceMemory()
    assert device.peak_gib == 0 and device.names == ["AMD Instinct MI300X OAM"]
    for used in (5 << 30, 2 << 30):
        (tmp_path / "card0" / "device" / "mem_info_vram_used").write_text(f"{used}\n")
        device.look()
    assert device.peak_gib == 4.0


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    if find_spec("uvicorn") is None:
        pytest.skip("the server needs uvicorn, which is not in this environment")
    folder = tmp_path_factory.mktemp("bench")
    modules = BATCH | ANSWERS | SERVER | BENCH
    model = make_tiny_model(folder / "m")
    return make_serving_project(folder / "p", model, modules, threads=1, max_waiting=0, max_concurrency=3)


SLOW = """
import json, sys, time
print(json.dumps({"load_s": 1.0}), flush=True)
for number, line in enumerate(sys.stdin):
    time.sleep(60 * number)
    print(json.dumps({"number": number}), flush=True)
"""


def test_a_baseline_that_takes_too_long_is_not_waited_for(load):
    """What is said of all measuring (--within) holds where pipeline() takes minutes for an answer."""
    load("sources")
    child = load("serving/bench_child", "bench_child")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SLOW], **pipes) as process:
        baseline = child.Baseline(process)
        assert baseline.loaded == {"load_s": 1.0} and baseline.ask("a", 1, 30.0) == {"number": 0}
        assert baseline.ask("b", 1, 0.1) is None
        process.kill()


ENDED = """
import sys
print('{"load_s": 1.0}', flush=True)
sys.stdin.readline()
print('{"load', end="", flush=True)
"""


def test_a_baseline_that_ends_costs_nothing_but_itself(load, monkeypatch, tmp_path, capfd):
    """Killed for want of memory beside the server, it ended bench.py too, in a BrokenPipeError, with all that was measured."""
    load("sources")
    child = load("serving/bench_child", "bench_child")
    (tmp_path / "bench_baseline.py").write_text(ENDED)
    monkeypatch.setattr(child, "find_source", lambda config, key: tmp_path)
    with child.start_baseline(tmp_path, {}) as baseline:
        for _ in range(3):
            assert baseline.ask("a", 1, 30.0) is None
            baseline.process.wait()
            baseline.lines.put("")
    assert "transformers.pipeline() ended with 0: what follows is measured without it" in capfd.readouterr().err


ORDER = [
    "serving/own_server",
    "serving/progress_line",
    *(f"serving/bench_{name}" for name in ("requests", "baseline", "plot", "figures", "machine")),
]
ORDER += [*(f"serving/bench_{name}" for name in ("report", "child", "server", "texts")), "serving/bench"]
"""Each behind those that it imports."""


class Answering:
    """A server that answers at once, and pipeline() that does not: the client and the baseline of bench.py."""

    end = time.perf_counter() + 3600
    process = SimpleNamespace(kill=lambda: None)

    def __init__(self, requests, answered: int) -> None:
        self.answer, self.answered = requests.Answer(0.1, 0.2, 4, 8), answered

    def complete(self, prompt, new_tokens):
        return self.answer

    def ask(self, prompt, new_tokens, seconds):
        assert 0 < seconds <= 3600
        self.answered -= 1
        return {"ttft_s": 1.0} if self.answered >= 0 else None


@pytest.mark.parametrize(
    "answered, left_out", [(0, ["transformers.pipeline()"]), (1, ["transformers.pipeline()"]), (2, [])]
)
def test_bench_goes_on_without_a_baseline_that_takes_too_long(load, monkeypatch, answered, left_out):
    leaves = ("quiet_imports", "config_file", "sources", "stop_tokens", "template_limits", "terminal")
    for leaf in (
        *leaves,
        *("serving/prompts", "serving/api_key", "serving/weights_identity"),
        *ORDER,
    ):
        if leaf == "serving/bench":
            monkeypatch.setattr(sys.modules["config_file"], "read_config", dict)
        load(leaf, leaf.rpartition("/")[2])
    bench = sys.modules["bench"]
    one = bench.Bench.__new__(bench.Bench)
    both = Answering(sys.modules["bench_requests"], answered)
    one.args = SimpleNamespace(repeats=4, prompt_tokens=8, new_tokens=4, log=None)
    one.client, one.process, one.line, one.done = both, None, SimpleNamespace(show=lambda text: None), 0
    one.texts, one.ours, one.theirs, one.left_out = SimpleNamespace(draw=str), [], [], []
    one.measure_alone(both)
    assert len(one.ours) == 5 and len(one.theirs) == answered and one.left_out == left_out


def run_bench(project: Path, *flags: str) -> subprocess.Popen:
    command = [sys.executable, "bench.py", "--prompt_tokens", "20", "--new_tokens", "12", "--seconds", "1", *flags]
    pipe = subprocess.PIPE
    quiet = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(command, cwd=project, stdout=pipe, stderr=pipe, text=True, env=quiet)


@pytest.mark.slow
def test_a_server_is_measured_beside_the_pipeline_and_ended(project):
    with run_bench(project, "--users", "5") as process:
        stdout, stderr = process.communicate(timeout=550)
    assert process.returncode == 0, stderr
    content = json.loads((project / "bench.json").read_text())
    measured = TypeAdapter(BenchFigures).validate_python(content)
    assert measured.baseline_tokens_per_s and measured.load_s and measured.peak_memory_gib
    assert [row.users for row in measured.loads if row.kind == "closed"] == [1, 2, 4, 5]
    assert next(row.refused for row in measured.loads if row.users == 5) > 0  # three at once, and none may wait
    assert all(row.failed == 0 for row in measured.loads)
    rates = [row.rate for row in measured.loads if row.kind == "open"]
    assert len(rates) == 4 and rates == sorted(rates)
    assert content["first_request_ttft_s"] > 0 and content["machine"]["cores"] > 0 and content["new_tokens"] == 12
    ElementTree.parse(project / "bench.svg")
    assert "decode, one request" in stdout and "pipeline()" in stdout
    assert not list_servers(project)


@pytest.mark.slow
def test_ctrl_c_ends_the_server_too(project):
    (project / "bench.json").unlink(missing_ok=True)
    with run_bench(project, "--no_baseline", "--seconds", "60") as process:
        while not list_servers(project):
            time.sleep(0.05)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        stderr = process.communicate(timeout=120)[1]
    assert process.returncode == 130 and "stopped by SIGINT" in stderr and "Traceback" not in stderr, stderr
    assert not list_servers(project) and not (project / "bench.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["ctrl-c", "the server dies"])
def test_what_was_measured_before_the_end_is_kept(project, killed):
    report = project / "early.json"
    report.unlink(missing_ok=True)
    with run_bench(project, "--no_baseline", "--seconds", "60", "--within", "100", "--report", "early.json") as process:
        assert process.stderr
        said = ""
        while "loads: " not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        time.sleep(2.0)
        if killed:
            for number in list_servers(project):
                os.kill(int(number), signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == (1 if killed else 130) and "Traceback" not in stderr, stderr
    content = json.loads(report.read_text())
    measured = TypeAdapter(BenchFigures).validate_python(content)
    assert measured.decode_tokens_per_s > 0 and "measuring takes 1:40 at most" in said
    assert ("the server ended with" if killed else "stopped by SIGINT") in content["ended_early"]
    assert "Not all of it" in stdout and not list_servers(project)


@pytest.mark.slow
def test_all_of_it_ends_in_the_time_that_is_given(project):
    with run_bench(project, "--no_baseline", "--seconds", "60", "--within", "6", "--report", "bounded.json") as process:
        assert process.stderr
        while "measuring takes" not in process.stderr.readline():
            pass
        begun = time.monotonic()
        stderr = process.communicate(timeout=200)[1]
        seconds = time.monotonic() - begun
    assert process.returncode == 0, stderr
    content = json.loads((project / "bounded.json").read_text())
    assert content["within"] == 6 and content["ended_early"] is None and content["loads"] and seconds < 6 + 25
    assert all(row["failed"] == 0 for row in content["loads"])


def list_servers(project: Path) -> list[str]:
    """Processes that run server.py in the project."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if b"server.py" in (place / "cmdline").read_bytes() and (place / "cwd").readlink() == project:
                found.append(place.name)
        except OSError:
            continue
    return found
