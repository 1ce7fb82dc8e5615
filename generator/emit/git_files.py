"""Files of a commit of a repository on this machine, read by git as they were committed.

The repository may be a stranger's, beside or in a project that came with it. So nothing that its configuration names is run: no filter
(`git archive` and a checkout have files rewritten by programs of .git/config), no helper that fetches what is missing.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from generator.emit.emitted import Emitted, Tree
from hwdetect.machine.process import find_program, run_process

SECONDS = 60
ENTRY = re.compile(rb"(100644|100755) blob ([0-9a-f]{40,64})\t([^\0]+)\0")
"""of `git ls-tree -z`: a regular file"""
PLAIN = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C"}


def read_files(repository: Path, commit: str, names: tuple[str, ...]) -> Tree | None:
    """What ``commit`` holds under ``names``; ``None`` where there is no git, repository or commit, and for what is no plain file."""
    if not commit or commit.startswith("-"):
        return None
    listing = run_git(repository, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *names)
    if not listing or ENTRY.sub(b"", listing):
        return None
    entries = list(ENTRY.finditer(listing))
    contents = run_git(repository, "cat-file", "--batch", given=b"".join(entry[2] + b"\n" for entry in entries))
    return None if contents is None else split_batch(contents, entries)


def run_git(repository: Path, *words: str, given: bytes = b"") -> bytes | None:
    git = find_program("git")
    if git is None:
        return None
    # a hook's GIT_DIR is another repository
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or "CONFIG" in name}
    done = run_process((git, "-C", str(repository), *words), SECONDS, environment=kept | PLAIN, given=given)
    return None if done.problem or done.code else done.raw


def split_batch(contents: bytes, entries: list[re.Match[bytes]]) -> Tree | None:
    """The answers of `git cat-file --batch`: `DIGEST blob SIZE`, a line feed, the file, a line feed."""
    files, start = {}, 0
    for entry in entries:
        header = re.compile(re.escape(entry[2]) + rb" blob ([0-9]+)\n").match(contents, start)
        if header is None:  # it is missing there
            return None
        start = header.end() + int(header[1]) + 1
        files[os.fsdecode(entry[3])] = Emitted(contents[header.end() : start - 1], entry[1] == b"100755")
    return files
