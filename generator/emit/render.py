"""Plan document in, finished tree out: the only module that knows Copier."""

from __future__ import annotations

import ast
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

from generator import bundle
from generator.inputs.held import make_scratch, use_temporary_folder


class RenderError(Exception):
    """A template that cannot be rendered, or wrote a file that its own language cannot read: a bug of ours, or of the template in
    ``root``, caught before anything is moved."""


OURS = ".perfgen"
"""``_src_path`` in the answers of a project that perfgen wrote: no template of Copier's, and nothing of this machine."""


def render(document: dict, dest: Path, template: str | None = None, root: Path | None = None) -> list[Path]:
    """Write the project for a plan document into the empty folder ``dest``; the files, relative and sorted.

    ``template`` is where `copier update` will look for a newer template; without one it says that it cannot, and `perfgen update`
    does it. ``root`` holds another copier.yml and templates/ than perfgen's own. Every file is parsed. Raises ``RenderError`` for
    one that does not.
    """
    from copier import Settings, run_copy
    from copier.errors import CopierError
    from jinja2 import TemplateError
    from plumbum import local  # by which Copier starts programs

    # it finds no git, which it would ask after each file whether a checkout around it keeps modes: this one moves into its place
    with make_scratch() as scratch, use_temporary_folder(scratch / "copier"), local.env(PATH=str(scratch / "nothing")):
        # a copy outside any git checkout: Copier would clone the checkout and take its newest tag
        if root is None:
            root = scratch / "template"
            root.mkdir()
            bundle.copy_template(root)
        source = {"_src_path": template, "_commit": f"v{document['perfgen']}"} if template else {"_src_path": OURS}
        try:
            run_copy(
                str(root),
                dest,
                data={"plan": document, "source": source},
                defaults=True,
                overwrite=True,
                quiet=True,
                settings=Settings(),  # not the user's own: the same bytes everywhere, and no home is needed
            )
        except (CopierError, TemplateError) as error:
            raise RenderError(f"{type(error).__name__}: {error}") from error
    follow_umask(dest)
    written = sorted(p.relative_to(dest) for p in dest.rglob("*") if p.is_file())
    for path in written:
        check_file(dest / path)
    return written


def follow_umask(tree: Path) -> None:
    """What ``tree`` holds gets the permissions of new files: Copier gives it those of the template."""
    if os.name == "nt":
        return
    umask = os.umask(0o077)
    os.umask(umask)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            runs = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod((0o777 if runs else 0o666) & ~umask)


def check_file(path: Path) -> None:
    """Parse ``path`` by its kind. Raises ``RenderError`` naming it."""
    text = path.read_text(encoding="utf-8")
    try:
        for problem in find_problems(path, text):
            raise RenderError(f"{path.name}: {problem}")
    except (SyntaxError, ValueError) as error:
        raise RenderError(f"{path.name} cannot be read back: {error}") from error


def find_problems(path: Path, text: str) -> Iterator[str]:
    if path.suffix == ".py":
        tree = ast.parse(text)
        yield from find_unused_imports(tree, text)
    elif path.suffix == ".json":
        json.loads(text)
    elif path.suffix == ".toml":
        tomllib.loads(text)
    elif path.suffix in (".yml", ".yaml"):
        import yaml

        try:
            list(
                yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            )  # the first where libyaml is
        except yaml.YAMLError as error:
            yield str(error)
    if path.name == "Makefile" and any(line.startswith("    ") for line in text.splitlines()):
        yield "a recipe is indented with spaces"


MEANT = "noqa: F401"
"""What stands beside an import that does something by itself (readline)."""


def find_unused_imports(tree: ast.Module, text: str) -> Iterator[str]:
    """Names imported at the top and never used: a technique that was dropped but left its import."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    lines = text.splitlines()
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) and MEANT not in lines[node.lineno - 1]:
            for alias in node.names:
                name = (alias.asname or alias.name).split(".")[0]
                if name not in used:
                    yield f"import of {name} is never used"
