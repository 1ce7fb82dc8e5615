"""Models that hear or see: planned for what perfgen does with them, as batch.py, and refused for the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from leaves import check_imports

from generator.case.request import Request
from generator.case.sources import read_work
from generator.emit.plan_json import to_json
from generator.emit.render import render
from generator.errors import UsageError
from generator.pipeline import document_request

ROOT = Path(__file__).resolve().parents[1]
WHISPER = {
    **{"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "vocab_size": 51864},
    **{"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "num_mel_bins": 80, "torch_dtype": "float32"},
    **{"encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536},
}
VIT = {"model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 768}
BERT = {
    **{"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12},
    **{"intermediate_size": 1536, "vocab_size": 30522, "max_position_embeddings": 512, "torch_dtype": "float32"},
}
CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"]}
DINO = {"model_type": "dinov2_with_registers", "architectures": ["Dinov2WithRegistersForImageClassification"]}
DINO |= {"patch_size": 14}
MARKER = BERT | {"architectures": ["BertForTokenClassification"]}
TEXTS = {
    "token-classification": MARKER,
    "text-classification": CLASSIFIER,
    "feature-extraction": BERT | {"architectures": ["BertModel"]},
}
TASKS = {"automatic-speech-recognition": WHISPER, "image-classification": VIT}


def ask(folder: Path, config: dict, **told):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return document_request(Request(model="owner/name", config=str(path), offline=True, mode="infer", **told))


@pytest.mark.parametrize("hardware", ["cpu:4", "1xl40s", "portable"])
@pytest.mark.parametrize("task", TASKS)
def test_the_kind_of_model_says_what_it_is_for(task, hardware, tmp_path):
    document = ask(tmp_path, TASKS[task], hardware=hardware, concurrency=8)
    assert document.project.task == task and document.choice["engine"] == "transformers"
    assert "server" not in to_json(document)
    assert document.config.rows.batch == 8
    assert any("batch.py only" in note.text for note in document.notes)
    render(to_json(document), tmp_path / "p")
    files = {path.name for path in (tmp_path / "p").iterdir()}
    assert {"batch.py", "infer.py", "model.py", "media.py"} <= files and not {"serve.sh", "server.py"} & files
    auto = "AutoModelForSpeechSeq2Seq" if task.startswith("automatic") else "AutoModelForImageClassification"
    assert f"{auto}.from_pretrained" in (tmp_path / "p" / "model.py").read_text()
    config = yaml.safe_load((tmp_path / "p" / "config.yaml").read_text())
    assert config["rows"]["weights"] in (tmp_path / "p" / "model.py").read_text()
    check_imports(tmp_path / "p")


@pytest.mark.parametrize("task", TEXTS)
def test_texts_are_read_in_one_pass_that_is_priced_as_one(task, tmp_path):
    told = {"hardware": "cpu:4", "tokenizer": "owner/name"}
    document = ask(tmp_path, TEXTS[task], **told)
    assert (document.project.task, document.choice["cache"]) == (task, "none")
    assert list(document.estimate.time_seconds) == ["prefill"]
    assert document.config.rows.positions == 512 and "seq_len" not in to_json(document)["config"]
    render(to_json(document), tmp_path / "p")
    files = {path.name for path in (tmp_path / "p").iterdir()}
    assert {"batch.py", "infer.py", "model.py", "encoder.py"} <= files and not {"serve.sh", "media.py"} & files
    assert ("pooling.py" in files) == (task == "feature-extraction")
    requirements = (tmp_path / "p" / "pyproject.toml").read_text()
    assert "transformers" in requirements and not {"pillow", "soundfile"} & set(re.findall(r"\w+", requirements))
    # a longer text costs more, a longer answer is none
    longer = ask(tmp_path, TEXTS[task], **told, new_tokens=512).estimate
    assert (longer.step_seconds, longer.memory_gib) == (document.estimate.step_seconds, document.estimate.memory_gib)
    assert ask(tmp_path, TEXTS[task], **told, prompt_tokens=64).estimate.step_seconds < document.estimate.step_seconds


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (VIT, 197),
        (VIT | {"image_size": 384, "patch_size": 32}, 145),
        (DINO, 261),
        (WHISPER, 1500),
        (WHISPER | {"max_source_positions": 750}, 750),
    ],
)
def test_positions_of_a_row_are_those_of_config_json(config, positions, tmp_path):
    document = ask(tmp_path, config, hardware="cpu:4")
    assert document.config.rows.positions == positions == document.case.workload.seq_len.value


@pytest.mark.parametrize(
    ("config", "told", "words"),
    [
        (WHISPER, {"task": "image-classification"}, "needs a classifier of images"),
        (VIT, {"task": "automatic-speech-recognition"}, "needs one of whisper"),
        (VIT | {"architectures": ["ViTModel"]}, {}, "needs a decoder-only model"),
        (WHISPER, {"task": "automatic-speech-recognition", "mode": "train"}, "is for --mode infer"),
    ],
)
def test_what_a_model_cannot_do_is_refused(config, told, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    asked = {"mode": "infer", "given": ("task",) if "task" in told else (), **told}
    with pytest.raises(UsageError, match=words):
        document_request(Request(model="owner/name", config=str(path), offline=True, hardware="cpu:4", **asked))


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize(
    ("config", "way"),
    [
        (VIT | {"architectures": ["ViTModel"]}, "…ForImageClassification in config.json"),
        (WHISPER, "--mode infer --task automatic-speech-recognition"),
    ],
    ids=["vision", "speech"],
)
def test_a_refusal_names_what_can_be_done_with_the_model(config, way, mode, tmp_path):
    """ "does not emit inference for this kind of model yet" was said of a vision model, whose classifiers it runs."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    asked = {"mode": mode, "task": "causal-lm", "given": ("task",)}
    with pytest.raises(UsageError, match="needs a decoder-only model") as refused:
        document_request(Request(model="owner/name", config=str(path), offline=True, hardware="cpu:4", **asked))
    assert way in refused.value.hint


def test_rows_are_computed_together_where_nobody_says_how_many():
    """batch.py computed one row after another, on an H100 too; for latency it still does."""
    asked = {"mode": "infer", "task": "feature-extraction", "offline": True, "hardware": "1xh100-sxm-80gb"}
    asked_more = ({}, {"optimize_for": "latency"}, {"concurrency": 4})
    planned = [document_request(Request(model="BAAI/bge-small-en-v1.5", **asked, **more)) for more in asked_more]
    assert [document.config.rows.batch for document in planned] == [32, 1, 4]


MODEL = str(Path(__file__).parent.parent / "examples" / "models" / "smollm2-135m.json")


@pytest.mark.parametrize("task", ["token-classification", "automatic-speech-recognition", "feature-extraction"])
def test_what_is_not_trained_is_said_before_the_data_is_looked_at(task, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"tokens": ["a"], "ner_tags": [0]}\n')
    with pytest.raises(UsageError, match=f"--task {task} is for --mode infer"):
        read_work(Request(model=MODEL, data=str(tmp_path / "d.jsonl"), task=task))
