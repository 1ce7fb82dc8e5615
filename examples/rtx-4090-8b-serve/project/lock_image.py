"""Pin the base image too: `make lock` writes into the Dockerfile the digest of what it builds on, beside lock.py's."""

import argparse
import hashlib
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from email.message import Message

from lock import HERE, PYTHON, hide_secrets, lock_packages, record, replace_file, report, write_lock

DOCKERFILE = HERE / "Dockerfile"
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""The kinds of manifest that a tag may stand for (OCI distribution specification, pulling manifests)."""
SECONDS = 60


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
    replace_file(DOCKERFILE, re.sub(r"^FROM \S+$", f"FROM {image}", text, count=1, flags=re.MULTILINE))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    packages, image = lock_packages(), lock_base()
    write_lock(packages)
    write_base(image)
    record(image)
    report(packages)
    print(f"Dockerfile: FROM {image}")
    base = re.search(r"python:(\d+\.\d+)", image)
    if base and base[1] != PYTHON:
        inside = f"{image.partition('@')[0]} python /project/lock.py"
        print(f"the image has Python {base[1]}: lock for it too, with")
        print(f"  docker run --rm --user $(id -u):$(id -g) --volume $PWD:/project {inside}")


if __name__ == "__main__":
    main()
