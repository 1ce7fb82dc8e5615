"""Launchers: every file of a project that starts its nodes starts the same processes."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from launch_files import RECORDER, check_objects, check_project, link_python, make_tools, read_directives, write_program
from test_containers import check_shell, read_instructions

from benchmarks.fuzz_projects import check_accelerate, check_arguments, check_deepspeed, check_scripts
from generator import pipeline
from generator.case.request import Request
from generator.emit.document import build_document
from generator.emit.plan_json import to_json
from generator.emit.pods import shorten_name
from generator.emit.render import render
from generator.errors import PerfgenError
from hwdetect.jsonio import convert_to_mapping
from hwdetect.spec import parse_spec
from hwdetect.types import NetworkPort

ROOT = Path(__file__).resolve().parent.parent
MODELS = [str(path) for path in sorted((ROOT / "examples" / "models").glob("*.json")) if "bert" not in path.name]
SMALL = str(ROOT / "examples" / "models" / "smollm2-135m.json")
LLAMA_70B = str(ROOT / "examples" / "models" / "llama-3.1-70b.json")
BOTH = ["sky.yaml", "train.sbatch", "train.sh", "trainjob.yaml"]
NODES = ["jobset.yaml", *BOTH[:1], "ssh.sh", *BOTH[1:]]
CASES = {
    "8xh100-sxm-80gb": BOTH,
    "2x8xa100-sxm-80gb": NODES,
    "4xrtx-4090": BOTH,
    "2x4xcpu:2": ["jobset.yaml", "mpi.sh", "ssh.sh", "train.sbatch", "train.sh", "trainjob.yaml"],
}


def render_case(folder: Path, hardware: str, model: str = SMALL, name: str = "my-run", **more) -> Path:
    asked = Request(**{"hardware": hardware, "model": model, "data": "Salesforce/wikitext", "offline": True} | more)
    document = to_json(build_document(pipeline.plan_request(asked), name=name, dest=folder))
    render(document, folder)
    return folder


@pytest.mark.parametrize("hardware", CASES)
def test_every_launcher_starts_the_same_processes(hardware, tmp_path):
    project = render_case(tmp_path / "p", hardware)
    assert check_project(project, tmp_path / "scratch") == CASES[hardware]
    check_shell(project)


def test_part_of_a_node_is_asked_for_as_a_part(tmp_path):
    """Six of eight: SkyPilot rents the machine that has them; Slurm gives a share that the node has, and leaves the rest to others."""
    project = render_case(tmp_path / "p", "8xh100-sxm-80gb", MODELS[1], global_batch=12)
    assert check_project(project, tmp_path / "scratch") == BOTH
    asked = read_directives((project / "train.sbatch").read_text(encoding="utf-8"))
    assert asked["gpus-per-node"] == "6" and "exclusive" not in asked
    assert int(asked["cpus-per-task"]) <= 6 * 96 // 8  # Azure's nodes of eight have 96
    assert 32 <= int(asked["mem"].removesuffix("G")) <= 6 * 1900 // 8
    sky = (project / "launch/sky.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(sky)["resources"]["accelerators"] == {"H100": 8} and "6 of the 8 H100" in sky


def test_part_of_a_known_node_is_its_share_of_the_memory_that_slurm_gives_out(tmp_path):
    """p4d.24xlarge: 1,152 GiB and 96 CPUs. Jobs on six and on two of its eight GPUs run beside each other."""
    project = render_case(tmp_path / "p", "p4d.24xlarge", MODELS[1], global_batch=12)
    asked = read_directives((project / "train.sbatch").read_text(encoding="utf-8"))
    assert asked["gpus-per-node"] == "6" and asked["cpus-per-task"] == "72"
    assert 0.9 * 1152 * 6 / 8 < int(asked["mem"].removesuffix("G")) < 0.96 * 1152 * 6 / 8


def test_a_server_on_a_part_of_a_node_asks_for_the_memory_of_its_processes(tmp_path):
    """It named none: Slurm gave it so much for each CPU, or all of the node."""
    served = {"mode": "infer", "data": None, "prompt_tokens": 1024, "new_tokens": 256, "concurrency": 64}
    named = render_case(tmp_path / "p", "8xh100-sxm-80gb", LLAMA_70B, **served)
    asked = read_directives((named / "serve.sbatch").read_text(encoding="utf-8"))
    here = int(asked["gpus-per-node"])
    assert here < 8 and asked["mem"] == f"{20 * here}G"  # vLLM's own example has 20 for one GPU
    known = render_case(tmp_path / "k", "p5.48xlarge", LLAMA_70B, **served)
    asked = read_directives((known / "serve.sbatch").read_text(encoding="utf-8"))
    share = 2048 * int(asked["gpus-per-node"]) / 8
    assert 0.9 * share < int(asked["mem"].removesuffix("G")) < 0.96 * share


def test_a_job_on_cpus_asks_for_the_memory_of_its_processes(tmp_path):
    """A cluster gives 1 to 4 GB for each CPU where nothing is asked for, and ends a job that takes more."""
    project = render_case(tmp_path / "p", "2x4xcpu:2")
    launch = json.loads((project / "plan.json").read_text(encoding="utf-8"))["launch"]
    asked = read_directives((project / "train.sbatch").read_text(encoding="utf-8"))
    assert launch["memory_gib"] < int(asked["mem"].removesuffix("G")) < 1.5 * launch["memory_gib"]


def test_an_image_goes_by_the_addresses_too(tmp_path):
    """It starts no train.sh: gloo would listen at 127.0.1.1 in it, as on a host of Debian's."""
    project = render_case(tmp_path / "p", "2x8xa100-sxm-80gb")
    tools = make_tools(project, tmp_path / "scratch")
    link_python(tools.folder)
    write_program(tools.folder / "accelerate", RECORDER.format(python=sys.executable))
    write_program(tools.folder / "torchrun", RECORDER.format(python=sys.executable))
    (project / "addresses.py").write_text('import sys\nprint(f"export GLOO_SOCKET_IFNAME={sys.argv[1]} # why")\n')
    (command,) = (value for name, value in read_instructions(project) if name == "CMD")
    subprocess.run(json.loads(command), cwd=project, env=tools.environment(MASTER_ADDR="node-1"), check=True)
    (ran,) = tools.take_record()
    assert ran["env"]["GLOO_SOCKET_IFNAME"] == "node-1" and ran["argv"][-1] == "train.py"
    assert any(word.partition(":")[0] == "node-1" for word in ran["argv"])


NAMES = {
    "39 Ünïcödé": "train-39-n-c-d",
    "-.-'\"$(x)": "x",
    "a-" * 40: "a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-[0-9a-f]{6}",
    "9" * 70: "train-9{27}-[0-9a-f]{6}",
    "true": "true",
}


@pytest.mark.parametrize("given", NAMES)
def test_a_cluster_takes_the_files_of_a_project_of_any_name(given, tmp_path):
    project = render_case(tmp_path / "p", "2x4xcpu:2", name=given)
    for file in ("trainjob.yaml", "jobset.yaml"):
        documents = list(yaml.safe_load_all((project / "launch" / file).read_text(encoding="utf-8")))
        assert re.fullmatch(NAMES[given], documents[-1]["metadata"]["name"])
        check_objects(project, documents)


def test_two_long_names_that_begin_alike_are_two_jobs():
    """What is applied under the name of another takes its volumes, and with them its checkpoints."""
    names = {shorten_name("llama-3-1-70b-instruct-tuned-for-customer-" + end, 40) for end in ("a", "b")}
    assert len(names) == 2 and all(len(name) <= 40 for name in names)


def test_a_volume_lies_over_no_code_and_in_no_other(tmp_path):
    """Patterns beside the code, files of one folder, a colon: an API server or the container would refuse them."""
    project, row = tmp_path / "p", json.dumps({"text": "word " * 400}) + "\n"
    for folder, names in {"": ["train-1", "train-2"], "mine": ["train-1", "train-2", "eval-1"], "a:b": ["all"]}.items():
        (project / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            (project / folder / f"{name}.jsonl").write_text(row * 40, encoding="utf-8")
    mounted = {}
    for case, (data, held_out) in {
        "over code": ("train-*.jsonl", None),
        "one folder": ("mine/train-*.jsonl", "mine/eval-1.jsonl"),
        "colon": ("a:b/all.jsonl", None),
    }.items():
        more = {} if held_out is None else {"eval": str(project / held_out)}
        render_case(project, "2x4xcpu:2", data=str(project / data), **more)
        text = (project / "launch/jobset.yaml").read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
        check_objects(project, documents)
        (replicated,) = documents[-1]["spec"]["replicatedJobs"]
        (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
        mounted[case] = [m["mountPath"] for m in container["volumeMounts"] if m.get("subPath", "model")[:5] != "model"]
        assert ("# data: there is no volume for it" in text) == (case != "one folder"), text
    assert mounted == {"over code": [], "one folder": ["/project/mine"], "colon": []}


def test_rented_nodes_are_joined_by_their_fabric(tmp_path):
    """SkyPilot's default is TCP, and the plan was priced with InfiniBand. Of one node, or part of one, there is none."""
    for hardware, tier in {"2x8xh100-sxm-80gb": "best", "8xh100-sxm-80gb": None, "2x4xh100-sxm-80gb": None}.items():
        pins = (("parallelism", "fsdp2" if hardware[0] == "8" else "hsdp"),)
        project = render_case(tmp_path / hardware, hardware, pins=pins)
        text = (project / "launch/sky.yaml").read_text(encoding="utf-8")
        assert yaml.safe_load(text)["resources"].get("network_tier") == tier
        assert ("NCCL goes over TCP" in text) == bool(tier)


def test_processes_of_several_cpus_have_threads_for_them(tmp_path):
    """torchrun sets OMP_NUM_THREADS=1 for several processes of a node. A node is asked for the CPUs of all of them."""
    project = render_case(tmp_path / "p", "2x4xcpu:2")
    launch = json.loads((project / "plan.json").read_text(encoding="utf-8"))["launch"]
    assert launch["environment"] == {"OMP_NUM_THREADS": "2"} and launch["cpus"] == 8
    assert "torch.set_num_threads(2)" in (project / "train.py").read_text(encoding="utf-8")
    assert read_directives((project / "train.sbatch").read_text(encoding="utf-8"))["cpus-per-task"] == "8"
    one = render_case(tmp_path / "one", "2x1xcpu:8")  # where it starts one process a node it leaves PyTorch its count
    assert "set_num_threads" not in (one / "train.py").read_text(encoding="utf-8")


def test_a_form_of_deepspeed_is_launched_the_same_way(tmp_path):
    project = render_case(tmp_path / "p", "2x8xh100-sxm-80gb", pins=(("parallelism", "zero2"),))
    assert check_project(project, tmp_path / "scratch") in (BOTH, NODES)


def read_pod_limits(project: Path) -> list[dict[str, int]]:
    """Of a node, by trainjob.yaml and by jobset.yaml."""
    *_, job = yaml.safe_load_all((project / "launch/trainjob.yaml").read_text(encoding="utf-8"))
    *_, job_set = yaml.safe_load_all((project / "launch/jobset.yaml").read_text(encoding="utf-8"))
    (replicated,) = job_set["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert "add" not in container["securityContext"]["capabilities"]  # lost to a user who is not root
    return [job["spec"]["trainer"]["resourcesPerNode"]["limits"], container["resources"]["limits"]]


def test_pods_of_several_nodes_ask_for_their_efa_devices(tmp_path):
    project = render_case(tmp_path / "p", "2xaws:p5.48xlarge", optimize_for="time", global_batch=1024)
    check_project(project, tmp_path / "scratch")
    assert read_pod_limits(project) == [{"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": 32}] * 2
    text = (project / "launch/jobset.yaml").read_text(encoding="utf-8")
    assert "# vpc.amazonaws.com/efa is counted" in text and "aws-ofi-nccl" in text
    one = render_case(tmp_path / "one", "aws:p5.48xlarge")
    assert "amazonaws" not in (one / "launch/trainjob.yaml").read_text(encoding="utf-8")


def test_pods_of_several_nodes_say_how_they_reach_infiniband(tmp_path):
    """Each cluster names the resource as it likes: what no cluster has would leave the pods waiting for ever."""
    project = render_case(tmp_path / "p", "2x8xa100-sxm-80gb")
    assert read_pod_limits(project) == [{"nvidia.com/gpu": 8}] * 2
    for name in ("trainjob", "jobset"):
        text = (project / f"launch/{name}.yaml").read_text(encoding="utf-8")
        assert (
            "rdma/NAME: 1 where it is shared, 8 where each GPU has its own" in text and "LimitMEMLOCK=infinity" in text
        )


def detect_ports(folder: Path, *ports: NetworkPort) -> str:
    """Two nodes of eight A100 with these ports, as `perfgen detect --json` would write them down."""
    path = folder / "hardware.json"
    path.write_text(
        json.dumps(convert_to_mapping(replace(parse_spec("2x8xa100-sxm-80gb"), network=ports))), encoding="utf-8"
    )
    return str(path)


def test_nccl_is_told_its_ports_where_there_are_two_kinds(tmp_path):
    """As on Azure's ND: eight of InfiniBand, and one of Ethernet that is RoCE too. Of one kind, or without data, it knows itself."""
    fabric = [
        NetworkPort(name=f"mlx5_{n}/1", kind="infiniband", state="active", rate_bytes_per_s=25e9) for n in range(8)
    ]
    other = NetworkPort(name="mlx5_an0/1", kind="roce", state="active", rate_bytes_per_s=12.5e9)
    project = render_case(tmp_path / "p", detect_ports(tmp_path, *fabric, other))
    launch = json.loads((project / "plan.json").read_text(encoding="utf-8"))["launch"]
    assert launch["environment"]["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{n}:1" for n in range(8))
    check_project(project, tmp_path / "scratch")  # train.sh hands it on
    check_shell(project)
    assert "NCCL_IB_HCA" in (project / "README.md").read_text(encoding="utf-8")
    for number, ports in enumerate(([*fabric], [*fabric, replace(other, state="down")])):
        project = render_case(tmp_path / str(number), detect_ports(tmp_path, *ports))
        assert "NCCL_IB_HCA" not in (project / "train.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize("hardware", ["cpu:4", "4xcpu:1", "1xh100-sxm-80gb"])
def test_what_a_person_starts_has_no_files_of_launchers(hardware, tmp_path):
    project = render_case(tmp_path / "p", hardware)
    assert not [name for name in ("launch", "train.sh", "train.sbatch") if (project / name).exists()]


FORMS = ("ddp", "zero1", "zero2", "zero3", "fsdp2", "hsdp", "tensor", "tensor-fsdp2", "tensor-pipeline", "pipeline")
FORMS += ("pipeline-ddp", "pipeline-fsdp2", "context", "context-fsdp2", "ulysses", "expert", "expert-fsdp2")
OF_A_FORM = 17
"""plans: 306 with those whose form the engine takes by itself"""
LARGE = ("h200-sxm-141gb", "mi300x", "b200-sxm-180gb")
"""where a mixture of 30B parameters fits"""


def draw_request(seed: int, form: str) -> Request:
    """Several devices, of one node or more. An empty ``form``: whichever the engine takes."""
    draw = random.Random(seed)
    devices = ("h100-sxm-80gb", "a100-sxm-40gb", "l40s", "v100-sxm-32gb", *LARGE)
    each, nodes = draw.choice((2, 4, 8)), draw.choice((1, 1, 2, 3, 4, 16))
    hardware = f"{nodes}x{each}x{draw.choice(devices)}" if draw.random() < 0.8 else f"{max(2, nodes)}x{each}xcpu:4"
    model, train = draw.choice(MODELS), draw.choice(("full", "full", "lora"))
    if form.startswith("expert"):
        hardware, train = f"{nodes}x{each}x{draw.choice(LARGE)}", "full"
        model = next(name for name in MODELS if "a3b" in name)
    return Request(
        hardware=hardware,
        model=model,
        data="Salesforce/wikitext",
        offline=True,
        train=train,
        task="causal-lm",
        seq_len=draw.choice((512, 2048)),
        global_batch=draw.choice((16, 48, 96, 128)),
        pins=(("parallelism", form),) if form else (),
    )


def draw_projects(form: str, folder: Path, wanted: int, first: int = 0) -> Iterator[Path]:
    """Those of several devices among the plans of as many seeds as it takes."""
    made = 0
    for seed in range(first, first + 100 * wanted):
        try:
            planned = pipeline.plan_request(draw_request(seed, form))
            document = to_json(build_document(planned, name=f"run-{seed}"))
        except PerfgenError:
            continue
        if "launch" not in document or planned.plan.unemitted:
            continue
        render(document, folder / str(seed))
        yield folder / str(seed)
        made += 1
        if made == wanted:
            return
    pytest.fail(f"{made} of {100 * wanted} drawn requests are plans of {form or 'several devices'}")


def check_drawn(project: Path, scratch: Path) -> None:
    """All files start the same, and what reads the configurations in use takes them."""
    assert "train.sh" in check_project(project, scratch)
    config = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
    for check in (check_arguments, check_accelerate, check_deepspeed, check_scripts):
        assert list(check(project, config)) == []


@pytest.mark.parametrize("form", ["", "expert-fsdp2"])
def test_drawn_plans_agree_in_all_their_launchers(form, tmp_path):
    (project,) = draw_projects(form, tmp_path, 1)
    check_drawn(project, tmp_path / "scratch")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", *FORMS])
def test_300_drawn_plans_agree_in_all_their_launchers(form, tmp_path):
    for project in draw_projects(form, tmp_path, OF_A_FORM, first=1000):
        check_drawn(project, tmp_path / f"{project.name}-scratch")


# ---- Slurm: before the time limit


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    project = render_case(folder / "p", "2x8xa100-sxm-80gb")
    return project, make_tools(project, folder / "scratch")


def replace_python(project: Path, text: str) -> None:
    """Which starts the launcher (meeting.py): a link to that of these tests, until now."""
    (project / ".venv/bin/python").unlink()
    write_program(project / ".venv/bin/python", text)


def start_job(job, launcher: str, *words: str):
    """The batch script as Slurm runs it: in bash, with a launcher that does as ``launcher`` says."""
    project, tools = job
    for path in (tools.record, tools.requeued):
        path.unlink(missing_ok=True)
    replace_python(project, f'#!/bin/bash\n[ "$1" != -c ] || exec {sys.executable} "$@"\n{launcher}\n')
    given = tools.environment(SLURM_JOB_ID="7", SLURM_JOB_NODELIST="a b", SLURM_CPUS_ON_NODE="8")
    words = ("bash", "train.sbatch", *words)
    return subprocess.Popen(words, cwd=project, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


SAVES = 'trap "{save} echo saved >>$RECORD; exit 143" TERM HUP; echo ready >>$RECORD; while :; do sleep 0.1; done'


def wait_for(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert path.exists()


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        ("runs/checkpoint-20", ()),
        ("there is one/checkpoint-20", ("--output_dir", "there is one")),
        ("there/checkpoint-20", ("--output_dir", "runs", "--output-dir=there")),
        ("runs/checkpoint-9", ()),  # kept from before; what the job wrote is older
        ("elsewhere/checkpoint-20", ()),
        ("new/checkpoint-20", ("--output_dir", "new")),
        (None, ()),
    ],
)
def test_a_job_near_its_time_limit_saves_and_goes_back_into_the_queue(job, saved, words):
    """Unless it saved nothing new: it would come back for ever."""
    project, tools = job
    goes_on = saved is not None and saved.endswith("checkpoint-20") and "elsewhere" not in saved
    for folder in ("runs", "there", "there is one", "elsewhere", "new"):
        shutil.rmtree(project / folder, ignore_errors=True)
    for folder in ("runs", "there", "there is one", "elsewhere"):
        (project / folder / "checkpoint-10").mkdir(parents=True)
    running = start_job(job, SAVES.format(save=f"mkdir -p '{saved}';" if saved else ""), *words)
    wait_for(tools.record)
    running.send_signal(signal.SIGUSR1)
    output, _ = running.communicate(timeout=30)
    assert running.returncode == (0 if goes_on else 1), output
    assert tools.record.read_text().split() == ["ready", "saved"]
    assert (tools.requeued.read_text() if tools.requeued.exists() else None) == ("requeue 7\n" if goes_on else None)
    assert ("ask for more (sbatch --time)" in output) == (not goes_on)


def test_what_is_wrong_with_a_project_is_left_to_its_own_scripts_to_say(job):
    project, _ = job
    config = project / "config.yaml"
    text = config.read_text(encoding="utf-8")
    config.write_text("- [", encoding="utf-8")
    running = start_job(job, "echo the launcher has begun; exit 3")
    output, _ = running.communicate(timeout=30)
    config.write_text(text, encoding="utf-8")
    assert running.returncode == 3 and output.split("\n")[0] == "the launcher has begun", output


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_ends_by_itself_is_not_queued_again(job, code):
    _, tools = job
    running = start_job(job, f"exit {code}")
    running.communicate(timeout=30)
    assert running.returncode == code and not tools.requeued.exists()


def test_a_job_array_is_runs_with_seeds_of_their_own(job, monkeypatch):
    project, tools = job
    make_tools(project, tools.folder.parent)
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a b", "SLURM_CPUS_ON_NODE": "8", "SLURM_ARRAY_TASK_ID": "3"}
    words = ["bash", "train.sbatch", "--max_steps", "3"]
    subprocess.run(words, cwd=project, env=tools.environment(**given), check=True)
    (ran,) = tools.take_record()
    assert ran["argv"][-6:] == ["--seed", "3", "--output_dir", "runs/seed-3", "--max_steps", "3"]


def test_a_server_and_a_training_ask_slurm_in_the_same_words(tmp_path):
    served = render_case(tmp_path / "s", "8xh100-sxm-80gb", MODELS[0], mode="infer", data=None)
    trained = render_case(tmp_path / "t", "8xh100-sxm-80gb", MODELS[1])
    asked = [
        read_directives((served / "serve.sbatch").read_text()),
        read_directives((trained / "train.sbatch").read_text()),
    ]
    assert {"nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "signal"} <= asked[0].keys() & asked[1].keys()


# ---- ssh


def test_a_host_that_fails_is_named_and_the_others_end(job):
    project, tools = job
    make_tools(project, tools.folder.parent)
    # not before the other host trains: the ssh of these tests hands on a signal once it runs something
    fails = f'#!/bin/bash\nif [ "$HOST" = bad ]; then until grep -q ready "$RECORD"; do sleep 0.1; done; exit 9; fi\n{SAVES}\n'
    replace_python(project, fails)
    begun = time.monotonic()
    words = ["bash", "launch/ssh.sh", "good", "bad"]
    done = subprocess.run(
        words, cwd=project, env=tools.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 9 and "bad ended with 9; the others are told to save and end" in done.stderr
    assert time.monotonic() - begun < 30


def test_too_few_hosts_are_refused(job):
    project, tools = job
    words = ["bash", "launch/ssh.sh", "alone"]
    done = subprocess.run(words, cwd=project, env=tools.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "1 hosts, and the plan is for 2" in done.stderr


def test_variables_that_are_set_stay(tmp_path):
    project = render_case(tmp_path / "p", "2x8xa100-sxm-80gb", pins=(("parallelism", "hsdp"),))
    tools = make_tools(project, tmp_path / "scratch")
    subprocess.run(
        ["./train.sh"], cwd=project, env=tools.environment(MASTER_ADDR="a", PET_SHUTDOWN_TIMEOUT="5"), check=True
    )
    (ran,) = tools.take_record()
    assert ran["env"]["PET_SHUTDOWN_TIMEOUT"] == "5"
    assert json.loads((project / "plan.json").read_text())["launch"]["environment"]["PET_SHUTDOWN_TIMEOUT"] == "600"
    assert os.access(project / "train.sh", os.X_OK)
