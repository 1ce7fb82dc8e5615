"""Where model, tokenizer and data of config.yaml lie: paths are relative to this folder, other names are of the hub."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARKS = ("./", "../", "/", "~", ".\\", "..\\")
"""What a path begins with. Without one, what is in this folder is a path too."""


def find_source(config: dict, key: str) -> Path | str:
    """The path or hub id that config.yaml has under ``key``. One line and the end for a path where nothing is."""
    name = config[key]
    if name is None:
        sys.exit(f"config.yaml names no {key}: a file or a folder, such as ./{key}/NAME, or a name on the hub")
    path = HERE / (Path(name).expanduser() if name.startswith("~/") else name)
    if is_there(path):
        return path
    if name.startswith(MARKS) or name in (".", "..") or (key == "data" and "data_revision" not in config):
        sys.exit(f"config.yaml, {key}: {describe_absence(name, path)}")
    if Path(name).exists():
        sys.exit(
            f"config.yaml, {key}: {name} is a name on the hub, and the folder of that name in {Path.cwd()} would be "
            "taken for it: start this from another folder"
        )
    return name


def is_there(path: Path) -> bool:
    """A file, a folder, or a pattern that something matches."""
    return path.exists() or ("*" in path.name and any(file.exists() for file in path.parent.glob(path.name)))


def describe_absence(name: str, path: Path) -> str:
    if "\\" in name:
        return f"{name!r} is not here; paths are written with / here"
    links = [path] if path.is_symlink() else sorted(path.parent.glob(path.name)) if "*" in path.name else []
    if links:
        link = f"{links[0]} leads to {links[0].readlink()}, which is not here"
        return f"{name}: {link}; put the files into its place, link it to where they are, or name another path"
    return f"{name} is not here: copy it to {path}, link it there, or name another path"
