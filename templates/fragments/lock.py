"""Pin what is installed: `make lock` writes requirements.lock.

Every package that pip would install here now, with the sha256 of its file; `make setup`, and an image built of this
project, then install these files and no others. The lines of another Python or platform are kept: run it there too.
"""

import argparse
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
LOCK, PLAN = HERE / "requirements.lock", HERE / "plan.json"
EXTRA = "test"
"""of pyproject.toml; `make setup` installs it too"""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
MARKER = (
    f"python_version == '{PYTHON}' and sys_platform == '{sys.platform}' and platform_machine == '{platform.machine()}'"
)


def read_wanted() -> tuple[list[str], str | None]:
    """The requirements of pyproject.toml, and the index of torch, or of an engine that brings its own, if any."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = project["project"]["dependencies"] + project["project"]["optional-dependencies"][EXTRA]
    uv = project["tool"].get("uv")
    return sorted(requirements), uv["index"][0]["url"] if uv else None


def hash_wanted() -> str:
    return hashlib.sha256(json.dumps(read_wanted()).encode()).hexdigest()


def hide_secrets(text: str) -> str:
    """Without user and password in an address."""
    return re.sub(r"(://)[^/@\s]+@", r"\1***@", text)


def resolve(requirements: list[str], *options: str) -> list[dict]:
    """What pip would install into an empty environment: name, version, sha256, and whether it is built from source."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), *options, *requirements]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"make lock: pip says\n{hide_secrets(done.stderr.strip()[-2000:])}")
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [describe(item) for item in installed]


def describe(item: dict) -> dict:
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    archive = item["download_info"].get("archive_info", {})
    sha256 = archive.get("hashes", {}).get("sha256")
    if sha256 is None:
        sys.exit(f"make lock: no sha256 of {name} {version} ({hide_secrets(item['download_info']['url'])})")
    source = not urlsplit(item["download_info"]["url"]).path.endswith(".whl")
    name = re.sub(r"[-_.]+", "-", name).lower()
    return {"name": name, "version": version, "sha256": sha256, "source": source}


def lock_packages() -> list[dict]:
    """All packages, by name. torch's build is that of its own index; PyPI has another of the same version."""
    requirements, index = read_wanted()
    if index is None:
        return sorted(resolve(requirements), key=lambda package: package["name"])
    torch = next((line for line in requirements if re.match(r"torch\b(?!-)", line)), None)
    if torch is None:
        return sorted(resolve(requirements, "--extra-index-url", index), key=lambda package: package["name"])
    (build,) = resolve([torch], "--no-deps", "--index-url", index)
    rest = [line for line in requirements if line != torch]
    packages = resolve([f"torch=={build['version']}", *rest], "--extra-index-url", index)
    return sorted(packages, key=lambda package: package["name"])


def write_lock(packages: list[dict]) -> None:
    """The lines of this Python and platform anew; those of others stay, if they are of the same pyproject.toml."""
    wanted = hash_wanted()
    others = [entry for entry in read_entries() if MARKER not in entry] if read_header() == wanted else []
    lines = [
        f"{p['name']}=={p['version']} ; {MARKER} \\\n    --hash=sha256:{p['sha256']}"
        + ("  # from source" * p["source"])
        for p in packages
    ]
    _, index = read_wanted()
    head = f"# Written by `make lock`.\n# of pyproject.toml: {wanted}\n"
    head += f"--extra-index-url {index}\n" if index else ""
    replace_file(LOCK, head + "".join(f"{entry}\n" for entry in sorted(lines + others)))


def replace_file(path: Path, text: str) -> None:
    """At once: a disk that is full leaves the file that was there. Ends the process where it takes no other."""
    path = path.resolve()
    draft = path.with_name(f"{path.name}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, draft)
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        sys.exit(f"make lock: {path} cannot be written ({error.strerror}), and is as it was")


def read_header() -> str | None:
    """Which requirements the lock is of."""
    text = LOCK.read_text(encoding="utf-8") if LOCK.is_file() else ""
    match = re.search(r"^# of pyproject\.toml: (\w+)$", text, re.MULTILINE)
    return match[1] if match else None


def read_entries() -> list[str]:
    """Each package with its marker and its hash."""
    text = LOCK.read_text(encoding="utf-8") if LOCK.is_file() else ""
    return re.findall(r"^\w[^\n]* \\\n    --hash=[^\n]*$", text, re.MULTILINE)


def check_lock() -> None:
    """Whether requirements.lock is of this pyproject.toml, and has lines for this Python and platform."""
    if read_header() != hash_wanted():
        sys.exit("requirements.lock is of another pyproject.toml: make lock, or delete it")
    if not any(MARKER in entry for entry in read_entries()):
        where = f"Python {PYTHON} on {sys.platform}, {platform.machine()}"
        sys.exit(f"requirements.lock has nothing for {where}: run `python lock.py` there too")


def record(image: str | None = None) -> None:
    """What was locked, in plan.json too; the base image that stands there stays, unless another is given."""
    if not PLAN.is_file():
        return
    try:
        plan = json.loads(PLAN.read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(f"make lock: {PLAN} is no JSON ({error}): what was locked is not written there")
    image = image or plan.get("lock", {}).get("image")
    packages: dict[str, dict[str, str]] = {}
    for entry in read_entries():
        pin, _, rest = entry.partition(" ; ")
        name, version = pin.split("==")
        packages.setdefault(rest.split(" \\\n")[0], {})[name] = version
    sha256 = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    plan["lock"] = {"image": image, "requirements_sha256": sha256, "packages": packages}
    replace_file(PLAN, json.dumps(plan, indent=2, ensure_ascii=False) + "\n")


def report(packages: list[dict]) -> None:
    built = [package["name"] for package in packages if package["source"]]
    print(f"requirements.lock: {len(packages)} packages for {MARKER}")
    if built:
        print(f"built from source when installed, with tools that no hash pins: {', '.join(built)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only whether requirements.lock is of this project and Python"
    )
    if parser.parse_args().check:
        return check_lock()
    packages = lock_packages()
    write_lock(packages)
    record()
    return report(packages)


if __name__ == "__main__":
    main()
