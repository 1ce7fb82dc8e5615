"""merge.py of a project, with a small real model and adapter: what it writes is complete or not there, and no one else's goes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
from engine_projects import drop_weights
from leaves import FRAGMENTS

peft = pytest.importorskip("peft")


@pytest.fixture
def merge(load, tmp_path, monkeypatch) -> ModuleType:
    """The leaf in a project of its own: it reads config.yaml beside itself."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=300))
    model.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    run = tmp_path / "runs"
    adapted.save_pretrained(run)
    load("run_folder")
    load("tokenizer").train_tokenizer(["the lazy dog"] * 9, tmp_path / "words", 300).save_pretrained(run)
    (run / "_train.lock").write_text("")
    base = load("run_identity").describe_base(tmp_path / "base", None)
    (run / "run.json").write_text(json.dumps({"run": base | {"seed": 1}}))
    (tmp_path / "config.yaml").write_text("model: ./base\noutput_dir: runs\n")
    for name in ("merge", "sources", "config_file", "quiet_imports"):  # all look beside themselves
        shutil.copy(FRAGMENTS / f"{name}.py", tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    import merge as leaf

    yield leaf
    del sys.modules["merge"], sys.modules["sources"], sys.modules["config_file"]
    for descriptor in __import__("run_folder").HELD.values():
        os.close(descriptor)


def run(merge: ModuleType, monkeypatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", ["merge.py", *map(str, words)])
    merge.main()


def test_a_model_is_merged_beside_what_others_put_there(merge, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    output = tmp_path / "out"
    mine = tmp_path / "out.tmp"  # it was taken for a draft, and removed
    mine.mkdir()
    (mine / "notes").write_text("mine")
    unfinished = tmp_path / ".out.unfinished"  # of a merge that was killed
    unfinished.mkdir()
    (unfinished / "_train.lock").write_text("")
    (unfinished / "model.safetensors").write_text("half")
    run(merge, monkeypatch, "--output", output)
    assert (mine / "notes").read_text() == "mine" and not unfinished.exists()
    assert {"model.safetensors", "config.json", "run.json", "tokenizer.json"} <= {
        path.name for path in output.iterdir()
    }
    assert not (output / "_train.lock").exists()
    merged, tokenizer = AutoModelForCausalLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    assert tokenizer.eos_token_id in merged.generation_config.eos_token_id  # where servers end an answer
    with pytest.raises(SystemExit, match="exists: remove it"):
        run(merge, monkeypatch, "--output", output)


def test_a_disk_that_gets_full_keeps_nothing_of_half_a_model(merge, tmp_path, monkeypatch):
    """It stayed in a folder that nobody sees, and took the room that was missing; and the end was a traceback."""

    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(merge, "sync_to_disk", fail)
    monkeypatch.setattr("sys.argv", ["merge.py", "--output", str(tmp_path / "out")])
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit, match=r"No space left on device.*\n.*free some space and run again"):
        merge.run_main(merge.main)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_draft_that_is_not_its_own_is_left_alone(merge, tmp_path, monkeypatch):
    (tmp_path / ".out.unfinished").mkdir()
    with pytest.raises(SystemExit, match=r"is not of merge\.py"):
        run(merge, monkeypatch, "--output", tmp_path / "out")
    with pytest.raises(SystemExit, match="cannot be made"):
        run(merge, monkeypatch, "--output", tmp_path / "config.yaml" / "out")


@pytest.mark.parametrize("what", ["weights", "no report", "half a report", "another report"])
def test_an_adapter_is_merged_into_the_model_that_it_was_trained_beside(merge, tmp_path, monkeypatch, what):
    if what == "weights":
        from safetensors.torch import load_file, save_file

        path = Path(tmp_path / "base" / "model.safetensors")
        save_file({name: value * 2 for name, value in load_file(path).items()}, path, {"format": "pt"})
    elif what == "no report":
        (tmp_path / "runs" / "run.json").unlink()
    else:
        (tmp_path / "runs" / "run.json").write_text('{"run": {"se' if what == "half a report" else '{"run": 3}')
    words = {
        "weights": "trained on another model .*\n  weights of the model: sampled",
        "no report": "holds no finished run",
        "half a report": r"run\.json is damaged",
        "another report": r"run\.json is damaged",
    }
    with pytest.raises(SystemExit, match=words[what]):
        run(merge, monkeypatch)
    assert not (tmp_path / "runs" / "merged").exists()


@pytest.mark.parametrize(
    ("lacking", "file"), [("q_proj", "base/model.safetensors"), ("lora_B", "runs/adapter_model.safetensors")]
)
def test_nothing_is_merged_where_weights_are_missing(merge, tmp_path, monkeypatch, lacking, file):
    """Of the model, or of the adapter, which would be merged without them."""
    path = tmp_path / file
    drop_weights(path.parent, lacking, path.name)
    monkeypatch.setattr(merge, "check_base", lambda *_: None)
    with pytest.raises(SystemExit, match=lacking):
        run(merge, monkeypatch)
    assert not (tmp_path / "runs" / "merged").exists()
