"""Pin what is installed: `make lock` writes requirements.lock, and into a Dockerfile the digest of its base image.

Every package that pip would install here now, with the sha256 of its file; `make setup`, and an image built of this
project, then install these files and no others. The lines of another Python or platform are kept: run it there too.
"""

import argparse
import hashlib
import json
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCK, DOCKERFILE, PLAN = HERE / "requirements.lock", HERE / "Dockerfile", HERE / "plan.json"
EXTRA = "test"
"""of pyproject.toml; `make setup` installs it too"""
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
MARKER = (
    f"python_version == '{PYTHON}' and sys_platform == '{sys.platform}' and platform_machine == '{platform.machine()}'"
)
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""The kinds of manifest that a tag may stand for (OCI distribution specification, pulling manifests)."""
SECONDS = 60


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
    source = not urllib.parse.urlsplit(item["download_info"]["url"]).path.endswith(".whl")
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
    LOCK.write_text(head + "".join(f"{entry}\n" for entry in sorted(lines + others)), encoding="utf-8")


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
        sys.exit(f"requirements.lock has nothing for {where}: run `python lock.py --packages` there too")


# ---- the base image


def read_base() -> str:
    """The image of the Dockerfile."""
    match = re.search(r"^FROM (\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        sys.exit("make lock: the Dockerfile has no line FROM IMAGE")
    return match[1]


def lock_base() -> str:
    """The image with the digest that its tag stands for now."""
    image = read_base().partition("@")[0]
    return f"{image}@{ask_digest(image)}"


def split_image(image: str) -> tuple[str, str, str]:
    """Address of the registry, repository and tag, as docker reads a name."""
    first, _, rest = image.partition("/")
    named = rest and (set(".:") & set(first) or first == "localhost")
    host, path = (first, rest) if named else ("registry-1.docker.io", image if rest else f"library/{image}")
    repository, _, tag = path.partition(":")
    local = host.partition(":")[0] in ("localhost", "127.0.0.1")
    return f"{'http' if local else 'https'}://{host}", repository, tag or "latest"


def ask_digest(image: str) -> str:
    """By the registry's API, without pulling: HEAD of the manifest, with a token where the registry wants one."""
    address, repository, tag = split_image(image)
    url = f"{address}/v2/{repository}/manifests/{tag}"
    headers = {"Accept": ", ".join(MANIFESTS)}
    try:
        try:
            answer, _ = ask(url, headers, "HEAD")
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge.startswith("Bearer "):
                raise
            headers["Authorization"] = f"Bearer {fetch_token(challenge)}"
            answer, _ = ask(url, headers, "HEAD")
        digest = answer.get("Docker-Content-Digest")
        if digest is None:  # a registry need not send it
            digest = f"sha256:{hashlib.sha256(ask(url, headers, 'GET')[1]).hexdigest()}"
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"make lock: {address} does not tell the digest of {image}: {hide_secrets(str(error))}")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        sys.exit(f"make lock: {address} gives {digest!r} for {image}, which is no digest")
    return digest


def fetch_token(challenge: str) -> str:
    """An anonymous one, to read this repository."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    answer = json.loads(ask(f"{fields['realm']}?{query}", {}, "GET")[1])
    return answer.get("token") or answer["access_token"]


def ask(url: str, headers: dict[str, str], method: str) -> tuple[Message, bytes]:
    """Headers and body of the answer."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"{url} is no address of a registry")
    request = urllib.request.Request(url, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        return response.headers, response.read()


def write_base(image: str) -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    DOCKERFILE.write_text(re.sub(r"^FROM \S+$", f"FROM {image}", text, count=1, flags=re.MULTILINE), encoding="utf-8")


def record(image: str | None) -> None:
    """What was locked, in plan.json too."""
    if not PLAN.is_file():
        return
    plan = json.loads(PLAN.read_text(encoding="utf-8"))
    packages: dict[str, dict[str, str]] = {}
    for entry in read_entries():
        pin, _, rest = entry.partition(" ; ")
        name, version = pin.split("==")
        packages.setdefault(rest.split(" \\\n")[0], {})[name] = version
    sha256 = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    plan["lock"] = {"image": image, "requirements_sha256": sha256, "packages": packages}
    PLAN.write_text(json.dumps(plan, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only whether requirements.lock is of this project and Python"
    )
    parser.add_argument("--packages", action="store_true", help="leave the base image as it is")
    args = parser.parse_args()
    if args.check:
        return check_lock()
    packages = lock_packages()
    image = None
    if DOCKERFILE.is_file():
        image = read_base() if args.packages else lock_base()
    write_lock(packages)
    if image and not args.packages:
        write_base(image)
    record(image if image and "@" in image else None)
    built = [package["name"] for package in packages if package["source"]]
    print(f"requirements.lock: {len(packages)} packages for {MARKER}")
    if built:
        print(f"built from source when installed, with tools that no hash pins: {', '.join(built)}")
    if image is None:
        return None
    print(f"Dockerfile: FROM {image}" + ("" if "@" in image else ", by its tag only"))
    base = re.search(r"python:(\d+\.\d+)", image)
    if base and base[1] != PYTHON:
        inside = f"{image.partition('@')[0]} python /project/lock.py --packages"
        print(f"the image has Python {base[1]}: lock for it too, with")
        print(f"  docker run --rm --user $(id -u):$(id -g) --volume $PWD:/project {inside}")
    return None


if __name__ == "__main__":
    main()
