"""A project of two CPU nodes, trained by its launchers on two hosts that know each other by a cable: `make test-hosts` (root, iproute2).

``PERFGEN_MPIRUN``: where Open MPI's mpirun is; ``PERFGEN_SLURM``: a folder with Slurm. The target brings both.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hosts import NAMES, NET, Hosts, make_hosts
from slurm import start_slurm
from test_loop_projects import inputs as inputs
from test_loop_projects import make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hosts,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]


@pytest.fixture
def hosts(tmp_path):
    with make_hosts(tmp_path / "hosts") as made:
        yield made


@pytest.fixture(scope="module")
def alone(inputs, tmp_path_factory) -> list[float]:
    """Losses of one process."""
    project = prepare(make(inputs, tmp_path_factory.mktemp("alone") / "p", "single", 1, "dense"))
    words = [sys.executable, "train.py"]
    subprocess.run(words, cwd=project, env=os.environ | {"HF_HUB_OFFLINE": "1"}, check=True, capture_output=True)
    return read_losses(project)


def prepare(project: Path) -> Path:
    """Its environment is that of the tests; a host that does not answer is given up after seconds."""
    (project / ".venv").symlink_to(sys.prefix)
    leaf = project / "heartbeat.py"
    if leaf.exists():
        text = leaf.read_text().replace("BEAT_SECONDS = 10.0", "BEAT_SECONDS = 0.5")
        leaf.write_text(text.replace("SILENT_SECONDS = 300.0", "SILENT_SECONDS = 10.0"))
    return project


def read_losses(project: Path) -> list[float]:
    return json.loads((project / "runs/run.json").read_text())["losses"]


def start(hosts: Hosts, project: Path, *words: str) -> subprocess.Popen:
    environment = os.environ | {"PATH": f"{hosts.tools}:{os.environ['PATH']}"}
    out = (project / "log").open("a")  # two may write to it
    return subprocess.Popen(
        words, cwd=project, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
    )


def finish(process: subprocess.Popen, project: Path, seconds: float = 300) -> str:
    """What it printed. What has not ended by then is ended here, and on both hosts with them (make_hosts)."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"not ended after {seconds:.0f} s:\n{(project / 'log').read_text()[-20000:]}")
    return (project / "log").read_text()


@pytest.mark.parametrize("form", ["ddp", "pipeline"])
def test_ssh_trains_to_the_losses_of_one_process(inputs, alone, hosts, tmp_path, form):
    project = prepare(make(inputs, tmp_path / "p", form, "2x1", "dense"))
    process = start(hosts, project, "bash", "launch/ssh.sh", *NAMES)
    output = finish(process, project)
    assert process.returncode == 0, output[-5000:]
    assert read_losses(project) == pytest.approx(alone, abs=1e-4)
    assert not [pid for name in NAMES for pid in hosts.list_processes(name)]


@pytest.mark.parametrize("meeting", ["node-1", f"{NET}.1"])
def test_each_host_starts_train_sh_itself(inputs, alone, hosts, tmp_path, meeting):
    """By its address torchrun does not know the first one, whose name stands for 127.0.1.1 there: none had the store."""
    project = prepare(make(inputs, tmp_path / "p", "ddp", "2x1", "dense"))
    words = ("env", f"MASTER_ADDR={meeting}", "OMP_NUM_THREADS=1", "HF_HUB_OFFLINE=1", "./train.sh")
    begun = [start(hosts, project, str(hosts.tools / "on"), name, *words) for name in NAMES]
    output = [finish(process, project) for process in begun]
    assert [process.returncode for process in begun] == [0, 0], output[-1][-5000:]
    assert read_losses(project) == pytest.approx(alone, abs=1e-4)


@pytest.mark.skipif("PERFGEN_MPIRUN" not in os.environ, reason="PERFGEN_MPIRUN names Open MPI's mpirun")
def test_mpirun_trains_to_the_losses_of_one_process(inputs, alone, hosts, tmp_path):
    """Open MPI on node-1 starts one launcher on each host, through that host's ssh."""
    project = prepare(make(inputs, tmp_path / "p", "pipeline", "2x1", "dense"))
    (project / "hosts").write_text("# two\n" + "".join(f"{name}\n" for name in NAMES))
    tools = Path(os.environ["PERFGEN_MPIRUN"]).parent
    as_root = [f"{name}_ALLOW_RUN_AS_ROOT{more}=1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")]
    words = ("env", f"PATH={tools}:{hosts.tools}:{os.environ['PATH']}", *as_root, "HF_HUB_OFFLINE=1")
    process = start(hosts, project, str(hosts.tools / "on"), "node-1", *words, "bash", "launch/mpi.sh", "hosts")
    output = finish(process, project)
    assert process.returncode == 0, output[-5000:]
    assert read_losses(project) == pytest.approx(alone, abs=1e-4)
    assert not any(hosts.wait_for_end(name, 30) for name in NAMES)  # Open MPI's own daemon ends after mpirun


def test_a_lost_node_is_named_and_nothing_runs_on(inputs, hosts, tmp_path):
    """Its cable is cut in a step. Both ends stop; when it is back the run goes on from the last complete checkpoint."""
    project = prepare(make(inputs, tmp_path / "p", "ddp", "2x1", "dense"))
    words = ("bash", "launch/ssh.sh", *NAMES, "--", "--save_steps", "2", "--max_steps")
    process = start(hosts, project, *words, "4000")
    end = time.monotonic() + 240
    while not list(project.glob("runs/checkpoint-*/complete.json")) and time.monotonic() < end:
        assert process.poll() is None, (project / "log").read_text()[-5000:]
        time.sleep(0.5)
    hosts.cut("node-2")
    output = finish(process, project)
    assert process.returncode and "node-2 ended with 255" in output
    assert "has not answered for 10 s" in output
    assert not hosts.wait_for_end("node-1", 60)
    assert not hosts.wait_for_end("node-2", 90, but="torchrun")
    assert "is cut off: the launcher's store at 10.77.0.1" in (project / "log").read_text()
    # torchrun there waits for the store until Linux gives the connection up, after 15 minutes unless it is told otherwise
    subprocess.run([hosts.tools / "on", "node-2", "sysctl", "-qw", "net.ipv4.tcp_retries2=3"], check=True)
    assert not hosts.wait_for_end("node-2", 300)
    last = max(int(path.parent.name[11:]) for path in project.glob("runs/checkpoint-*/complete.json"))
    hosts.mend("node-2")
    process = start(hosts, project, *words, str(last + 2))
    output = finish(process, project)
    assert process.returncode == 0, output[-5000:]
    assert json.loads((project / "runs/run.json").read_text())["resumed_from"] == last


def test_a_process_that_is_killed_is_named_on_the_other_host(inputs, hosts, tmp_path):
    """At once: silence counts after 300 s, which nothing here makes less."""
    project = make(inputs, tmp_path / "p", "ddp", "2x1", "dense")
    (project / ".venv").symlink_to(sys.prefix)
    process = start(hosts, project, "bash", "launch/ssh.sh", *NAMES, "--", "--save_steps", "2", "--max_steps", "4000")
    end = time.monotonic() + 240
    while not list(project.glob("runs/checkpoint-*/complete.json")) and time.monotonic() < end:
        assert process.poll() is None, (project / "log").read_text()[-5000:]
        time.sleep(0.5)
    (number,) = [n for n in hosts.list_processes("node-2") if "train.py" in read_command(n).split()[2:3]]
    os.kill(number, signal.SIGKILL)
    output = finish(process, project, 90)
    cause = f"rank 1 (node-2, process {number}) has ended without a word: it was killed"
    assert process.returncode and cause in output, output[-5000:]
    assert not any(hosts.wait_for_end(name, 60) for name in NAMES)


def hasten_meeting(project: Path) -> None:
    for name, slow, fast in (
        ("train.sh", "read_timeout=600", "read_timeout=20,join_timeout=20"),
        ("meeting.py", "TOLD_SECONDS = 30.0", "TOLD_SECONDS = 3.0"),
    ):
        text = (project / name).read_text()
        assert slow in text
        (project / name).write_text(text.replace(slow, fast))


def test_a_node_that_does_not_come_is_named_by_who_does(inputs, hosts, tmp_path):
    """Both are given another first node: each waits alone. A third name stands for an address that nobody has."""
    project = prepare(make(inputs, tmp_path / "p", "ddp", "2x1", "dense"))
    hasten_meeting(project)
    for addresses, expected in (
        (NAMES, [f"1 of 2 nodes have come to {name}:29500: {name}\nThose that are missing" for name in NAMES]),
        (
            (NAMES[0], f"{NET}.9"),
            [
                f"1 of 2 nodes have come to {NAMES[0]}:29500: {NAMES[0]}\nThose that are missing",
                f"{NAMES[1]} has not reached the first node, {NET}.9:29500: No route to host\nMASTER_ADDR is to be",
            ],
        ),
    ):
        (project / "log").unlink(missing_ok=True)
        begun = [
            start(hosts, project, str(hosts.tools / "on"), name, "env", f"MASTER_ADDR={address}", "./train.sh")
            for name, address in zip(NAMES, addresses, strict=True)
        ]
        output = [finish(process, project) for process in begun][-1]
        assert [process.returncode for process in begun] == [1, 1] and "Traceback" not in output, output
        assert all(f"meeting.py: {line}" in output for line in expected), output


SLOW = """
import time

from transformers.trainer_callback import CallbackHandler

begin = CallbackHandler.on_step_begin


def wait(*arguments, **keywords):
    time.sleep(15)
    return begin(*arguments, **keywords)


CallbackHandler.on_step_begin = wait
"""


@pytest.mark.skipif("PERFGEN_SLURM" not in os.environ, reason="PERFGEN_SLURM names no folder with Slurm")
def test_slurm_queues_a_run_again_that_goes_on_to_its_end(inputs, hosts, tmp_path):
    """Told before its time limit (of six minutes, up to one too early) the job saves; nobody starts it again."""
    project = prepare(make(inputs, tmp_path / "p", "ddp", "2x1", "dense"))
    (project / "slow.py").write_text(SLOW)
    (project / "train.py").write_text(f"import slow\n{(project / 'train.py').read_text()}")
    asked = ("--mem=3000", "--cpus-per-task=1", "--time=6", "--signal=B:USR1@150")
    words = ("--max_steps", "18", "--save_steps", "100")
    with start_slurm(hosts, Path(os.environ["PERFGEN_SLURM"]), tmp_path / "slurm") as slurm:
        slurm.ask("env", "HF_HUB_OFFLINE=1", "sbatch", *asked, "train.sbatch", *words, folder=project)
        end = time.monotonic() + 2400
        while slurm.ask("squeue", "-h") and time.monotonic() < end:
            time.sleep(2)
        (log,) = project.glob("slurm-*.out")
        output = log.read_text(errors="replace")
        assert not slurm.ask("squeue", "-h"), output[-5000:]
    stops = [int(step) for step in re.findall(r"^stopped by SIGTERM after step (\d+): ", output, re.MULTILINE)]
    report = json.loads((project / "runs/run.json").read_text())
    assert stops and report["resumed_from"] == stops[-1] and report["finished_step"] == 18
    assert all(f"checkpoint-{step}, compared with its seal" in output for step in stops)


def read_preflight(hosts: Hosts, project: Path) -> tuple[int, str]:
    """What preflight.py says on both hosts."""
    (project / "log").unlink(missing_ok=True)
    words = ("env", f"MASTER_ADDR={NAMES[0]}", "PROGRAM=preflight.py", "OMP_NUM_THREADS=1", "./train.sh")
    begun = [start(hosts, project, str(hosts.tools / "on"), name, *words) for name in NAMES]
    output = [finish(process, project) for process in begun]
    return begun[0].returncode, output[-1]


@pytest.mark.skipif(shutil.which("tc") is None, reason="needs tc, of iproute2")
def test_preflight_names_a_slow_cable(inputs, hosts, tmp_path):
    """What it lets through is seen between nodes alone: a pair of a host does not go over it. Linux says 10 Gbit/s of the port."""
    project = prepare(make(inputs, tmp_path / "p", "ddp", "2x2", "dense"))
    _, whole = read_preflight(hosts, project)
    assert "4 processes on 2 nodes" in whole and "4 links" in whole, whole
    rates = read_rates(whole)
    assert set(rates) == {"0-1 (node-1)", "2-3 (node-2)", "0-2 (node-1 to node-2)", "1-3 (node-1 to node-2)"}
    assert "PROBLEM link" not in whole and "SIGTERM known to all" in whole, whole
    for change, rate, least in (("add", "50mbit", 0.01), ("change", "1mbit", 0.0005)):
        for name in NAMES:
            slow = f"tc qdisc {change} dev net0 root tbf rate {rate} burst 64kb latency 400ms"
            subprocess.run([hosts.tools / "on", name, "sh", "-c", slow], check=True)
        code, slow = read_preflight(hosts, project)
        now = read_rates(slow)
        assert code and all(now[pair] > 0.03 for pair in ("0-1 (node-1)", "2-3 (node-2)")), slow
        for pair in ("0-2 (node-1 to node-2)", "1-3 (node-1 to node-2)"):
            assert now[pair] < least and f"link {pair} {now[pair]:.3g} GB/s, predicted 0." in slow, slow
            named = rf"PROBLEM link {re.escape(pair)}: 0.00\d+ GB/s, expected 0.\d+ \(net0 of node-\d: 10000 Mbit/s by Linux\)"
            assert re.search(named, slow), slow
        assert "PROBLEM link 0-1" not in slow and "PROBLEM link 2-3" not in slow, slow
        taken = re.search(r"4 processes on 2 nodes, (\d+) s", slow)
        assert taken and int(taken[1]) < 60, slow


def test_preflight_names_a_host_that_computes_slowly(inputs, hosts, tmp_path):
    """As a container with a quota does: stopped for most of each tenth of a second. Single products are as fast as ever."""
    project = prepare(make(inputs, tmp_path / "p", "ddp", "2x1", "dense"))
    ended = threading.Event()

    def hold_back() -> None:
        while not ended.is_set():
            slowed = [pid for pid in hosts.list_processes(NAMES[1]) if "preflight.py" in read_command(pid).split()[2:3]]
            for signum, seconds in ((signal.SIGSTOP, 0.09), (signal.SIGCONT, 0.01)):
                for pid in slowed:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signum)
                time.sleep(seconds)

    thread = threading.Thread(target=hold_back)
    thread.start()
    try:
        code, output = read_preflight(hosts, project)
    finally:
        ended.set()
        thread.join()
    assert code and re.search(r"PROBLEM rank 1 \(node-2\) computes at \d+% of what others do", output), output
    assert "PROBLEM rank 0" not in output, output


def read_command(pid: int) -> str:
    with suppress(OSError):  # it ends now
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def read_rates(output: str) -> dict[str, float]:
    found = re.findall(r"^link (.*) ([0-9.e-]+) GB/s(?:, predicted .*)?$", output, re.MULTILINE)
    return {pair: float(rate) for pair, rate in found}
