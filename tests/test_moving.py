"""A project can go to another folder, user and machine: what it names, what goes with it, and that it trains on there."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from projects import MODEL, TEXT, render_small_project
from test_data_formats import make_tokenizer

from generator.case.request import Request
from generator.case.sources import read_work
from generator.cli import perfgen
from generator.emit.packing import format_bytes
from generator.emit.sources import place_sources
from generator.pipeline import document_request
from generator.run.smoke import SMOKE_JOB

ROOT = Path(__file__).resolve().parents[1]
OWNER = "marked-owner"
"""a folder's name that must stand in no emitted file"""
SMALL = (
    "--seq-len",
    "16",
    "--global-batch",
    "4",
    "--max-steps",
    "8",
    "--pin",
    "compile=off",
    "--pin",
    "precision=fp32",
)


@pytest.fixture
def inputs(tmp_path) -> Path:
    """A model's config and data, below a folder whose name gives its owner away."""
    folder = tmp_path / OWNER / "it's here, ü"
    (folder / "m").mkdir(parents=True)
    (folder / "m" / "config.json").write_text(json.dumps(MODEL))
    (folder / "texts.txt").write_text(TEXT)
    (folder / "held.txt").write_text(TEXT[: len(TEXT) // 4])
    return folder


def init(dest: Path, inputs: Path, *words: str, hardware: str = "cpu:1") -> dict:
    places = ("--model", inputs / "m" / "config.json", "--data", inputs / "texts.txt", "--hardware", hardware)
    command = ["init", dest, *places, *SMALL, "--offline", "--yes", "--json", *words]
    done = CliRunner().invoke(perfgen, list(map(str, command)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def read_config(project: Path) -> dict:
    return yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))


def read_emitted(project: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    """Every file, and what is packed in one."""
    for name in names:
        if zipfile.is_zipfile(project / name):
            with zipfile.ZipFile(project / name) as packed:
                yield from ((f"{name}/{inner}", packed.read(inner)) for inner in packed.namelist())
        else:
            yield name, (project / name).read_bytes()


def test_no_emitted_file_names_a_folder_of_the_machine_that_planned(inputs, tmp_path):
    result = init(tmp_path / "p", inputs, "--eval", str(inputs / "held.txt"))
    config = read_config(tmp_path / "p")
    assert config["model"] == "./model/m/config.json" and config["data"] == "./data/texts.txt"
    assert config["eval_data"] == "./eval_data/held.txt"
    for key in ("model", "data", "eval_data"):
        assert (tmp_path / "p" / config[key]).is_file(), "it runs at once where it was planned"
    read = 0
    for name, content in read_emitted(tmp_path / "p", result["files"]):
        text = content.decode("utf-8")
        assert OWNER not in text and str(tmp_path) not in text and str(ROOT) not in text, name
        read += 1
    assert read > len(result["files"])


def test_of_a_tokenizer_beside_weights_the_weights_stay_where_they_are(inputs, tmp_path):
    """They were counted and copied with it: 16 GB for a vocabulary."""
    full, project = tmp_path / OWNER / "full", tmp_path / "p"
    (full / "original").mkdir(parents=True)
    (full / "additional_chat_templates").mkdir()
    make_tokenizer(full)
    for name in ("model.safetensors", "model.safetensors.index.json", "optimizer.pt", "original/consolidated.00.pth"):
        (full / name).write_bytes(b"0" * 100_000)
    result = init(project, inputs, "--tokenizer", str(full))
    kept = {path.name for path in full.iterdir()} - {"model.safetensors", "optimizer.pt", "original"}
    assert read_config(project)["tokenizer"] == "./tokenizer/full"
    assert {link.name for link in (project / "tokenizer" / "full").iterdir() if link.is_symlink()} == kept
    rows = {what: (place, files) for what, place, _, files, _ in result["packing"]["rows"]}
    assert rows["tokenizer"] == ("./tokenizer/full", len(kept) - 1)  # the folder of templates is empty
    again = CliRunner().invoke(perfgen, ["update", str(project), "--diff"])
    assert "tokenizer" not in again.output, again.output
    shutil.rmtree(project / "tokenizer")
    (project / "tokenizer").mkdir()
    (project / "tokenizer" / "full").symlink_to(full)  # as it was made before
    before = CliRunner().invoke(perfgen, ["update", str(project), "--diff"])
    assert "tokenizer" not in before.output, before.output


def test_answers_for_copier_name_places_in_a_project_that_nobody_knows_yet(inputs):
    named = {"model": str(inputs / "m" / "config.json"), "data": str(inputs / "texts.txt"), "hardware": "cpu:1"}
    document = document_request(Request(**named, seq_len=16, global_batch=4, offline=True))
    assert (document.config.model, document.config.data) == ("./model/m/config.json", "./data/texts.txt")
    assert [(s.key, s.files, s.bytes) for s in document.project.sources] == [
        ("model", 1, len(json.dumps(MODEL))),
        ("data", 1, len(TEXT)),
    ]


def test_the_packing_list_is_what_has_to_go_and_the_copy_needs_nothing_else(inputs, tmp_path):
    packing = init(tmp_path / "p", inputs)["packing"]
    rows = {what: (place, files, size) for what, place, _, files, size in packing["rows"]}
    assert rows["data"] == ("./data/texts.txt", 1, len(TEXT)) and rows["project"][0] == "p/"
    assert rows["project"][1] == sum(f.is_file() and not f.is_symlink() for f in (tmp_path / "p").rglob("*"))
    (command,) = packing["commands"]
    assert command.startswith("rsync -aL ") and command.endswith(f" {tmp_path / 'p'}/ USER@HOST:p/")
    # a pattern with a / at its beginning is of the top alone: the model of an earlier project is a folder called runs
    excluded = [word.removeprefix("--exclude=") for word in shlex.split(command) if word.startswith("--exclude=")]
    assert {word for word in excluded if not word.startswith("/")} == {"__pycache__"} and "/runs" in excluded
    assert packing["there"] == [
        "cd p && make setup && make smoke && make train",
        "cd p && make image && sh container.sh   # or in a container",
    ]
    there = tmp_path / "there"
    subprocess.run(["cp", "-rL", tmp_path / "p", there], check=True)  # as rsync -L, scp -r
    shutil.rmtree(tmp_path / OWNER)
    assert (there / read_config(there)["data"]).read_text() == TEXT
    assert not any(path.is_symlink() for path in there.rglob("*"))


def test_several_nodes_have_next_steps_of_their_own(inputs, tmp_path):
    places = (
        "--model",
        inputs / "m" / "config.json",
        "--data",
        inputs / "texts.txt",
        "--hardware",
        "2x8xh100-sxm-80gb",
    )
    sizes = ("--seq-len", "16", "--global-batch", "64", "--max-steps", "8", "--pin", "parallelism=ddp")
    command = ["init", tmp_path / "p", *places, *sizes, "--optimize-for", "time", "--offline", "--yes"]
    result = CliRunner().invoke(perfgen, list(map(str, command)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "next, there, on a disk that all nodes see:" in result.output
    assert "make setup && sbatch train.sbatch" in result.output and "make train MASTER_ADDR=NODE" in result.output
    assert "make smoke" not in result.output and "`perfgen smoke`" not in result.output
    readme = (tmp_path / "p" / "README.md").read_text()
    assert SMOKE_JOB in result.output and SMOKE_JOB in readme
    assert "MASTER_ADDR=node-1 sh container.sh" in readme and "&& sh container.sh" not in readme


def test_the_readme_says_what_every_file_is_for(inputs, tmp_path):
    """The user's own first; a technique's by the first line of the module itself."""
    init(tmp_path / "p", inputs)
    files = (tmp_path / "p" / "README.md").read_text().split("## Files")[1]
    unnamed = [path.name for path in (tmp_path / "p").glob("*.py") if f"`{path.name}`" not in files]
    assert not unnamed
    assert files.split("| `")[1].startswith("config.yaml`") and "that the plan asked for" not in files


def list_paths(inputs: Path, dest: Path | None, **request) -> dict[str, str]:
    work = read_work(Request(**{"model": str(inputs / "m" / "config.json"), "offline": True, "seq_len": 16} | request))
    return {source.local.key: source.path for source in place_sources(work, dest)}


def test_what_lies_in_the_project_or_around_it_is_not_linked(inputs):
    (inputs / "texts").mkdir()
    (inputs / "texts.txt").rename(inputs / "texts" / "texts.txt")
    around = list_paths(inputs, inputs / "texts" / "deep" / "p", data=str(inputs / "texts"))
    assert around["data"] == "../.."
    inside = list_paths(inputs, inputs, data=str(inputs / "texts" / "texts.txt"))
    assert inside["data"] == "./texts/texts.txt" and inside["model"] == "./m/config.json"


def test_what_lies_above_the_folder_one_works_in_is_not_in_it(inputs, monkeypatch):
    """`cd p; perfgen update . --data ../texts.txt`: "p/../texts.txt" begins like what is in p."""
    project = inputs / "p"
    project.mkdir()
    monkeypatch.chdir(project)
    assert list_paths(inputs, project, data="../texts.txt")["data"] == "./data/texts.txt"
    assert list_paths(inputs, project, data="../*xts.txt")["data"] == "./data/*xts.txt"
    (inputs / "far").mkdir()
    (project / "link").symlink_to(inputs / "far")
    assert list_paths(inputs, project, data="link/../texts.txt")["data"] == "./data/texts.txt"


def test_links_keep_the_names_that_say_what_a_file_is(inputs, tmp_path, monkeypatch):
    """As in the hub's cache, where a file's real name is its hash."""
    blob = tmp_path / "blobs" / "3f786850"
    blob.parent.mkdir()
    blob.write_text(TEXT)
    (inputs / "linked.txt").symlink_to(blob)
    assert list_paths(inputs, tmp_path / "p", data=str(inputs / "linked.txt"))["data"] == "./data/linked.txt"
    monkeypatch.setenv("HOME", str(inputs))
    assert list_paths(inputs, tmp_path / "p", data="~/texts.txt")["data"] == "./data/texts.txt"
    monkeypatch.chdir(inputs / "m")
    assert list_paths(inputs, tmp_path / "p", data="../texts.txt")["data"] == "./data/texts.txt"


def test_a_pattern_is_linked_file_by_file(inputs, tmp_path):
    shards = inputs / "shards"
    shards.mkdir()
    for name in ("train-0.txt", "train-1.txt", "test-0.txt"):
        (shards / name).write_text(TEXT)
    work = read_work(
        Request(model=str(inputs / "m" / "config.json"), data=str(shards), offline=True, seq_len=16, global_batch=4)
    )
    data = next(source for source in place_sources(work, tmp_path / "p") if source.local.key == "data")
    assert data.path == "./data/train-*.txt" and data.local.files == 2
    assert [name for name, _ in data.links] == ["data/train-0.txt", "data/train-1.txt"]


def test_the_container_gets_what_links_lead_to_where_they_lead(inputs, tmp_path):
    shards = inputs / "shards"
    shards.mkdir()
    for name in ("train-0.txt", "train-1.txt", "test-0.txt"):
        (shards / name).write_text(TEXT)
    project = tmp_path / "p"
    init(project, inputs, "--data", str(shards))
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    docker.chmod(0o755)
    environment = os.environ | {"PATH": f"{docker.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", project / "container.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    mounts = [line for line in done.stdout.splitlines() if OWNER in line]
    for source in (inputs / "m" / "config.json", shards / "train-0.txt", shards / "train-1.txt"):
        assert f'type=bind,"source={source}","target={source}",readonly' in mounts
    assert len(mounts) == 3
    assert (project / "data" / "train-0.txt").readlink() == shards / "train-0.txt"


def test_data_in_a_project_stays_in_the_one_that_replaces_it(inputs, tmp_path):
    project = tmp_path / "p"
    init(project, inputs)
    (project / "data" / "mine.txt").write_text(TEXT)
    places = ("--model", inputs / "m" / "config.json", "--data", project / "data" / "mine.txt", "--hardware", "cpu:1")
    command = ["init", project, *places, *SMALL, "--offline", "--yes", "--overwrite"]
    done = CliRunner().invoke(perfgen, list(map(str, command)), catch_exceptions=False)
    assert done.exit_code == 0 and "data/mine.txt stays in the new one" in done.output
    assert read_config(project)["data"] == "./data/mine.txt" and (project / "data" / "mine.txt").read_text() == TEXT


def test_a_file_system_without_links_is_said(inputs, tmp_path, monkeypatch):
    def refuse(self, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    places = ("--model", inputs / "m" / "config.json", "--data", inputs / "texts.txt", "--hardware", "cpu:1")
    command = ["init", tmp_path / "p", *places, *SMALL, "--offline", "--yes"]
    done = CliRunner().invoke(perfgen, list(map(str, command)), catch_exceptions=False)
    assert done.exit_code == 0
    assert (
        f"no link could be made there: copy {inputs / 'texts.txt'} to {tmp_path / 'p' / 'data' / 'texts.txt'}"
        in done.output
    )


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (999_999, "1 MB"), (542_000_000, "542 MB")]
)
def test_sizes_are_three_digits(size, words):
    assert format_bytes(size) == words


NOBODY = 54321
"""a user that owns nothing here"""


def run_as(user: int, project: Path, *words: str) -> subprocess.CompletedProcess:
    """A script of the project by its full path, from another folder, as another user with a home of his own."""
    home = project.parent
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "HF_HUB_OFFLINE": "1"}
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", sys.executable]
    return subprocess.run(
        [*command, str(project / words[0]), *words[1:]],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def can_run_as_another() -> bool:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", sys.executable, "-c", "import torch"]
    return subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0


@pytest.fixture
def base():
    """A folder that every user may enter: pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="moved-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("original", ["gone", "read-only"])
def test_a_run_that_was_moved_goes_on_as_another_user_and_keeps_its_best_model(base, original):
    """Trained to step 4 in folder A, copied to B by another user, resumed there: the best model is one of A's steps."""
    if not can_run_as_another():
        pytest.skip("takes root, setpriv, and a Python that others may run")
    a = render_small_project(base / "a", eval="0.1", max_steps=8)
    short = ("--max_steps", "4", "--save_steps", "2", "--eval_steps", "2", "--learning_rate", "0.01")
    first = subprocess.run([sys.executable, str(a / "train.py"), *short], cwd="/", capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    home = base / "home of nobody, ü's"
    home.mkdir()
    b = home / "moved"
    subprocess.run(["cp", "-rL", a, b], check=True)
    state = b / "runs" / "checkpoint-4" / "trainer_state.json"
    recorded = json.loads(state.read_text())
    assert Path(recorded["best_model_checkpoint"]).is_relative_to(a)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", home], check=True)
    if original == "gone":
        shutil.rmtree(base / "a")
    else:
        subprocess.run(["chmod", "-R", "a-w,a+rX", base / "a"], check=True)
    for path in (b / "data", b / "model"):
        subprocess.run(["chmod", "-R", "a-w", path], check=True)
    longer = (
        "--max_steps",
        "8",
        "--save_steps",
        "2",
        "--eval_steps",
        "2",
        "--learning_rate",
        "10",
        "--warmup_steps",
        "0",
    )
    second = run_as(NOBODY, b, "train.py", *longer)
    assert second.returncode == 0, second.stdout + second.stderr
    assert f"resuming from {b / 'runs' / 'checkpoint-4'}" in second.stdout
    report = json.loads((b / "runs" / "run.json").read_text())
    assert report["finished_step"] == 8 and report["kept_step"] <= 4, "at a learning rate of 10 nothing gets better"
    kept = b / "runs" / f"checkpoint-{report['kept_step']}" / "model.safetensors"
    assert (b / "runs" / "model.safetensors").read_bytes() == kept.read_bytes()
    answer = run_as(NOBODY, b, "infer.py", "--max_new_tokens", "4", "--prompt", "the quick")
    assert answer.returncode == 0 and f"{b / 'runs'}: the finished run" in answer.stderr, answer.stderr


@pytest.mark.slow
@pytest.mark.parametrize("task", ["text-classification", "causal-lm"])
def test_adapters_that_were_moved_answer_as_before_on_the_moved_model(tmp_path, task):
    """Their adapter_config.json has the full path of the model in the old folder, which is gone."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = tmp_path / "a" / "small"
    folder.mkdir(parents=True)
    make_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{k: v for k, v in MODEL.items() if k != "architectures"} | {"vocab_size": 2000})
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    rows = [{"text": f"it is {word} number {n}", "label": word} for n in range(30) for word in ("good", "bad")]
    (tmp_path / "a" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = ("--model", folder, "--data", tmp_path / "a" / "rows.jsonl", "--hardware", "cpu:1", "--task", task)
    words = (*places, *SMALL, "--train", "lora", "--max-steps", "3", "--no-smoke", "--offline", "--yes")
    done = CliRunner().invoke(perfgen, list(map(str, ["init", tmp_path / "a" / "p", *words])), catch_exceptions=False)
    assert done.exit_code == 0, done.output

    def run(project: Path, *command: str) -> str:
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        words = [sys.executable, str(project / command[0]), *command[1:]]
        done = subprocess.run(words, cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(project: Path, *more: str) -> dict:
        answer = json.loads(run(project, "infer.py", "--prompt", "it is good", "--json", *more))
        return {key: answer.get(key) for key in ("answer", "labels")}

    run(tmp_path / "a" / "p", "train.py", "--learning_rate", "0.1", "--output_dir", str(tmp_path / "a" / "p" / "other"))
    before = ask(tmp_path / "a" / "p")
    subprocess.run(["cp", "-rL", tmp_path / "a" / "p", tmp_path / "b"], check=True)
    shutil.rmtree(tmp_path / "a")
    assert str(tmp_path / "a") in (tmp_path / "b" / "other" / "adapter_config.json").read_text()
    assert ask(tmp_path / "b") == before
    run(tmp_path / "b", "merge.py")
    shutil.rmtree(tmp_path / "b" / "model")
    assert ask(tmp_path / "b", "--run", str(tmp_path / "b" / "other" / "merged"))["answer"] == before["answer"]
