"""What each launcher's file of a project really starts: read by its own reader, its command run with a recorder as launcher.

srun, ssh, mpirun, scancel and scontrol are not installed here (tests/test_two_hosts.py has the real ones): stand-ins refuse an option
that their manuals do not have, and do with a signal what Slurm 22.05 was seen to do.
"""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

RECORDER = """#!{python}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps(dict(argv=[os.path.basename(sys.argv[0]), *sys.argv[1:]], env=dict(os.environ))) + "\\n")
"""
SRUN = """#!{python}
import os, signal, subprocess, sys
words = sys.argv[1:]
while words and words[0].startswith("-"):
    assert words.pop(0).partition("=")[0] == "--kill-on-bad-exit", sys.argv
running = subprocess.Popen(words, start_new_session=True)
open(os.environ["STEP"], "w").write(str(running.pid))
signal.signal(signal.SIGTERM, lambda *_: os.killpg(running.pid, signal.SIGKILL))  # "forcing job termination"
sys.exit(running.wait() % 256)
"""
SCANCEL = """#!{python}
import os, signal, sys
assert sys.argv[1:] == ["--signal=TERM", "7"], sys.argv
os.killpg(int(open(os.environ["STEP"]).read()), signal.SIGTERM)
"""
SCONTROL = """#!/bin/sh
if [ "$1 $2" = "show hostnames" ]; then printf '%s\\n' $3; else echo "$@" >>"$REQUEUED"; fi
"""
SSH = """#!{python}
import os, signal, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    flag = words.pop(0)
    assert flag in ("-tt", "-o"), sys.argv
    if flag == "-o":
        assert words.pop(0).partition("=")[0] in ("BatchMode", "ServerAliveInterval", "ServerAliveCountMax"), sys.argv
host, command = words
kept = {{name: os.environ[name] for name in ("PATH", "RECORD")}} | {{"HOST": host}}
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as of a login: the tests themselves may run under nohup
running = subprocess.Popen(["/bin/sh", "-c", command], env=kept, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: os.killpg(running.pid, signal.SIGHUP))  # the connection closes, and with it the terminal
sys.exit(running.wait())
"""
MPIRUN = """#!{python}
import argparse, os, subprocess, sys
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--hostfile", required=True)
parser.add_argument("-n", type=int, required=True)
parser.add_argument("--map-by", required=True)
parser.add_argument("--bind-to")
parser.add_argument("-x", action="append", default=[])
parser.add_argument("command", nargs=argparse.REMAINDER)
asked = parser.parse_args()
hosts = open(asked.hostfile).read().split()
assert asked.map_by == "ppr:1:node" and len(hosts) == asked.n, (asked, hosts)
kept = {{name: os.environ[name] for name in ("PATH", "RECORD", *asked.x)}}
for host in hosts:
    subprocess.run(asked.command, env=kept, check=True)
"""
STAND_INS = {"srun": SRUN, "scancel": SCANCEL, "ssh": SSH, "mpirun": MPIRUN}
WAITED = "600"
"""Seconds that nodes wait for the first"""
FABRIC = ("vpc.amazonaws.com/efa",)
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
SBATCH = {
    *("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "exclusive", "signal", "requeue"),
    *("open-mode", "mem"),
}
"""Long options of sbatch that the files use (https://slurm.schedmd.com/sbatch.html)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One launcher's file: how many nodes and processes it asks for, and what it ran on each node."""

    nodes: int
    per_node: int | None
    ran: tuple[dict[str, Any], ...]
    """``argv`` and ``env`` of each node's launcher"""


def read_starts(project: Path, scratch: Path) -> dict[str, Start]:
    """By file. ``scratch`` takes stand-ins and records."""
    tools = make_tools(project, scratch)
    document = json.loads((project / "plan.json").read_text(encoding="utf-8"))
    hosts = [f"node-{n}" for n in range(1, document["launch"]["nodes"] + 1)]
    starts = {"train.sh": run_script(project, tools, hosts), "train.sbatch": run_batch(project, tools, hosts)}
    readers = {"ssh.sh": run_ssh, "mpi.sh": run_mpi, "trainjob.yaml": run_train_job, "jobset.yaml": run_job_set}
    readers["sky.yaml"] = run_sky
    for path in sorted((project / "launch").iterdir()):
        starts[path.name] = readers[path.name](path, tools, hosts)
    return starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Where stand-ins lie, and what they write."""

    folder: Path
    record: Path
    requeued: Path

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.folder}:/usr/bin:/bin"
        files = {"RECORD": self.record, "REQUEUED": self.requeued, "STEP": self.folder / "step"}
        packages = sysconfig.get_path("purelib")  # a link to an environment's python, which stands elsewhere, has none
        return {"PATH": path, "PYTHONPATH": packages, **{name: str(file) for name, file in files.items()}} | more

    def take_record(self) -> tuple[dict[str, Any], ...]:
        lines = self.record.read_text(encoding="utf-8").splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        return tuple(json.loads(line) for line in lines)


def make_tools(project: Path, scratch: Path) -> Tools:
    for folder, names in ((project / ".venv" / "bin", LAUNCHERS), (scratch / "tools", STAND_INS)):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            text = STAND_INS.get(name, RECORDER)
            write_program(folder / name, text.format(python=sys.executable))
    write_program(scratch / "tools" / "scontrol", SCONTROL)
    write_program(scratch / "tools" / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    link_python(project / ".venv" / "bin")
    (scratch / "record").unlink(missing_ok=True)
    return Tools(folder=scratch / "tools", record=scratch / "record", requeued=scratch / "requeued")


def link_python(folder: Path) -> None:
    """It finds the launchers beside it (meeting.py)."""
    (folder / "python").unlink(missing_ok=True)
    (folder / "python").symlink_to(sys.executable)


def write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(words: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, (words, done.stdout, done.stderr)


def run_script(project: Path, tools: Tools, hosts: list[str]) -> Start:
    run(["./train.sh", "--max_steps", "3"], project, tools.environment(MASTER_ADDR=hosts[0]))
    return Start(nodes=len(hosts), per_node=None, ran=tools.take_record())


def run_batch(project: Path, tools: Tools, hosts: list[str]) -> Start:
    directives = read_directives((project / "train.sbatch").read_text(encoding="utf-8"))
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": " ".join(hosts), "SLURM_CPUS_ON_NODE": "8"}
    run(["bash", "train.sbatch", "--max_steps", "3"], project, tools.environment(**given))
    return Start(
        nodes=int(directives["nodes"]),
        per_node=int(directives["gpus-per-node"]) if "gpus-per-node" in directives else None,
        ran=tools.take_record(),
    )


def read_directives(text: str) -> dict[str, str]:
    """Of a batch script: sbatch reads them up to the first line that is neither comment nor empty."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            break
        if match := re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(\S+))?", line):
            found[match[1]] = match[2] or ""
        else:
            assert not line.startswith("#SBATCH"), line
    assert set(found) <= SBATCH
    return found


def run_ssh(path: Path, tools: Tools, hosts: list[str]) -> Start:
    named = [f"me@{hosts[0]}", *hosts[1:]]
    run(["bash", str(path), *named, "--", "--max_steps", "3"], path.parent, tools.environment())
    return Start(nodes=len(hosts), per_node=None, ran=tools.take_record())


def run_mpi(path: Path, tools: Tools, hosts: list[str]) -> Start:
    hostfile = tools.folder / "hosts"
    hostfile.write_text("\n".join(hosts) + "\n", encoding="utf-8")
    run(["bash", str(path), str(hostfile), "--max_steps", "3"], path.parent, tools.environment())
    return Start(nodes=len(hosts), per_node=None, ran=tools.take_record())


def run_train_job(path: Path, tools: Tools, hosts: list[str]) -> Start:
    *_, job = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    trainer = job["spec"]["trainer"]
    given = {entry["name"]: entry["value"] for entry in trainer["env"] if "value" in entry}
    words = [*trainer["command"], "--max_steps", "3"]
    run(words, path.parent.parent, tools.environment(PET_MASTER_ADDR=hosts[0], **given))
    limits = sum(trainer["resourcesPerNode"].get("limits", {}).get(name, 0) for name in find_gpus(trainer))
    assert limits in (0, trainer["numProcPerNode"])
    return Start(nodes=trainer["numNodes"], per_node=trainer["numProcPerNode"], ran=tools.take_record())


def find_gpus(trainer: dict[str, Any]) -> Iterator[str]:
    """Resources with a maker's prefix, less those of the fabric."""
    return (name for name in trainer["resourcesPerNode"].get("limits", {}) if "/" in name and name not in FABRIC)


def run_job_set(path: Path, tools: Tools, hosts: list[str]) -> Start:
    *_, job_set = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    (replicated,) = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert job["completions"] == job["parallelism"] and replicated["replicas"] == 1
    (container,) = job["template"]["spec"]["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    name = job_set["metadata"]["name"]
    assert given["MASTER_ADDR"] == f"{name}-{replicated['name']}-0-0.{job_set['spec']['network']['subdomain']}"
    assert len(given["MASTER_ADDR"].partition(".")[0]) < 60
    run([*container["command"], "--max_steps", "3"], path.parent.parent, tools.environment(MASTER_ADDR=hosts[0]))
    limits = container["resources"]["limits"]
    gpus = [count for resource, count in limits.items() if "/" in resource and resource not in FABRIC]
    return Start(nodes=job["parallelism"], per_node=gpus[0] if gpus else None, ran=tools.take_record())


def run_sky(path: Path, tools: Tools, hosts: list[str]) -> Start:
    task = yaml.safe_load(path.read_text(encoding="utf-8"))
    text = task["run"].rstrip("\n") + " --max_steps 3\n"
    run(["bash", "-c", text], path.parent.parent, tools.environment(SKYPILOT_NODE_IPS="\n".join(hosts)))
    (rented,) = task["resources"]["accelerators"].values()
    launch = json.loads((path.parent.parent / "plan.json").read_text(encoding="utf-8"))["launch"]
    return Start(nodes=task["num_nodes"], per_node=count_used(rented, launch["per_node"]), ran=tools.take_record())


def count_used(rented: int, planned: int) -> int:
    """Of the devices of a rented machine: what is planned, where none is rented that would do with fewer."""
    assert rented in (1, 2, 4, 8, 16), rented
    return planned if rented // 2 < planned <= rented else rented


def count_processes(argv: list[str], project: Path) -> tuple[int, int, str]:
    """(nodes, processes on each, where they meet) as the launcher's own parser reads it."""
    if argv[0] == "torchrun":
        from torch.distributed.run import config_from_args, get_args_parser

        asked = get_args_parser().parse_args(argv[1:])
        config, _, _ = config_from_args(asked)
        assert config.min_nodes == config.max_nodes
        assert asked.standalone or config.rdzv_configs["read_timeout"] == WAITED
        endpoint = "" if asked.standalone else asked.rdzv_endpoint
        return config.max_nodes, config.nproc_per_node, endpoint
    assert argv[:2] == ["accelerate", "launch"], argv
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser

    asked = launch_command_parser().parse_args(argv[2:])
    settings = load_config_from_file(str(project / asked.config_file))
    port = asked.main_process_port or settings.main_process_port
    assert not asked.main_process_ip or asked.rdzv_conf == f"read_timeout={WAITED}"
    endpoint = f"{asked.main_process_ip}:{port}" if asked.main_process_ip else ""
    return settings.num_machines, settings.num_processes // settings.num_machines, endpoint


def name_port(command: list[str], planned: int, port: int) -> list[str]:
    if command[0] == "accelerate":
        return [*command[:2], "--main_process_port", str(port), *command[2:]]
    return [word.replace(f"node-1:{planned}", f"node-1:{port}") for word in command]


def check_project(project: Path, scratch: Path) -> list[str]:
    """Every file starts the same processes, command and environment. The files, in order."""
    starts = read_starts(project, scratch)
    launch = json.loads((project / "plan.json").read_text(encoding="utf-8"))["launch"]
    planned = [word.replace("$MASTER_ADDR", "node-1") for word in launch["command"]]
    for name, start in starts.items():
        port = launch["port"] and (20007 if name == "train.sbatch" else launch["port"])  # that of job 7
        expected = name_port(planned, launch["port"], port) if port != launch["port"] else planned
        assert start.nodes == launch["nodes"], name
        assert start.per_node in (None, launch["per_node"]), name
        times = launch["nodes"] if name in ("ssh.sh", "mpi.sh") else 1
        assert len(start.ran) == times, name
        for ran in start.ran:
            folder = ["--output_dir", f"/mnt/{launch['name']}-runs"] if name == "sky.yaml" else []
            assert ran["argv"] == [*expected, *folder, "--max_steps", "3"], name
            assert {key: ran["env"].get(key) for key in launch["environment"]} == launch["environment"], name
            nodes, each, endpoint = count_processes(ran["argv"], project)
            assert (nodes, each) == (launch["nodes"], launch["per_node"]), name
            assert endpoint == (f"node-1:{port}" if port else ""), name
    for name in {"trainjob.yaml", "jobset.yaml"} & starts.keys():
        check_objects(project, list(yaml.safe_load_all((project / "launch" / name).read_text(encoding="utf-8"))))
    return sorted(starts)


LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
"""RFC 1035, 63 characters at most (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/)"""
QUANTITY = re.compile(r"[1-9][0-9]*(Gi)?")
RANDOM = "-abcde"
"""behind the name of an indexed pod: JobSet's webhook counts it (pkg/webhooks/jobset_webhook.go)"""


def check_label(text: str) -> None:
    assert len(text) <= 63 and LABEL.fullmatch(text), text


def check_objects(project: Path, documents: list[dict[str, Any]]) -> None:
    """What an API server and the webhooks of JobSet refuse, that no model of a schema does: names, quantities, volumes, what is started."""
    *claims, job = documents
    name, several = job["metadata"]["name"], job["kind"] == "JobSet"
    if several:
        (replicated,) = job["spec"]["replicatedJobs"]
        pod = replicated["template"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        last, resources, env = (
            replicated["template"]["spec"]["completions"] - 1,
            container["resources"],
            container["env"],
        )
        check_label(job["spec"]["network"]["subdomain"])
    else:
        trainer = job["spec"]["trainer"]
        (patch,) = job["spec"]["runtimePatches"]
        (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = replicated["template"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        last, resources, env = trainer["numNodes"] - 1, trainer["resourcesPerNode"], trainer["env"]
        container = container | {"image": trainer["image"], "command": trainer["command"]}
    for text in (name, f"{name}-{replicated['name']}-0-{last}{RANDOM}", container["name"]):
        check_label(text)
    for claim in claims:
        check_label(claim["metadata"]["name"])
        assert all(len(value) <= 63 for value in claim["metadata"]["labels"].values())
        assert QUANTITY.fullmatch(claim["spec"]["resources"]["requests"]["storage"])
    assert all(QUANTITY.fullmatch(str(value)) for kind in resources.values() for value in kind.values()), resources
    for entry in env:
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", entry["name"]) and isinstance(entry.get("value", ""), str), entry
    assert len({entry["name"] for entry in env}) == len(env)
    claimed = [each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each]
    assert claimed == [claim["metadata"]["name"] for claim in claims]
    mounts = container["volumeMounts"]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod["volumes"]}
    paths = [mount["mountPath"] for mount in mounts]
    assert len(set(paths)) == len(paths) and not any(":" in path for path in paths), paths
    assert not [one for one in paths if one == "/project" or any(one.startswith(f"{other}/") for other in paths)], paths
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*:latest", container["image"])
    assert isinstance(pod["terminationGracePeriodSeconds"], int)
    started = re.findall(r"\./([\w.]+)", " ".join(container["command"]))
    text = "".join((project / file).read_text(encoding="utf-8") for file in started)
    needed = {*started, *re.findall(r"\. \./([\w.]+)", text), *re.findall(r"\b(\w+\.(?:py|yaml))\b", text)}
    assert started and not [file for file in sorted(needed) if not is_in_image(project, file)], needed


def is_in_image(project: Path, file: str) -> bool:
    """Whether ``COPY . .`` takes a file of the project's own folder: the last line of .dockerignore that fits it says."""
    taken = (project / file).is_file()
    for line in (project / ".dockerignore").read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#") and fnmatch(file, line.removeprefix("!")):
            taken = line.startswith("!") and (project / file).is_file()
    return taken
