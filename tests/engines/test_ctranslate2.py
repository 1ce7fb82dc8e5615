"""CTranslate2 on what its own converter wrote."""

from __future__ import annotations

import json
import shutil

import pytest
from engine_contract import EngineContract
from engine_projects import convert, drive, find_python, make_project

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestCtranslate2(EngineContract):
    leaf = "ctranslate2"

    def test_a_seed_decides_what_is_drawn(self, python, project, prompts):
        """It does not: what is drawn is drawn, and a server refuses a seed."""
        drawn = {"max_new_tokens": 16, "temperature": 1.0, "top_p": 0.9, "seed": 7, "ends": False}
        found = drive(python, project, "generate", prompts=prompts[:2], sampling=drawn)
        assert [len(tokens) for tokens in found["alone"]] == [16, 16]
        assert found["batches"][0] != found["batches"][1]

    def test_a_tokenizer_without_a_token_to_begin_with(self, python, model, prompts, eager, tmp_path):
        """Its converter wrote null for it, and no engine loaded the weights."""
        shutil.copytree(model, tmp_path / "m")
        for path in (tmp_path / "m").glob("*token*.json"):
            settings = json.loads(path.read_text())
            path.write_text(json.dumps({k: v for k, v in settings.items() if k not in ("bos_token", "unk_token")}))
        made = make_project(tmp_path / "p", self.leaf, self.leaf, tmp_path / "m")
        convert(find_python(f"convert-{self.leaf}"), made)
        assert json.loads((made / "weights" / "config.json").read_text())["bos_token"] == "<|im_end|>"
        found = drive(python, made, "generate", prompts=prompts, sampling={"max_new_tokens": 8, "ends": False})
        assert found["alone"] == [tokens[:8] for tokens in eager]
