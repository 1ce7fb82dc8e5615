"""Docker's place is taken by buildah: a server that runs as root, and a `docker` for whoever calls it, as with Docker itself.

Bases of images come from debootstrap under the names that the Dockerfiles ask for, since a registry may be out of reach.
"""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SUITE = "bookworm"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
STORE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfgen-images"
PYTHON_PACKAGES = ("python3", "python3-pip", "python3-venv")
TORCH_INDEX = os.environ.get("TORCH_INDEX", "")
"""as in the Makefile: without it torch comes from where this machine's pip finds it"""


def explain_absence() -> str | None:
    """Why no image can be built here."""
    missing = [name for name in ("buildah", "debootstrap") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} missing: apt-get install {' '.join(missing)}"
    return None if os.getuid() == 0 else "only root can build images by chroot"


@cache
def choose_driver() -> str:
    """overlay where the kernel mounts one in the store, else vfs, which copies a whole image for each container."""
    with tempfile.TemporaryDirectory(dir=STORE) as scratch:
        for name in ("lower", "upper", "work", "merged"):
            (Path(scratch) / name).mkdir()
        layers = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        command = ["mount", "-t", "overlay", "overlay", "-o", layers, f"{scratch}/merged"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return "vfs"
        subprocess.run(["umount", f"{scratch}/merged"], check=True)
        return "overlay"


def buildah(*words: str) -> subprocess.CompletedProcess:
    STORE.mkdir(parents=True, exist_ok=True)
    driver = choose_driver()
    environment = os.environ | {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": driver}
    command = ["buildah", "--root", str(STORE / driver), "--runroot", str(STORE / f"{driver}-run"), *words]
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


def check(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def make_base(image: str) -> None:
    """``image``, of Debian: with its Python as python:3.11-slim-bookworm has one, or bare and with a user 1000, as Ubuntu's."""
    if buildah("inspect", "--type", "image", image).returncode == 0:
        return
    tree = STORE / "rootfs"
    if not (tree / "etc" / "debian_version").exists() or (STORE / "unfinished").exists():
        shutil.rmtree(tree, ignore_errors=True)
        STORE.mkdir(parents=True, exist_ok=True)
        (STORE / "unfinished").touch()
        included = "passwd,ca-certificates"
        command = ["debootstrap", "--variant=minbase", f"--include={included}", SUITE, str(tree), MIRROR]
        check(subprocess.run(command, text=True, capture_output=True, check=False))
        (STORE / "unfinished").unlink()
    container = check(buildah("from", "scratch"))
    check(buildah("copy", container, str(tree), "/"))
    check(buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container))
    check(buildah("run", container, "--", "sh", "-c", "echo 127.0.0.1 localhost >/etc/hosts"))  # Docker's has it always
    if image.partition(":")[0] == "python":
        script = f"apt-get update -qq && apt-get install -y -qq {' '.join(PYTHON_PACKAGES)}"
        script += " && ln -s python3 /usr/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED"
        check(buildah("run", "--network", "host", container, "--", "sh", "-c", script))
    else:
        check(buildah("run", container, "--", "useradd", "--uid", "1000", "ubuntu"))
    check(buildah("commit", "--rm", container, image))


def list_pip_settings(folder: Path) -> list[str]:
    """Options of `buildah bud` that give a build this machine's settings of pip, and the folders that they name."""
    listed = check(subprocess.run([sys.executable, "-m", "pip", "config", "list"], text=True, capture_output=True))
    settings = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        settings[key.partition(".")[2]] = ast.literal_eval(value)
    lines = [f"{key} = " + str(value).replace("\n", "\n    ") for key, value in settings.items()]
    (folder / "pip.conf").write_text("[global]\n" + "\n".join(lines) + "\n")
    words = {word.removeprefix("file://") for value in settings.values() for word in str(value).split()}
    places = {
        path if path.is_dir() else path.parent for path in map(Path, words) if path.is_absolute() and path.exists()
    }
    places = {path.parent if path.name == "simple" else path for path in places}  # an index links to files beside it
    tops = {place for place in places if not any(other in place.parents for other in places)}
    mounts = [f"{folder / 'pip.conf'}:/etc/pip.conf:ro", *(f"{place}:{place}:ro" for place in sorted(tops))]
    return [word for mount in mounts for word in ("--volume", mount)]


def build(context: Path, tag: str, scratch: Path) -> subprocess.CompletedProcess:
    """`docker build`, torch from ``TORCH_INDEX``: a CUDA build too is then the CPU's."""
    text = (context / "Dockerfile").read_text()
    make_base(re.search(r"^FROM (\S+)", text, re.MULTILINE)[1])
    index = f"--index-url {TORCH_INDEX}" if TORCH_INDEX else ""
    text, replaced = re.subn(r"--index-url https://download\.pytorch\.org/\S+", index, text)
    assert replaced == 1
    (scratch / "Dockerfile").write_text(text)
    words = ["bud", "--pull-never", "--network", "host", "--tag", tag, "--file", str(scratch / "Dockerfile")]
    return buildah(*words, *list_pip_settings(scratch), str(context))


VALUED = ("--shm-size", "--stop-timeout", "--user", "--env", "--mount", "--gpus", "--network", "--volume")


def run(words: list[str], environment: dict[str, str], network: str = "none") -> subprocess.CompletedProcess:
    """`docker run`: its flags as buildah has them; what buildah has no word for (--init, --gpus) is left out."""
    flags, options = list(words), []
    mounts: list[dict[str, str]] = []
    while flags and flags[0].startswith("--"):
        flag = flags.pop(0)
        value = flags.pop(0) if flag in VALUED else ""
        assert flag in (*VALUED, "--rm", "--init"), flag
        if flag == "--user":
            options += ["--user", value]
        elif flag == "--env" and ("=" in value or value in environment):
            options += ["--env", value if "=" in value else f"{value}={environment[value]}"]
        elif flag == "--mount":
            (fields,) = csv.reader([value])
            mounts.append(dict(field.partition("=")[::2] for field in fields))
    for mount in sorted(mounts, key=lambda m: m["target"].count("/")):
        assert Path(mount["source"]).exists(), f"bind source path does not exist: {mount['source']}"
        options += ["--volume", f"{mount['source']}:{mount['target']}{':ro' if 'readonly' in mount else ''}"]
    image, command = flags[0], flags[1:]
    settings = json.loads(check(buildah("inspect", "--type", "image", image)))["OCIv1"]["config"]
    container = check(buildah("from", "--pull-never", image))
    try:
        return buildah("run", "--network", network, *options, container, "--", *(command or settings["Cmd"]))
    finally:
        buildah("rm", container)


@contextmanager
def serve_engine(folder: Path) -> Generator[Path]:
    """A folder for PATH with a `docker` that any user may call: it lays down what it was asked, and waits for the answer."""
    spool, commands = folder / "spool", folder / "bin"
    spool.mkdir()
    spool.chmod(0o1777)
    commands.mkdir()
    (commands / "docker").write_text(CLIENT.replace("SPOOL", str(spool)))
    (commands / "docker").chmod(0o755)
    ended = threading.Event()

    def answer_all() -> None:
        while not ended.wait(0.05):
            for asked in spool.glob("*.asked"):
                words = (asked / "words").read_text().split("\0")[:-1]
                variables = (asked / "variables").read_text().split("\0")[:-1]
                asked.rename(asked.with_suffix(".taken"))
                answer(asked.with_suffix(".taken"), words, dict(line.partition("=")[::2] for line in variables))

    server = threading.Thread(target=answer_all)
    server.start()
    try:
        yield commands
    finally:
        ended.set()
        server.join()


def answer(folder: Path, words: list[str], variables: dict[str, str]) -> None:
    try:
        assert words[0] == "run", f"no such command here: {words[0]}"
        done = run(words[1:], variables)
        code, output, errors = done.returncode, done.stdout, done.stderr
    except AssertionError as error:
        code, output, errors = 125, "", f"{error}\n"
    (folder / "output").write_text(output)
    (folder / "errors").write_text(errors)
    (folder / "draft").write_text(str(code))
    (folder / "draft").rename(folder / "code")


CLIENT = """#!/bin/sh
cd SPOOL
mkdir $$
printf '%s\\0' "$@" >$$/words
env -0 >$$/variables
mv $$ $$.asked
while ! [ -f $$.taken/code ]; do sleep 0.1; done
cat $$.taken/output
cat $$.taken/errors >&2
exit "$(cat $$.taken/code)"
"""
