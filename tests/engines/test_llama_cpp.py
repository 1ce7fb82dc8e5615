"""llama.cpp on what its own converter wrote, a token's text its number."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import gguf_vocabularies
import pytest
import yaml
from engine_contract import EngineContract
from engine_projects import FRAGMENTS, convert, drive, find_model, find_python, make_project
from gguf_vocabularies import SPACED, UNSPACED

from generator.inputs.gguf_files import MENDED, READ_AS_IS

pytestmark = [pytest.mark.engines, pytest.mark.slow]


class TestLlamaCpp(EngineContract):
    leaf = "llama_cpp"

    def test_a_small_model_changes_no_token(self, python, model, project, prompts, eager, tmp_path):
        """One that guesses wrongly: layers 11 to 30 of the model are left out. And one of another vocabulary is refused."""
        from safetensors.torch import load_file, save_file

        small = tmp_path / "small"
        shutil.copytree(model, small)
        weights = load_file(small / "model.safetensors")
        kept = {
            n: w for n, w in weights.items() if ".layers." not in n or int(n.split(".layers.")[1].split(".")[0]) < 10
        }
        save_file(kept, small / "model.safetensors", metadata={"format": "pt"})
        settings = json.loads((small / "config.json").read_text()) | {"num_hidden_layers": 10}
        (small / "config.json").write_text(json.dumps(settings))
        made = tmp_path / "p"
        shutil.copytree(project, made, ignore=shutil.ignore_patterns("weights"))
        config = yaml.safe_load((made / "config.yaml").read_text()) | {"draft_model": str(small)}
        config["serving"] |= {"max_concurrency": 1, "proposed_tokens": 4}
        (made / "config.yaml").write_text(yaml.safe_dump(config))
        assert "MB" in convert(find_python("convert-llama_cpp"), made)
        assert (made / "weights" / "draft_model" / "model.gguf").is_file()
        sampling = {"max_new_tokens": 32, "ends": False}
        assert drive(python, made, "generate", prompts=prompts[:1], sampling=sampling)["alone"] == [eager[0][:32]]
        tokenizer = json.loads((small / "tokenizer.json").read_text())
        tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"content": "<|another|>", "id": 49152})
        (small / "tokenizer.json").write_text(json.dumps(tokenizer))
        with pytest.raises(AssertionError, match="another vocabulary than the model"):
            drive(python, made, "generate", prompts=prompts[:1], sampling=sampling)


def test_a_gguf_files_tokenizer_reads_texts_as_llama_cpp_does(tmp_path):
    """For each way to cut texts that plans take, in a vocabulary of one model."""
    made = make_project(tmp_path / "p", "llama_cpp", "llama-cpp", tmp_path / "m.gguf")
    shutil.copy(FRAGMENTS / "conversions" / "gguf_file.py", made / "convert.py")

    def run(environment: str, *words: str) -> dict:
        command = [find_python(environment), Path(gguf_vocabularies.__file__), *words]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr[-3000:]
        return json.loads(ended.stdout.splitlines()[-1]) if ended.stdout else {}

    names = sorted({*READ_AS_IS, *MENDED, SPACED, UNSPACED})
    run("convert-gguf", "write", str(find_model() / "tokenizer.json"), str(made), *names)
    expected, found = run("serve-llama_cpp", "ask", str(made)), run("convert-gguf", "read", str(made))
    assert sorted(found) == names
    assert {name for name in names if found[name] != expected[name]} == set()
