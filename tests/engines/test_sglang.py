"""SGLang's own parser on what the launcher of every serving project hands it."""

from __future__ import annotations

import pytest
from engine_flags import plan_projects, read_flags
from engine_projects import find_python

pytestmark = [pytest.mark.engines, pytest.mark.slow]


def test_every_flag_is_parsed_and_means_what_the_plan_says(tmp_path):
    python = find_python("serve-vllm")
    made = list(plan_projects(tmp_path, "sglang", "sglang"))
    assert len(made) >= 50
    assert {"quantization", "tp-size", "dp-size", "nnodes"} <= {
        name for _, document in made for name in document["config"]["serving"]["flags"]
    }
    answers = read_flags(python, "sglang", [folder for folder, _ in made])
    assert [a["refused"] for a in answers if "refused" in a] == []
    for (_, document), answer in zip(made, answers, strict=True):
        for name, value in document["config"]["serving"]["flags"].items():
            assert answer["read"][name.replace("-", "_")] in (repr(value), str(value)), (name, value, answer)
