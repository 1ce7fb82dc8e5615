"""Which run is meant where none is named: the one that train.py finished last."""

import json
import sys
from pathlib import Path

LAST = Path("runs", "last_run.json")
"""In the project's folder, wherever the runs themselves are: the container keeps runs/."""
TRIAL = "smoke"
"""A run in a folder of this name is a trial, and taken only by its name."""
STUDY = "study.db"
"""In the folder of a search (search.py), whose runs are trials too."""


def record_run(project: Path, folder: Path) -> None:
    """Call this run the last one. Of one inside the project the relative path is kept, so that both can be moved."""
    folder = folder.resolve()
    if is_trial(folder):
        return
    path = folder.relative_to(project) if folder.is_relative_to(project) else folder
    record = project / LAST
    try:
        record.parent.mkdir(exist_ok=True)
        draft = record.with_name(f"{record.name}.tmp")
        draft.write_text(json.dumps({"run": path.as_posix()}) + "\n", encoding="utf-8")
        draft.replace(record)
    except OSError as error:
        print(f"{record} cannot be written ({error.strerror}): python infer.py --run {folder}", file=sys.stderr)


def read_record(project: Path) -> Path | None:
    """The folder of the run that was finished last, wherever it may be now."""
    try:
        match json.loads((project / LAST).read_text(encoding="utf-8")):
            case {"run": str(run)}:
                return project / run
    except (OSError, ValueError):
        pass
    return None


def is_finished(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def is_trial(folder: Path) -> bool:
    return folder.name == TRIAL or (folder.parent / STUDY).is_file()


def describe_run(folder: Path | str) -> str:
    return "the finished run" if is_finished(Path(folder)) else "a model without the report of a finished run"


def find_run(project: Path, output_dir: str) -> Path | None:
    """The run that was finished last; without a record of it that of ``output_dir``, or the newest in the project."""
    recorded, usual = read_record(project), project / output_dir
    if recorded is not None and is_finished(recorded):
        return recorded
    if is_finished(usual):
        return usual
    reports = [*project.glob("*/run.json"), *project.glob("*/*/run.json")]
    runs = [report for report in reports if not is_trial(report.parent)]
    return max(runs, key=lambda report: report.stat().st_mtime).parent if runs else None


def choose_run(project: Path, output_dir: str, asked: Path | None) -> Path:
    """The run ``asked`` for, else the one finished last; another finished one in its place is named aloud."""
    if asked is not None:
        if any((asked / name).is_file() for name in ("config.json", "adapter_config.json")):
            return asked
        sys.exit(f"{asked} holds no finished run: no model is there")
    run, recorded = find_run(project, output_dir), read_record(project)
    if run is not None:
        if recorded not in (None, run):
            print(f"{recorded}, the last finished run, is not there or not finished: {run} is taken", file=sys.stderr)
        return run
    if recorded is not None:
        sys.exit(f"the last finished run was written to {recorded}, which holds none now: say where it is with --run")
    begun = any((project / output_dir).glob("checkpoint-*"))
    state = "is not finished: train.py goes on with it" if begun else "holds no finished run: train.py first"
    sys.exit(f"{project / output_dir} {state}, or say which with --run")
