"""preflight.py: what it finds wrong, and a run of it over gloo."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from projects import render_small_project

TORCHRUN = Path(sys.executable).with_name("torchrun")


def render_processes(folder: Path, count: int) -> Path:
    pins = (("compile", "off"), ("precision", "fp32"), ("parallelism", "ddp"))
    return render_small_project(folder, hardware=f"{count}xcpu:1", pins=pins)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return render_processes(tmp_path_factory.mktemp("preflight"), 4)


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def preflight(project, monkeypatch_module):
    monkeypatch_module.syspath_prepend(project)  # as where it is started
    monkeypatch_module.delitem(sys.modules, "config_file", raising=False)
    spec = importlib.util.spec_from_file_location("preflight_of_project", project / "preflight.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_report(**more) -> dict:
    """Four processes on two nodes, with nothing wrong."""
    ranks = [
        {
            "host": f"node-{n // 2}",
            "versions": {"torch": "2.13.0", "nccl": "2.28"},
            "disk_free_bytes": 2**50,
            "shm_free_bytes": 2**33,
            "products_per_s": 100.0,
            "clock": 1000.0,
        }
        for n in range(4)
    ]
    links = {"0-1": 200e9, "2-3": 200e9, "0-2": 40e9, "1-3": 40e9}
    return {"ranks": ranks, "links": links, "signal_seconds": 0.01} | more


def change_rank(n: int, **changes) -> dict:
    report = make_report()
    report["ranks"][n] |= changes
    return report


def change_links(**rates: float) -> dict:
    return make_report(links=make_report()["links"] | {name.replace("to", "-"): rate for name, rate in rates.items()})


@pytest.mark.parametrize(
    ("seconds", "elements"), [(1e-4, 1 << 20), (0.05, 163_840), (2.0, 1 << 14)], ids=["fast", "slow", "very slow"]
)
def test_less_is_sent_over_a_slow_link(preflight, monkeypatch, seconds, elements):
    """4 MiB over a link of 1 Mbit/s took half a minute each time: it was not named within two minutes and a half."""
    sent, clock = [], [0.0]

    def pass_on(tensor):
        sent.append(tensor.numel())
        clock[0] += seconds

    monkeypatch.setattr(preflight.time, "perf_counter", lambda: clock[0])
    assert preflight.choose_elements(pass_on) == pytest.approx(elements, abs=1)
    assert sent == [preflight.PROBE_ELEMENTS] * 2


def test_nothing_wrong_is_nothing_said(preflight):
    assert preflight.find_problems(make_report()) == []


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (change_rank(2, versions={"torch": "2.12.0", "nccl": "2.28"}), "torch: 2.12.0 on rank 2 (node-1), 2.13.0"),
        (change_rank(2, disk_free_bytes=1), "node-1: 0.0 GiB free"),
        (change_rank(0, shm_free_bytes=64 << 20), "node-0: 64 MiB free in /dev/shm"),
        (change_rank(3, clock=1010.0), "clocks differ by 10.0 s"),
        (change_rank(1, products_per_s=30.0), "rank 1 (node-0) computes at 30% of what others do"),
        (make_report(signal_seconds=float("inf")), "SIGTERM at the last process did not reach"),
    ],
)
def test_each_problem_is_named(preflight, monkeypatch, report, words):
    monkeypatch.setitem(preflight.PLANNED, "disk_gib", 1.0)
    problems = preflight.find_problems(report)
    assert len(problems) == 1 and words in problems[0]


def test_a_slow_link_and_a_slow_rank_are_named(preflight, monkeypatch):
    monkeypatch.setattr(preflight, "PLANNED", {"disk_gib": 0, "node_gb_per_s": 220.0, "nodes_gb_per_s": 45.0})
    (link,) = preflight.find_problems(change_links(**{"2to3": 20e9}))
    assert link == "link 2-3 (node-1): 20 GB/s, expected 220"
    problems = preflight.find_problems(change_links(**{"2to3": 20e9, "0to2": 2e9}))
    assert "link 0-2 (node-0 to node-1): 2 GB/s, expected 45" in problems
    assert len(problems) == 3 and problems[-1].startswith("rank 2 (node-1): each of its links is slow")


def test_between_two_cpu_hosts_the_port_says_what_is_expected(preflight, monkeypatch):
    """There is no third host to compare with. Two processes share a port; a fast port waits for the CPU."""
    monkeypatch.setattr(preflight, "PLANNED", {"disk_gib": 0})
    report = make_report(links={"0-1": 2e9, "2-3": 2e9, "0-2": 0.5e9, "1-3": 0.5e9})
    for rank in report["ranks"]:
        rank |= {"port": "eth0", "port_bytes_per_s": 1.25e9, "tcp_bytes_per_s": 3e9}
    assert preflight.find_problems(report) == []
    report["links"] |= {"0-2": 0.05e9, "1-3": 0.05e9}  # a cable at 1 Gbit/s
    slow = "GB/s, expected 0.625 (eth0 of node-0: 10000 Mbit/s by Linux)"
    assert preflight.find_problems(report) == [
        f"link {pair} (node-0 to node-1): 0.05 {slow}" for pair in ("0-2", "1-3")
    ]
    for rank in report["ranks"]:
        rank["tcp_bytes_per_s"] = 0.1e9
    assert preflight.find_problems(report) == []
    report["ranks"][3] |= {"port_bytes_per_s": 0.0}  # a virtual machine's: compared with each other
    assert preflight.predict_rate("1-3", report["ranks"]) == (None, "")


def test_a_slow_host_of_two_is_named(preflight):
    """It has half of the processes: their median would be between both."""
    report = make_report()
    for rank in report["ranks"][2:]:
        rank["products_per_s"] = 40.0
    expected = [f"rank {n} (node-1) computes at 40% of what others do" for n in (2, 3)]
    assert preflight.find_problems(report) == expected


def test_a_slow_rank_of_few_is_named_beside_the_others(preflight, monkeypatch):
    """Of three hosts that nobody said the rate of, two links are slow: their median would be the slow one."""
    monkeypatch.setattr(preflight, "PLANNED", {"disk_gib": 0})
    ranks = [rank | {"host": f"node-{n}"} for n, rank in enumerate(make_report()["ranks"])]
    for count in (3, 4):
        rates = {f"{n}-{(n + 1) % count}": 1.5e9 + n * 1e8 for n in range(count)} | {f"{count - 1}-0": 1e7}
        rates[f"{count - 2}-{count - 1}"] = 1e7
        report = make_report(links=rates) | {"ranks": ranks[:count]}
        *links, rank = preflight.find_problems(report)
        assert len(links) == 2 and rank.startswith(f"rank {count - 1} (node-{count - 1}): each of its links is slow")


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_every_pair_of_neighbours_has_its_turn(preflight, nodes):
    """Those of a node, and of several nodes each process with its like on the next: no port of a node goes untried."""
    for each in range(1 if nodes > 1 else 2, 9):
        rounds = preflight.list_rounds(nodes * each, each)
        pairs = [pair for pairs in rounds for pair in pairs]
        inside, between = (count if count > 2 else count - 1 for count in (each, nodes))
        assert len(pairs) == len(set(pairs)) == nodes * inside + each * between
        for pairs in rounds:
            busy = [rank for pair in pairs for rank in pair]
            assert len(busy) == len(set(busy))
            across = {one // each != other // each for one, other in pairs}
            assert across == {False} or (across == {True} and {one % each for one, _ in pairs} == set(range(each)))
            assert all(one % each == other % each for one, other in pairs if across == {True})


@pytest.mark.slow
def test_what_is_wrong_stands_last(tmp_path):
    """Below torchrun's own traceback."""
    project = render_processes(tmp_path, 2)
    config = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    config["processes"]["preflight"]["disk_gib"] = 2.0**30
    (project / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    done = run_preflight(project, 2)
    assert done.returncode and "PROBLEM" in done.stdout
    assert "GiB free on the disk" in done.stderr.rpartition("Root Cause")[2]


def run_preflight(project: Path, count: int, *flags: str) -> subprocess.CompletedProcess[str]:
    words = [TORCHRUN, "--standalone", "--local-addr=localhost", "--nproc-per-node", str(count), "preflight.py", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.core), 4])
def test_it_measures_links_and_rehearses_the_signal(count, tmp_path):
    project = render_processes(tmp_path, count)
    done = run_preflight(project, count, "--json")
    report = json.loads(done.stdout)
    assert (done.returncode == 0) == (report["problems"] == []), done.stderr
    assert len(report["ranks"]) == count and len(report["links"]) == (count if count > 2 else 1)
    assert min(report["links"].values()) > 1e6 and report["all_reduce_bytes_per_s"] > 1e6
    assert report["signal_seconds"] < 30 and report["seconds"] < 60


@pytest.mark.slow
def test_a_full_disk_ends_it_with_an_error(tmp_path):
    project = render_processes(tmp_path, 2)
    path = project / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["processes"]["preflight"]["disk_gib"] = 1e9
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    done = run_preflight(project, 2)
    assert done.returncode != 0 and "PROBLEM" in done.stdout and "checkpoints take 1000000000.0" in done.stdout
