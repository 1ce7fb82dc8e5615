"""The end of a run: its model in its folder, complete or not there, whenever it is killed; run.json comes last."""

import json
import re
import shutil
from pathlib import Path

from transformers import Trainer

from seals import sync_to_disk

DRAFT = "model.unfinished"
"""A folder in that of the run; what a kill leaves of it is overwritten by the next start."""
WEIGHTS = re.compile(r"(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def save_final_model(trainer: Trainer, labels: list[str] | None = None) -> None:
    """Beside the model of an earlier run first, which stays until this one is on disk; then in its place.

    ``labels``: the classes of an adapter, which leaves them out.
    """
    folder = Path(trainer.args.output_dir)
    draft = folder / DRAFT
    if trainer.is_world_process_zero():
        shutil.rmtree(draft, ignore_errors=True)
    trainer.save_model(str(draft), _internal_call=True)
    if trainer.is_world_process_zero():
        if labels is not None:
            (draft / "labels.json").write_text(json.dumps(labels), encoding="utf-8")
        publish(draft, folder)
    if trainer.args.push_to_hub:
        trainer.push_to_hub(commit_message="Model save", revision=trainer.args.hub_revision)


def publish(draft: Path, folder: Path) -> None:
    """Without a run.json while old files stand beside new ones: no finished run, to infer.py and merge.py."""
    files = [path for path in sorted(draft.rglob("*")) if path.is_file()]
    for path in files:
        sync_to_disk(path)
    (folder / "run.json").unlink(missing_ok=True)
    for path in files:
        target = folder / path.relative_to(draft)
        target.parent.mkdir(exist_ok=True)
        path.replace(target)
    names = {path.name for path in files}
    for path in folder.iterdir():  # of a model that was cut into other files: it would be read in place of this
        if WEIGHTS.fullmatch(path.name) and path.name not in names:
            path.unlink()
    shutil.rmtree(draft)
    sync_to_disk(folder)


def is_complete(folder: Path, state) -> bool:
    """Does this folder hold the model and the report of the step that its newest checkpoint has reached?"""
    if read_finished_step(folder / "run.json") != state.global_step:
        return False
    if not any(WEIGHTS.fullmatch(path.name) for path in folder.iterdir()):
        return False
    print(f"nothing left to train: {folder} {describe_end(state)}; {ADVICE}")
    return True


ADVICE = "a larger --max_steps or --num_train_epochs goes on, another --output_dir begins anew"


def describe_end(state) -> str:
    """For a sentence about the run, and run.json."""
    if state.global_step >= state.max_steps:
        return f"reached the last step, {state.global_step}"
    return f"ended by early stopping at step {state.global_step}"


def read_finished_step(path: Path) -> int | None:
    """Of the run that wrote it, which may have been a shorter one; ``None``: there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["finished_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
