"""Read a project's launch/ by the programs that consume it, in their own environment: python read.py PROJECT...

Prints a line of JSON for each: by file, nodes and processes a node. Kubeflow's models drop keys that they do not know, so that what they write back
is compared with what they read. Needs kubeflow-trainer-api and skypilot (Makefile, test-launchers); imports nothing of perfgen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml


def read_object(path: Path):
    """The job among the documents, by the model of its kind."""
    from kubeflow_trainer_api import models

    *_, content = yaml.safe_load_all(path.read_text(encoding="utf-8"))
    model = {"TrainJob": models.TrainerV1alpha1TrainJob, "JobSet": models.JobsetV1alpha2JobSet}[content["kind"]]
    job = model.from_dict(content)
    written = job.to_dict()
    if written != content:
        sys.exit(f"{path}: {find_difference(content, written)} is not known to {model.__name__}")
    return job


def find_difference(content, written, path: str = "") -> str:
    """The first place where they differ."""
    if isinstance(content, dict) and isinstance(written, dict):
        for key in [*content, *written]:
            if content.get(key) != written.get(key):
                return find_difference(content.get(key), written.get(key), f"{path}.{key}")
    if isinstance(content, list) and isinstance(written, list) and len(content) == len(written):
        for place, (one, other) in enumerate(zip(content, written, strict=True)):
            if one != other:
                return find_difference(one, other, f"{path}[{place}]")
    return f"{path} ({content!r}, {written!r})"


def read_claims(path: Path) -> None:
    from kubeflow_trainer_api import models

    for claim in list(yaml.safe_load_all(path.read_text(encoding="utf-8")))[:-1]:
        spec = models.IoK8sApiCoreV1PersistentVolumeClaimSpec if hasattr(models, CLAIM) else None
        if spec is not None and spec.from_dict(claim["spec"]).to_dict() != claim["spec"]:
            sys.exit(f"{path}: {claim}")


CLAIM = "IoK8sApiCoreV1PersistentVolumeClaimSpec"


def read_launchers(folder: Path) -> dict[str, tuple[int, int | None]]:
    found: dict[str, tuple[int, int | None]] = {}
    if (folder / "trainjob.yaml").exists():
        read_claims(folder / "trainjob.yaml")
        trainer = read_object(folder / "trainjob.yaml").spec.trainer
        found["trainjob.yaml"] = (trainer.num_nodes, trainer.num_proc_per_node)
    if (folder / "jobset.yaml").exists():
        (replicated,) = read_object(folder / "jobset.yaml").spec.replicated_jobs
        found["jobset.yaml"] = (replicated.template.spec.parallelism, None)
    if (folder / "sky.yaml").exists():
        import sky

        task = sky.Task.from_yaml(str(folder / "sky.yaml"))
        (resources,) = task.resources
        (count,) = resources.accelerators.values()
        found["sky.yaml"] = (task.num_nodes, int(count))
    return found


for folder in sys.argv[1:]:
    print(json.dumps({name: list(counts) for name, counts in read_launchers(Path(folder) / "launch").items()}))
