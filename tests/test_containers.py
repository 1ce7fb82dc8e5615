"""Images, launchers and environments of the golden cases: what would break on the first machine with a GPU."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from dockerfile_parse import DockerfileParser

import hwdetect
from generator import pipeline
from generator.case.request import Request
from generator.emit import render
from generator.emit.container import PASSED, PATHS, escape_dollars, list_mounts
from generator.emit.document import build_document
from generator.emit.parallel import count_task_cpus
from generator.emit.plan_json import to_json
from generator.inputs.hardware import read_hardware
from generator.techniques.base import find_technique
from hwdetect.types import Disk

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "examples" / "models"
BIN = Path(sys.executable).parent
LLAMA = {"model": "meta-llama/Llama-3.1-8B", "config": str(MODELS / "llama-3.1-8b.json"), "offline": True}


def render_plan(folder: Path, **given) -> tuple[Path, dict]:
    planned = pipeline.plan_request(Request(**LLAMA | given))
    document = to_json(build_document(planned, name="p"))
    render.render(document, folder / "p")
    return folder / "p", document


@pytest.fixture(scope="module")
def sft(tmp_path_factory):
    """LoRA by TRL on one GPU: no technique compiles anything for train.py."""
    return render_plan(
        tmp_path_factory.mktemp("sft"),
        hardware="1xrtx-4090",
        task="sft",
        train="lora",
        data="HuggingFaceH4/no_robots",
        pins=(("packing", "padded"),),
    )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    return render_plan(
        tmp_path_factory.mktemp("nodes"),
        hardware="2x8xa100-sxm-80gb",
        task="sft",
        train="full",
        data="HuggingFaceH4/no_robots",
    )


def read_instructions(project: Path) -> list[tuple[str, str]]:
    parser = DockerfileParser(path=str(project))
    return [(line["instruction"], line["value"]) for line in parser.structure]


def check_shell(project: Path) -> None:
    for command in (("hadolint", "Dockerfile"), ("shellcheck", *sorted(p.name for p in project.glob("*.s*h*")))):
        done = subprocess.run(
            [BIN / command[0], *command[1:]], cwd=project, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


# ---- compilers


def test_the_image_has_the_compiler_that_trl_needs(sft):
    """TRL's loss is Triton's on every CUDA device, and a slim image has no C compiler."""
    project, document = sft
    assert not any(
        find_technique(axis, name).compiles for axis, name in document["choice"].items()
    )  # it is no technique that asks for it
    (installed,) = (v for i, v in read_instructions(project) if i == "RUN" and "apt-get install" in v)
    assert {"gcc", "libc6-dev"} <= set(installed.split()) or "g++" in installed.split()
    assert 'check_compilers("gcc")' in (project / "train.py").read_text()
    assert "apt-get install" in (project / "README.md").read_text()
    check_shell(project)


def test_a_plan_that_compiles_nothing_asks_for_no_compiler(tmp_path):
    project, document = render_plan(
        tmp_path, hardware="cpu:4", model=None, config=None, seq_len=64, global_batch=2, pins=(("compile", "off"),)
    )
    assert document["compilers"] == {"train": [], "infer": []} and not (project / "compiler.py").exists()
    assert "apt-get" not in (project / "Dockerfile").read_text()


def test_offloading_to_a_disk_is_built_with_the_toolkit(tmp_path):
    """DeepSpeed asks nvcc for its version before it compiles its reader: an image with CUDA's toolkit, of torch's version."""
    machine = replace(read_hardware("8xa100-sxm-80gb"), disks=(Disk(role="work", path="/scratch", kind="nvme"),))
    (tmp_path / "machine.json").write_text(json.dumps(hwdetect.to_json(machine)))
    project, document = render_plan(
        tmp_path,
        hardware=str(tmp_path / "machine.json"),
        task="sft",
        train="full",
        data="HuggingFaceH4/no_robots",
        pins=(("parallelism", "zero3"), ("offload", "optimizer-nvme")),
    )
    instructions = read_instructions(project)
    (base,) = (v for i, v in instructions if i == "FROM")
    index = document["docker"]["torch_index"]
    version = re.search(r"cu(\d\d)(\d)$", index)
    assert base.startswith(f"nvidia/cuda:{version[1]}.{version[2]}.") and "-devel-" in base
    text = " ".join(v for i, v in instructions if i == "RUN")
    assert {"libaio-dev", "g++", "python3-venv", "python3-dev"} <= set(text.split())
    assert (
        "    check_nvcc()" in (project / "train.py").read_text()
        and "nvme_path" in (project / "container.sh").read_text()
    )
    check_shell(project)


@pytest.mark.parametrize(
    ("present", "needed", "advice"),
    [
        ((), ("gcc",), "apt-get install gcc libc6-dev"),
        (("gcc",), ("g++", "gcc"), "apt-get install g++"),
        (("clang",), ("gcc",), ""),
    ],
)
def test_a_missing_compiler_is_named_at_the_start(tmp_path, present, needed, advice):
    for name in present:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'templates/fragments')!r}); import compiler\n"
    # whatever this machine has of Python's headers
    code += "compiler.sysconfig.get_path = lambda name: sys.argv[1]\n"
    code += f"compiler.check_compilers(*{needed!r})"
    (tmp_path / "Python.h").touch()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (not advice), done.stderr
    assert advice in done.stderr and done.stderr.count("\n") <= 1
    (tmp_path / "Python.h").unlink()
    if not advice:
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1 and "-dev" in done.stderr


def test_a_missing_nvcc_is_named_at_the_start(load, monkeypatch, tmp_path):
    """In a project that needs it alone: all that compile had looked for CUDA's compiler, whoever made the GPU."""
    nvcc = load("nvcc")
    monkeypatch.setattr(nvcc, "COMMANDS", ("nvcc",))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(SystemExit, match="no nvcc: install the CUDA toolkit"):
        nvcc.check_nvcc()
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    nvcc.check_nvcc()


# ---- docker run


DOCKER = '#!/bin/sh\nprintf "%s\\n" "$@"\nprintf "HF_TOKEN=%s\\n" "$HF_TOKEN" >&2\n'


def run_container(project: Path, home: Path, *words: str, **variables: str) -> tuple[list[str], str]:
    """The arguments that `docker` gets, and the token in its environment."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "docker").write_text(DOCKER)
    (home / "bin" / "docker").chmod(0o755)
    env = {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "HOME": str(home), **variables}
    done = subprocess.run(
        ["sh", "container.sh", *words], cwd=project, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_container_gets_token_cache_and_files_and_belongs_to_its_caller(sft, tmp_path):
    project = tmp_path / "p"
    shutil.copytree(sft[0], project)
    config = yaml.safe_load((project / "config.yaml").read_text())
    data = tmp_path / "some data.jsonl"
    data.touch()
    (tmp_path / "held-out.jsonl").touch()
    given = {"data": str(data), "eval_data": str(tmp_path / "held-out.jsonl")}
    (project / "config.yaml").write_text(yaml.safe_dump(config | given, sort_keys=False, width=1000))
    (project / ".env").write_text("HF_TOKEN=secret\n")

    words, errors = run_container(project, tmp_path / "home", "python", "infer.py")
    assert errors == "HF_TOKEN=secret\n"  # handed over by name
    assert "secret" not in " ".join(words) and words[words.index("HF_TOKEN") - 1] == "--env"
    assert words[words.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    cache = tmp_path / "home" / ".cache" / "huggingface"
    assert cache.is_dir()  # by the caller: what Docker makes belongs to root
    mounts = read_mounts(words)
    assert mounts.pop("/home/trainer/.cache/huggingface") == (str(cache), False)
    assert mounts.pop("/project") == (str(project), False)  # what is written there, whatever its name, is kept
    assert mounts == {path: (path, True) for path in given.values()}
    assert words[-3:] == ["p", "python", "infer.py"]
    assert int(words[words.index("--stop-timeout") + 1]) >= 600  # Docker's own 10 s end in the middle of a save
    # the image: any user may write to its home and to the project
    text = " ".join(v for i, v in read_instructions(project) if i in ("RUN", "ENV"))
    assert "chmod 1777" in text and "HOME=/home/trainer" in text


def test_a_container_gets_what_a_run_reads_of_the_environment(sft, tmp_path):
    """A key of W&B, a mirror of the hub: `make train` has them of .env, and a container had the hub's token alone."""
    (service,) = yaml.safe_load((sft[0] / "compose.yaml").read_text())["services"].values()
    words, _ = run_container(sft[0], tmp_path / "home", HF_TOKEN="")
    passed = [value for flag, value in pairwise(words) if flag == "--env"]
    assert passed == service["environment"] == list(PASSED)
    assert {"HF_ENDPOINT", "HF_HUB_OFFLINE", "WANDB_API_KEY", "MLFLOW_TRACKING_URI"} < set(passed)


@pytest.mark.parametrize(
    ("given", "mounted"), [("~/hub", "{home}/hub"), ("hub", "{project}/hub"), ("/{home}/x", "/{home}/x")]
)
def test_the_cache_is_where_the_hub_library_finds_it(sft, tmp_path, given, mounted):
    """HF_HOME=~/hub of .env reaches container.sh as it is, and docker refuses what is no whole path."""
    project, home = tmp_path / "p", tmp_path / "home"
    shutil.copytree(sft[0], project)
    words, _ = run_container(project, home, HF_TOKEN="", HF_HOME=given.format(home=home))
    expected = mounted.format(home=home, project=project)
    assert read_mounts(words)["/home/trainer/.cache/huggingface"] == (expected, False) and Path(expected).is_dir()


def read_mounts(words: list[str]) -> dict[str, tuple[str, bool]]:
    """Source and whether it is read-only, by target: fields of CSV, as docker reads --mount."""
    mounts = {}
    for flag, value in pairwise(words):
        if flag == "--mount":
            (fields,) = csv.reader([value])
            given = dict(field.partition("=")[::2] for field in fields)
            mounts[given["target"]] = (given["source"], "readonly" in given)
    return mounts


def write_path(project: Path, path: str) -> None:
    config = yaml.safe_load((project / "config.yaml").read_text())
    (project / "config.yaml").write_text(yaml.safe_dump(config | {"data": path}, sort_keys=False, width=1000))


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("../beside.jsonl", "/beside.jsonl"),
        ("../../far/of.jsonl", "/far/of.jsonl"),
        ('../it\'s, "here": now #1.jsonl', '/it\'s, "here": now #1.jsonl'),
        ("../$(touch x)`y`.jsonl", "/$(touch x)`y`.jsonl"),
        ("../parts/*.jsonl", "/parts"),
        ("./inside.jsonl", None),
        ("HuggingFaceH4/no_robots", None),
    ],
)
def test_what_config_yaml_names_stands_where_the_container_looks(sft, tmp_path, path, target):
    """The same words lead from /project to it."""
    project = tmp_path / "a" / "b" / "p"
    shutil.copytree(sft[0], project)
    real = project / path
    if "/*" not in path:
        real.parent.mkdir(parents=True, exist_ok=True)
        real.touch()
    else:
        real = real.parent
        real.mkdir()
    write_path(project, path)
    words, _ = run_container(project, tmp_path / "home")
    mounts = read_mounts(words)
    outside = {to: source for to, (source, read_only) in mounts.items() if read_only}
    assert outside == ({target: str(real.resolve())} if target else {})
    if target:
        inside = os.path.normpath(f"/project/{path}")
        assert target in (inside, str(Path(inside).parent))
    assert not (project / "x").exists()


def test_a_link_that_leads_out_of_the_project_is_followed(sft, tmp_path):
    project = tmp_path / "p"
    shutil.copytree(sft[0], project)
    (tmp_path / "d.jsonl").touch()
    (project / "d.jsonl").symlink_to("../d.jsonl")
    write_path(project, "./d.jsonl")
    words, _ = run_container(project, tmp_path / "home")
    assert read_mounts(words)["/project/d.jsonl"] == (str(tmp_path / "d.jsonl"), True)


def test_links_in_a_folder_of_the_project_are_followed(sft, tmp_path):
    """A tokenizer that lies beside weights is linked file by file."""
    project = tmp_path / "p"
    shutil.copytree(sft[0], project)
    (tmp_path / "tokenizer.json").touch()
    (project / "t").mkdir()
    (project / "t" / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    (project / "t" / "own.json").touch()
    (project / "u").symlink_to(tmp_path / "p" / "t")
    for path in ("./t", "./u"):
        write_path(project, path)
        words, _ = run_container(project, tmp_path / f"home of {path[2:]}")
        outside = {to: source for to, (source, read_only) in read_mounts(words).items() if read_only}
        file = str(tmp_path / "tokenizer.json")
        assert outside == ({file: file} if path == "./t" else {})


def test_a_snapshot_is_mounted_with_the_files_that_its_links_name(sft, tmp_path):
    project, cache = tmp_path / "p", tmp_path / "hub" / "models--a--b"
    shutil.copytree(sft[0], project)
    (cache / "snapshots" / "c0ffee").mkdir(parents=True)
    config = yaml.safe_load((project / "config.yaml").read_text())
    config["model"] = str(cache / "snapshots" / "c0ffee")
    (project / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, width=1000))
    words, _ = run_container(project, tmp_path / "home")
    assert read_mounts(words)[str(cache)] == (str(cache), True)


@pytest.mark.parametrize(("path", "reason"), [("../gone.jsonl", "not here"), ("../lib", "over the system")])
def test_what_cannot_be_mounted_is_refused(sft, tmp_path, path, reason):
    project = tmp_path / "p"
    shutil.copytree(sft[0], project)
    (tmp_path / "lib").mkdir()
    write_path(project, path)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "container.sh"], cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and reason in done.stderr


# ---- docker compose


@pytest.mark.parametrize("case", ["sft", "nodes"])
def test_compose_yaml_is_of_the_specification_and_mounts_the_same(case, request, tmp_path):
    project, document = request.getfixturevalue(case)
    command = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (service,) = yaml.safe_load((project / "compose.yaml").read_text())["services"].values()
    volumes = {mount["target"]: mount for mount in service["volumes"]}
    assert {"/project", "/home/trainer/.cache/huggingface"} <= set(volumes)
    assert all(mount["bind"] == {"create_host_path": False} for mount in volumes.values())
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices["capabilities"] == ["gpu"]
    assert ("network_mode" in service) == (case == "nodes")
    assert service["stop_grace_period"] == f"{document['docker']['stop_seconds']}s"


def test_compose_yaml_mounts_what_lies_outside():
    values = {"model": "../m", "tokenizer": "a/b", "data": "/data/$HOME/*.jsonl", "eval_data": 0.1}
    config = SimpleNamespace(**dict.fromkeys(PATHS) | values)
    assert list(list_mounts(config)) == [("../m", "/m"), ("/data/$HOME", "/data/$HOME")]
    assert escape_dollars("/data/$HOME") == "/data/$$HOME"


def test_a_node_without_a_meeting_point_is_not_started(nodes, tmp_path):
    project, _ = nodes
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(["sh", "container.sh"], cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "MASTER_ADDR" in done.stderr


@pytest.mark.parametrize("there", [True, False])
def test_nodes_reach_each_other_by_infiniband_where_there_is_one(nodes, tmp_path, there):
    project = tmp_path / "p"
    shutil.copytree(nodes[0], project)
    script, devices = project / "container.sh", tmp_path / "infiniband"
    script.write_text(script.read_text().replace("-e /dev/infiniband", f"-e {devices}"))
    if there:
        devices.mkdir()
    words, _ = run_container(project, tmp_path / "home", "python", "train.py", MASTER_ADDR="first")
    assert ("/dev/infiniband" in words) == ("memlock=-1" in words) == there
    assert words[-2:] == ["python", "train.py"]
    (install,) = (value for kind, value in read_instructions(project) if kind == "RUN" and "apt-get" in value)
    assert {"libibverbs1", "ibverbs-providers"} <= set(install.split())
    (service,) = yaml.safe_load((project / "compose.yaml").read_text())["services"].values()
    assert service["ulimits"] == {"memlock": -1}


# ---- servers


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """vLLM on four of eight boards."""
    return render_plan(tmp_path_factory.mktemp("server"), hardware="4xh100-sxm-80gb", mode="infer", concurrency=32)


@pytest.fixture(scope="module")
def server_of_nodes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes-serve")
    big = {"model": "meta-llama/Llama-3.1-70B", "config": str(MODELS / "llama-3.1-70b.json")}
    return render_plan(folder, hardware="4x1xh100-sxm-80gb", mode="infer", **big)


def test_the_image_of_an_engine_starts_our_server(server):
    """vLLM's image has ["vllm", "serve"] as its entrypoint: our words would be its arguments."""
    instructions = read_instructions(server[0])
    base, entry = (next(v for i, v in instructions if i == name) for name in ("FROM", "ENTRYPOINT"))
    assert base.startswith("vllm/vllm-openai:") and entry == "[]"
    (command,) = (v for i, v in instructions if i == "CMD")
    assert json.loads(command)[:2] == ["python", "server.py"]
    made = next(v for i, v in instructions if i == "RUN" and " -m venv " in v)
    assert "--system-site-packages" in made  # what the engine's image brings is not installed again
    check_shell(server[0])


def test_compose_keeps_a_server_up_and_lets_it_finish(server):
    project, document = server
    text = (project / "compose.yaml").read_text()
    assert "docker compose up" in text.splitlines()[0]
    ((name, service),) = yaml.safe_load(text)["services"].items()
    assert name == "serve" and service["restart"] == "unless-stopped"
    assert service["ports"] == ["127.0.0.1:8000:8000"] and "/health" in service["healthcheck"]["test"][-1]
    assert int(service["stop_grace_period"].removesuffix("s")) > document["server"]["grace_seconds"]
    assert not [name for name in service["environment"] if name.startswith(("WANDB", "MLFLOW"))]
    schema = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", project / "compose.yaml"]
    assert subprocess.run(schema, capture_output=True, check=False).returncode == 0


def test_a_container_goes_by_the_interfaces_of_its_caller(nodes, tmp_path):
    """What .env sets of NCCL was lost in it."""
    project = tmp_path / "p"
    shutil.copytree(nodes[0], project)
    (project / "addresses.py").write_text("print('export PET_LOCAL_ADDR=10.0.0.7')\n")
    (project / ".env").write_text("NCCL_IB_HCA=mlx5\nGLOO_SOCKET_IFNAME=bond0\n")
    words, _ = run_container(project, tmp_path / "home", MASTER_ADDR="first")
    passed = [value for flag, value in pairwise(words) if flag == "--env"]
    assert {"PET_LOCAL_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "MASTER_ADDR=first"} <= set(passed)
    (service,) = yaml.safe_load((project / "compose.yaml").read_text())["services"].values()
    assert {"PET_LOCAL_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} <= set(service["environment"])
    check_shell(project)


def test_nodes_that_serve_together_meet_by_the_host(server_of_nodes, tmp_path):
    project, document = server_of_nodes
    (service,) = yaml.safe_load((project / "compose.yaml").read_text())["services"].values()
    assert service["network_mode"] == "host" and "ports" not in service
    assert any(each.startswith("NODE_RANK=") for each in service["environment"])
    words, _ = run_container(project, tmp_path / "home", MASTER_ADDR="first", NODE_RANK="1")
    passed = [value for flag, value in pairwise(words) if flag == "--env"]
    assert {"MASTER_ADDR=first", "NODE_RANK=1", "API_KEY"} <= set(passed) and "--publish" not in words
    (command,) = (v for i, v in read_instructions(project) if i == "CMD")
    assert json.loads(command) == ["python", "node.py"]  # the host's network: the address is config.yaml's
    assert (project / "serve.sh").read_text().splitlines()[-1] == 'exec python node.py "$@"'
    assert {"PET_LOCAL_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} <= set(service["environment"])
    text = (project / "serve.sbatch").read_text()
    assert f"--nodes={document['layout']['nodes']}\n" in text and "#SBATCH --exclusive\n" in text
    check_shell(project)


# ---- Slurm


def test_srun_gets_the_cpus_of_the_job_and_time_to_save(nodes):
    project, document = nodes
    text = (project / "train.sbatch").read_text()
    assert text.index("export SRUN_CPUS_PER_TASK=") < text.index("\nsrun --kill-on-bad-exit=1 ./train.sh")
    grace = document["saving"]["grace_seconds"]
    assert f"--signal=B:USR1@{grace}\n" in text
    check_shell(project)


def test_a_job_asks_for_no_number_of_cpus_that_was_assumed(nodes, tmp_path):
    """Slurm: "Requested node configuration is not available", of 8 x 16 assumed CPUs on a node of 96."""
    text = (nodes[0] / "train.sbatch").read_text()
    assert "#SBATCH --exclusive\n#SBATCH --mem=0\n" in text and "--cpus-per-task=" not in text
    known = render_plan(tmp_path, hardware="2xp4d.24xlarge", data="Salesforce/wikitext", seq_len=512, global_batch=512)
    assert "#SBATCH --cpus-per-task=96\n#SBATCH --mem=0\n" in (known[0] / "train.sbatch").read_text()


@pytest.mark.parametrize(("per_node", "cpus"), [(8, 96), (4, 48), (1, 12)])
def test_a_job_on_part_of_a_node_leaves_the_other_cpus_to_others(per_node, cpus):
    request = Request(**LLAMA, hardware="p4d.24xlarge", data="Salesforce/wikitext", seq_len=512, global_batch=512)
    plan = pipeline.plan_request(request).plan
    layout = replace(plan.best.layout, per_node=per_node, replicate=per_node, shard=1)
    assert count_task_cpus(plan.case, layout) == cpus


def test_accelerators_that_slurm_has_no_name_for_are_asked_for_with_their_node():
    request = Request(**LLAMA, hardware="8xascend-910b3", data="Salesforce/wikitext", seq_len=512, global_batch=512)
    plan = pipeline.plan_request(request).plan
    assert count_task_cpus(plan.case, replace(plan.best.layout, per_node=4, replicate=4, shard=1)) is None


# ---- memory


def test_changing_shapes_get_segments_that_grow_before_torch_is_imported(sft):
    """A CUDA build reads its settings as torch is loaded (c10/cuda/CUDACachingAllocator.cpp, BackendStaticInitializer)."""
    project, _ = sft
    setting = "PYTORCH_ALLOC_CONF=expandable_segments:True"
    lines = (project / "train.py").read_text().splitlines()
    (place,) = (n for n, line in enumerate(lines) if "PYTORCH_ALLOC_CONF" in line)
    assert place < min(n for n, line in enumerate(lines) if re.match(r"(import|from) (torch|transformers|trl)", line))
    assert setting in (project / "Dockerfile").read_text()
    assert setting.replace("=", " := ") in (project / "Makefile").read_text()


def test_a_roomy_plan_of_one_shape_keeps_the_default(tmp_path):
    project, document = render_plan(
        tmp_path, hardware="1xh200-sxm-141gb", model="HuggingFaceTB/SmolLM2-135M", config=str(MODELS / "smollm2-135m.json"),
        data="Salesforce/wikitext", task="causal-lm", seq_len=512, global_batch=8,
    )  # fmt: skip
    estimate = document["estimate"]
    assert estimate["peak_memory_gib"] < 0.9 * estimate["limit_gib"]
    assert "ALLOC_CONF" not in (project / "train.py").read_text()


# ---- saves


def test_the_interval_of_saves_is_that_of_the_plan(sft):
    project, document = sft
    saving, estimate = document["saving"], document["estimate"]
    config = yaml.safe_load((project / "config.yaml").read_text())
    assert config["training"]["save_steps"] == saving["save_steps"]
    assert 15 * 60 <= saving["save_steps"] * estimate["step_seconds"] <= 45 * 60
    assert "## Saved" in (project / "PLAN.md").read_text() and json.dumps(saving)


def test_tokens_are_not_counted_by_the_trainer(sft):
    """include_num_input_tokens_seen counts padding, and waits for the device in every micro-batch (trainer.py)."""
    project, _ = sft
    assert "include_num_input_tokens_seen" not in (project / "train.py").read_text()
    assert (project / "token_count.py").is_file()
