"""A small model hub on localhost: the routes that huggingface_hub 2.4 and datasets 5.2 ask, over real files.

What it answers (status, headers, error codes) is what huggingface_hub's own code reads in
``hf_raise_for_status``, ``get_hf_file_metadata`` and ``_paginate_pages``; the clients are the real ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from local_server import QuietHandler, serve

LFS_SUFFIXES = (".safetensors", ".parquet", ".arrow", ".gz")
"""what the hub keeps outside git: a HEAD is redirected, sizes and hashes stand in X-Linked-*"""


@dataclass
class Repo:
    """``commits``: files by commit, the last is main. ``token``: needed to see it; ``gated``: to read its files."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    token: str | None = None
    gated: str | None = None

    def commit(self, files: dict[str, bytes]) -> str:
        digest = hashlib.sha1(str(len(self.commits)).encode())
        for name in sorted(files):
            digest.update(name.encode() + b"\0" + files[name])
        self.commits[digest.hexdigest()] = dict(files)
        return digest.hexdigest()

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    def resolve(self, revision: str) -> str | None:
        return self.head if revision == "main" else revision if revision in self.commits else None


@dataclass
class LocalHub:
    """``repos`` by kind and id. The faults: ``delay`` seconds before each answer, ``cut`` bytes after which bodies end (once
    for each path), ``limited``: every answer is 429."""

    url: str = ""
    storage: str = ""
    """another address, of what is outside git: a token that is sent there has leaked"""
    repos: dict[tuple[str, str], Repo] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    """method, path and Authorization of each request"""
    sent: int = 0
    """bytes of bodies"""
    delay: float = 0.0
    limited: bool = False
    broken: bool = False
    """every answer is 500"""
    password: str | None = None
    """of user "me", which each question needs: an address with both in it, as of a mirror"""
    cut: int | None = None
    cut_paths: set[str] = field(default_factory=set)

    def add(self, kind: str, name: str, files: dict[str, bytes | str] | Path, **access: str) -> Repo:
        """``kind``: models or datasets; ``files``: a folder, or contents by name."""
        if isinstance(files, Path):
            paths = sorted(p for p in files.rglob("*") if p.is_file())
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
        repo = self.repos.setdefault((kind, name), Repo(**access))
        repo.commit({n: c.encode() if isinstance(c, str) else c for n, c in files.items()})
        return repo

    def paths(self, method: str | None = None) -> list[str]:
        return [path for verb, path, _ in self.requests if method in (None, verb)]


@contextmanager
def serve_hub() -> Generator[LocalHub]:
    hub = LocalHub()
    with serve(Handler, hub=hub) as hub.url, serve(Handler, hub=hub) as hub.storage:
        yield hub


class Handler(QuietHandler):
    hub: LocalHub

    def answer(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        self.form = parse_qs(self.rfile.read(length).decode()) if length else {}
        self.query = parse_qs(parts.query)
        self.hub.requests.append((self.command, parts.path, self.headers.get("Authorization")))
        time.sleep(self.hub.delay)
        if self.hub.limited:
            limit = {"RateLimit": '"api";r=0;t=55', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}
            return self.fail(429, None, "too many requests", limit)
        pair = base64.b64encode(f"me:{self.hub.password}".encode()).decode()
        if self.hub.password is not None and self.headers.get("Authorization") != f"Basic {pair}":
            return self.fail(401, None, "no such user", {"WWW-Authenticate": 'Basic realm="hub"'})
        if self.hub.broken:
            return self.fail(500, None, "out of order")
        path = parts.path.strip("/").split("/")
        if path[:1] == ["api"]:
            return self.answer_api(path[1:])
        if path[:1] == ["lfs"]:
            return self.answer_lfs(path[1])
        kind = "datasets" if path[0] == "datasets" else "models"
        path = path[1:] if kind == "datasets" else path
        if "resolve" in path:
            at = path.index("resolve")
            file = unquote("/".join(path[at + 2 :]))
            return self.answer_file(kind, "/".join(path[:at]), unquote(path[at + 1]), file)
        return self.fail(404, None, "no such page")

    def find_repo(self, kind: str, name: str) -> Repo | None:
        """None, and answered, where the caller may not see it; as the hub, 401 for what does not exist."""
        repo = self.hub.repos.get((kind, name))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if repo is None or (repo.token is not None and repo.token != token):
            if token:
                self.fail(404, "RepoNotFound", "Repository not found")
            else:
                self.fail(401, "RepoNotFound", "Invalid username or password.")
            return None
        return repo

    def answer_api(self, path: list[str]) -> None:
        """/api/models/OWNER/NAME[/revision/REV | /tree/REV[/PATH] | /paths-info/REV]"""
        kind, words = path[0], [unquote(p) for p in path[1:]]
        at = next((i for i, word in enumerate(words) if word in ("revision", "tree", "paths-info") and i), len(words))
        name, verb, rest = "/".join(words[:at]), (words[at : at + 1] or ["revision"])[0], words[at + 1 :]
        repo = self.find_repo(kind, name)
        if repo is None:
            return None
        commit = repo.resolve(rest[0] if rest else "main")
        if commit is None:
            return self.fail(404, "RevisionNotFound", f"Invalid rev id: {rest[0]}")
        files = repo.commits[commit]
        if verb == "revision":
            siblings = [{"rfilename": name} for name in sorted(files)]
            info = {"id": name, "sha": commit, "private": bool(repo.token), "gated": bool(repo.gated) and "manual"}
            return self.send_json(info | {"siblings": siblings, "tags": [], "downloads": 0})
        if verb == "paths-info":
            entries = list_entries(files, "", recursive=True)
            return self.send_json([e for e in entries if e["path"] in self.form.get("paths", [])])
        folder = "/".join(rest[1:])
        entries = list_entries(files, folder, self.query.get("recursive") == ["true"])
        if folder and not entries:
            return self.fail(404, "EntryNotFound", f"{folder} does not exist", {"X-Repo-Commit": commit})
        return self.send_json(entries)

    def answer_file(self, kind: str, name: str, revision: str, file: str) -> None:
        repo = self.find_repo(kind, name)
        if repo is None:
            return None
        if repo.gated is not None:
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if not token:
                return self.fail(401, "GatedRepo", f"Access to {name} is restricted. Please log in.")
            if token != repo.gated:
                return self.fail(403, "GatedRepo", f"Access to {name} is restricted.")
        commit = repo.resolve(revision)
        if commit is None:
            return self.fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        content = repo.commits[commit].get(file)
        if content is None:
            return self.fail(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{name_blob(content)}"', "Accept-Ranges": "bytes"}
        if file.endswith(LFS_SUFFIXES):
            sha = hashlib.sha256(content).hexdigest()
            headers |= {
                "X-Linked-Etag": f'"{sha}"',
                "X-Linked-Size": str(len(content)),
                "Location": f"{self.hub.storage}/lfs/{sha}",
            }
            return self.send(302, b"", headers)
        return self.send_body(content, headers)

    def answer_lfs(self, sha: str) -> None:
        every = [c for repo in self.hub.repos.values() for files in repo.commits.values() for c in files.values()]
        content = next((c for c in every if hashlib.sha256(c).hexdigest() == sha), None)
        if content is None:
            return self.fail(404, None, "no such object")
        return self.send_body(content, {"ETag": f'"{sha}"', "Accept-Ranges": "bytes"})

    def send_body(self, content: bytes, headers: dict[str, str]) -> None:
        status, size = 200, len(content)
        asked = self.headers.get("Range")
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(size - int(last), 0)
            end = min(int(last), size - 1) if last and first else size - 1
            if start >= size:
                return self.send(416, b"", {"Content-Range": f"bytes */{size}"})
            content, status = content[start : end + 1], 206
            headers = headers | {"Content-Range": f"bytes {start}-{end}/{size}"}
        cut = self.hub.cut
        if self.command == "GET" and cut is not None and self.path not in self.hub.cut_paths and len(content) > cut:
            self.hub.cut_paths.add(self.path)
            self.send(status, content[:cut], headers | {"Content-Length": str(len(content)), "Connection": "close"})
            self.close_connection = True
            return None
        return self.send(status, content, headers)

    def send_json(self, value: object) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def fail(self, status: int, code: str | None, message: str, more: dict[str, str] | None = None) -> None:
        headers = {"X-Error-Message": message} | (more or {}) | ({"X-Error-Code": code} if code else {})
        self.send(status, json.dumps({"error": message}).encode(), headers)

    def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.hub.sent += len(content)
            self.wfile.write(content)


def list_entries(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict]:
    """The tree as the hub lists it: files with size and blob id, folders where it is not recursive too."""
    prefix = f"{folder}/" if folder else ""
    entries, folders = [], set()
    for path, content in sorted(files.items()):
        if not path.startswith(prefix):
            continue
        parents = path[len(prefix) :].split("/")[:-1]
        depth = len(parents) if recursive else min(len(parents), 1)
        folders |= {prefix + "/".join(parents[: i + 1]) for i in range(depth)}
        if recursive or not parents:
            lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            entry = {"type": "file", "path": path, "size": len(content), "oid": name_blob(content)}
            entries.append(entry | ({"lfs": lfs} if path.endswith(LFS_SUFFIXES) else {}))
    return [{"type": "directory", "path": f, "oid": "0" * 40, "size": 0} for f in sorted(folders)] + entries


def name_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
