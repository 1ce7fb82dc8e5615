"""Weights that an engine reads, made once from the model's: all of them or none, and again when either changes."""

import errno
import fcntl
import hashlib
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from huggingface_hub import snapshot_download

from config_file import read_config
from sources import find_source

HERE = Path(__file__).resolve().parent
DRAFT_MODEL = "draft_model"
"""Where a small model that proposes tokens stands in the folder."""
RECORD = "converted.json"
"""Written last into the folder: what it was made of and by what."""
FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken")
HEADER_LIMIT = 100 << 20
LEAST_FREE = 1 << 20
"""Bytes that a disk has left which is not full; few libraries say so when it is."""
BEGINNING = 1 << 20


def convert_weights(packages: tuple[str, ...], write: Callable[[Path, Path, str], None], options: dict) -> None:
    """``write(model, folder, weights)``, where what config.yaml names is not there yet. ``packages`` do the writing."""
    config = read_config()
    serving = config["serving"]
    target = HERE / serving["converted"]
    models = {"": fetch_model(config, "model", config.get("revision"))}
    if "draft_model" in config:
        models[DRAFT_MODEL] = fetch_model(config, "draft_model", config.get("draft_revision"))
    with lock_folder(target.parent):
        write_once(models, target, packages, write, options, serving)


def write_once(
    models: dict[str, Path], target: Path, packages: tuple[str, ...], write: Callable, options: dict, serving: dict
) -> None:
    """Each of the ``models`` below the folder, by its name there."""
    model = models[""]
    record = {
        "engine": serving["engine"],
        "weights": serving["weights"],
        "options": options,
        "versions": {name: version(name) for name in packages},
        "model": describe_files(model),
        **({DRAFT_MODEL: describe_files(models[DRAFT_MODEL])} if DRAFT_MODEL in models else {}),
    }
    if read_record(target) == record:
        print(f"{target} holds {serving['weights']} weights of this model already")
        return
    draft = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    print(f"{model} is written as {serving['weights']} for {serving['engine']} ...", flush=True)
    with end_where_full(draft):
        for name, source in models.items():
            (draft / name).mkdir(parents=True)
            write(source, draft / name, serving["weights"])
        for path in draft.rglob("*"):
            sync_to_disk(path)
        (draft / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        sync_to_disk(draft / RECORD)
    replace_folder(draft, target)
    print(f"{target}: {sum(path.stat().st_size for path in target.rglob('*') if path.is_file()) / 1e6:,.0f} MB")


@contextmanager
def lock_folder(folder: Path) -> Generator[None]:
    """One process at a time writes weights there, the others wait. A process that this one starts has the lock too: it
    may write on where this one is killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        sys.exit(f"{folder}: {error.strerror}; name another folder as serving.converted in config.yaml")
    os.set_inheritable(descriptor, True)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process writes weights in {folder}: waiting for it ...", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:  # some shared file systems have no locks
        print(f"{folder} cannot be locked ({error.strerror}): see that no other convert.py writes there")
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def end_where_full(draft: Path) -> Generator[None]:
    """One line where the system takes no more, whatever a library makes of that. What was written is removed."""
    try:
        yield
    except BaseException as error:
        reason = explain_unwritten(draft, error) if isinstance(error, (Exception, SystemExit)) else None
        shutil.rmtree(draft, ignore_errors=True)
        if reason:
            sys.exit(f"the engine's weights were not written: {reason}, and run again")
        raise


def explain_unwritten(draft: Path, error: BaseException) -> str | None:
    """What the system did not take, and what to do. Libraries raise errors of their own, or lose its number: so the
    room that is left is looked at, and the longest file that was written beside how long one may be."""
    longest = max((path.stat().st_size for path in draft.rglob("*") if path.is_file()), default=0)
    limit, place = resource.getrlimit(resource.RLIMIT_FSIZE)[0], draft.parent
    if is_of_system(error, errno.EFBIG) or longest >= limit != resource.RLIM_INFINITY:
        return f"{place} takes no files of that length: raise the limit (ulimit -f), or take another disk"
    if is_of_system(error, errno.ENOSPC, errno.EDQUOT) or shutil.disk_usage(place).free < LEAST_FREE:
        return f"{place} is full: make room"
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{error.filename or place} cannot be written ({error.strerror}): see whose it is"
    return None


def is_of_system(error: BaseException, *numbers: int) -> bool:
    """Or repeats its words, as a builder in a process of its own does, which may have removed what it wrote."""
    number = error.errno if isinstance(error, OSError) else None
    return number in numbers or any(os.strerror(each) in str(error) for each in numbers)


def fetch_model(config: dict, key: str, revision: str | None) -> Path:
    """The folder of a model, or its one file; from the hub where it is a name there."""
    source = find_source(config, key)
    if isinstance(source, Path):
        return source
    return Path(snapshot_download(source, revision=revision, allow_patterns=list(FILES)))


def describe_files(model: Path) -> dict[str, str]:
    """By name: a hash of what is small, size and header of weights and when they were written."""
    if model.is_file():
        return {model.name: describe_file(model)}
    files = sorted({path for pattern in FILES for path in model.glob(pattern)})
    if not any(path.suffix == ".safetensors" for path in files):
        sys.exit(f"{model} holds no .safetensors: the engine's weights are made of those; save the model as such")
    return {path.name: describe_weights(path) if path.suffix == ".safetensors" else hash_file(path) for path in files}


def describe_file(path: Path) -> str:
    """Of a GGUF file, whose header is at the beginning."""
    with path.open("rb") as file:
        beginning = hashlib.sha256(file.read(BEGINNING)).hexdigest()
    facts = path.stat()
    return f"{facts.st_size} bytes, {facts.st_mtime_ns} ns, {beginning}"


def describe_weights(path: Path) -> str:
    """Sizes of all tensors and their places are in the header; a training writes others, later."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > HEADER_LIMIT:
            sys.exit(f"{path} is damaged: its header would have {length:,} bytes; fetch the model again")
        header = hashlib.sha256(file.read(length)).hexdigest()
    facts = path.stat()
    return f"{facts.st_size} bytes, {facts.st_mtime_ns} ns, {header}"


def hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_record(folder: Path) -> dict | None:
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def replace_folder(draft: Path, target: Path) -> None:
    """A kill in between leaves none, which the next call makes; never half of one."""
    old = target.with_name(f"{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        if read_record(target) is None and any(target.iterdir()):
            sys.exit(f"{target} holds files of others: move them away, or name another folder as serving.converted")
        target.rename(old)
    draft.rename(target)
    sync_to_disk(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def sync_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
