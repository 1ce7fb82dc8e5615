"""What perfgen wrote into a project, kept in it: ``.perfgen/emitted.zip``, the base of `perfgen update`'s merges.

A zip, because it is small, one file, the same bytes for the same files (no dates), and readable without perfgen:
``unzip -p .perfgen/emitted.zip train.py``. Its comment holds a digest of what it holds. It comes from the project, hence possibly
from a stranger: names that lead out of the folder are refused, and so is more than ``MOST_BYTES``.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from generator.errors import SourceError
from generator.inputs.json_files import is_small_file

FOLDER = ".perfgen"
FILE = f"{FOLDER}/emitted.zip"
IGNORED, NO_TEMPLATE = f"{FOLDER}/.gitignore", f"{FOLDER}/copier.yml"
BESIDE = {
    IGNORED: b"# What perfgen wrote (emitted.zip) belongs into the repository: `perfgen update` merges with it.\n"
    b"*\n!.gitignore\n!copier.yml\n!emitted.zip\n",
    NO_TEMPLATE: b"# The answers name this folder, which is no template: `copier recopy` finds nothing here, `perfgen update` is meant.\n"
    b'_exclude: ["*"]\n_message_before_copy: "perfgen wrote this project: `perfgen update` brings it up to date."\n',
}
MOST_BYTES = 64 << 20
EPOCH = (1980, 1, 1, 0, 0, 0)
COMMENT = re.compile(rb"perfgen 1 sha256=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Emitted:
    """A file as perfgen wrote it."""

    content: bytes
    executable: bool = False


Tree = Mapping[str, Emitted]
"""Files by their names from the project's folder, with slashes."""


def read_tree(folder: Path, files: list[Path]) -> dict[str, Emitted]:
    """The rendered ``files`` of ``folder``."""
    return {path.as_posix(): read_emitted(folder / path) for path in sorted(files)}


def read_emitted(path: Path) -> Emitted:
    return Emitted(path.read_bytes(), bool(path.stat().st_mode & 0o100))


def add_record(tree: Tree) -> dict[str, Emitted]:
    """The tree, and what a project must hold of it to be updated."""
    return {**tree, **{name: Emitted(content) for name, content in BESIDE.items()}, FILE: Emitted(pack_tree(tree))}


def write_tree(folder: Path, tree: Tree) -> None:
    """Those of ``tree`` that ``folder`` does not have yet."""
    for name, file in tree.items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(file.content)


def pack_tree(tree: Tree) -> bytes:
    """The same bytes for the same tree, as long as zlib compresses alike."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(tree):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # mode bits as Unix has them, whatever machine writes
            entry.external_attr = (0o100755 if tree[name].executable else 0o100644) << 16
            archive.writestr(entry, tree[name].content)
        archive.comment = b"perfgen 1 sha256=" + digest_tree(tree).encode()
    return buffer.getvalue()


def digest_tree(tree: Tree) -> str:
    digest = hashlib.sha256()
    for name in sorted(tree):
        content = tree[name].content
        digest.update(f"{name}\0{tree[name].executable:d}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def unpack_tree(packed: bytes) -> dict[str, Emitted]:
    """Raises ``ValueError`` where it is not what ``pack_tree`` wrote."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            stamp = COMMENT.fullmatch(archive.comment)
            entries = archive.infolist()
            if not stamp:
                raise ValueError("it has no stamp of perfgen")
            if sum(entry.file_size for entry in entries) > MOST_BYTES:
                raise ValueError(f"it holds more than {MOST_BYTES >> 20} MiB")
            tree = {}
            for entry in entries:
                check_name(entry.filename)
                with archive.open(entry) as file:
                    content = file.read(MOST_BYTES + 1)
                tree[entry.filename] = Emitted(content, bool(entry.external_attr >> 16 & 0o100))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(str(error)) from error
    if digest_tree(tree) != stamp[1].decode():
        raise ValueError("its files are not those that perfgen packed")
    return tree


def check_name(name: str) -> None:
    """Raises ``ValueError`` for one that no template emits, as one that leads out of the folder."""
    path = PurePosixPath(name)
    odd = not path.parts or path.is_absolute() or str(path) != name or {".", ".."} & {*path.parts}
    if odd or path.parts[0] in (FOLDER, ".git") or re.search(r"[\\:\x00-\x1f]", name):
        raise ValueError(f"no project has a file {name!r}")


def read_record(folder: Path) -> dict[str, Emitted] | None:
    """What perfgen wrote into the project; ``None`` where that is not kept. Raises ``SourceError`` for a damaged record."""
    path = folder / FILE
    if not os.path.lexists(path):
        return None
    hint = (
        f"bring it back (git checkout -- {FILE}); or remove it: then plan.json, rendered again, stands for it, where this perfgen "
        "is the version that wrote the project"
    )
    try:
        if not is_small_file(path):
            raise ValueError(f"it is no file of at most {MOST_BYTES >> 20} MiB")
        return unpack_tree(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", hint) from error
    except ValueError as error:
        raise SourceError(f"{path} is damaged or was changed: {error}", hint) from error
