"""A small package index (PEP 503) and a small image registry (OCI distribution v2) on localhost; pip and lock.py are real."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from local_server import QuietHandler, serve


def make_wheel(name: str, version: str, requires: tuple[str, ...] = (), note: str = "") -> tuple[str, bytes]:
    """File name and content of a wheel with one module, which holds ``note``."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{module}.py": f"note = {note!r}\n",
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return f"{module}-{version}-py3-none-any.whl", content.getvalue()


@dataclass
class Places:
    """``indexes``: files by name, of each index by its path; ``tags``: manifests by repository and tag."""

    url: str = ""
    indexes: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[tuple[str, str], bytes] = field(default_factory=dict)
    password: str | None = None
    """of user "me", which the index wants"""
    token: str | None = "letter"
    """which the registry wants, and hands out to whoever asks"""
    sends_digest: bool = True
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """method, path and Accept"""

    @property
    def address(self) -> str:
        return urlsplit(self.url).netloc

    def add(self, index: str, name: str, version: str, *requires: str, note: str = "") -> str:
        """A wheel in an index; its sha256."""
        file, content = make_wheel(name, version, requires, note)
        self.indexes.setdefault(index, {})[file] = content
        return hashlib.sha256(content).hexdigest()


@contextmanager
def serve_places() -> Generator[Places]:
    places = Places()
    with serve(Handler, places=places) as places.url:
        yield places


class Handler(QuietHandler):
    places: Places

    def answer(self) -> None:
        parts = urlsplit(self.path)
        self.places.requests.append((self.command, parts.path, self.headers.get("Accept")))
        words = unquote(parts.path).strip("/").split("/")
        if words[0] == "v2":
            return self.answer_registry("/".join(words[1:-2]), words[-1])
        if words[0] == "token":
            scope = parse_qs(parts.query).get("scope", [""])[0]
            return self.send(200, f'{{"token": "{self.places.token}:{scope}"}}'.encode())
        return self.answer_index(words[0], words[1:])

    def answer_index(self, index: str, rest: list[str]) -> None:
        pair = base64.b64encode(f"me:{self.places.password}".encode()).decode()
        if self.places.password is not None and self.headers.get("Authorization") != f"Basic {pair}":
            return self.send(401, b"no", {"WWW-Authenticate": 'Basic realm="index"'})
        files = self.places.indexes.get(index, {})
        if rest[:1] == ["files"]:
            return self.send(200, files[rest[1]]) if rest[1] in files else self.send(404, b"")
        mine = {n: c for n, c in files.items() if n.split("-")[0].replace("_", "-").lower() == rest[0]}
        if not mine:
            return self.send(404, b"")
        links = [
            f'<a href="/{index}/files/{n}#sha256={hashlib.sha256(c).hexdigest()}">{n}</a>' for n, c in mine.items()
        ]
        return self.send(200, f"<!DOCTYPE html><body>{''.join(links)}</body>".encode(), {"Content-Type": "text/html"})

    def answer_registry(self, repository: str, tag: str) -> None:
        scope = f"repository:{repository}:pull"
        wanted = f"Bearer {self.places.token}:{scope}"
        if self.places.token is not None and self.headers.get("Authorization") != wanted:
            challenge = f'Bearer realm="{self.places.url}/token",service="registry",scope="{scope}"'
            return self.send(401, b"{}", {"WWW-Authenticate": challenge})
        manifest = self.places.tags.get((repository, tag))
        if manifest is None or "application/vnd.oci.image.index.v1+json" not in (self.headers.get("Accept") or ""):
            return self.send(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
        digest = {"Docker-Content-Digest": f"sha256:{hashlib.sha256(manifest).hexdigest()}"}
        return self.send(200, manifest, digest if self.places.sends_digest else {})

    def send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
