"""Projects that slow tests put together by hand have the modules, and these the names, that their modules import."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import running_server
import serving_projects
from leaves import check_imports
from serving_projects import ANSWERS, ASKING, BATCH, BENCH, EMBEDDINGS, IMAGES, LABELS, SERVER, TRANSCRIPTS
from test_parallel_projects import MACHINE

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MADE = {
    "answers": BATCH | ANSWERS,
    "asking": BATCH | ANSWERS | ASKING | {"bench_texts": "serving/bench_texts"},
    "bench": BATCH | ANSWERS | SERVER | BENCH,
    "embeddings": BATCH | EMBEDDINGS,
    "images": BATCH | IMAGES,
    "labels": BATCH | LABELS,
    "transcripts": BATCH | TRANSCRIPTS,
}


@pytest.mark.parametrize("name", MADE)
def test_a_serving_project_is_whole(tmp_path, name):
    check_imports(serving_projects.make_serving_project(tmp_path / "p", "model", MADE[name]))


def test_a_server_is_whole(tmp_path):
    check_imports(running_server.make_project(tmp_path / "p", tmp_path))


@pytest.mark.parametrize("case", sorted(EXAMPLES.glob("*/project/train.py")), ids=lambda path: path.parts[-3])
def test_what_is_trained_on_a_cpu_instead_is_whole(tmp_path, case):
    shutil.copytree(case.parent, tmp_path / "p", ignore=shutil.ignore_patterns("sample", "tests"))
    shutil.copyfile(MACHINE, tmp_path / "p" / "machine.py")
    check_imports(tmp_path / "p")
