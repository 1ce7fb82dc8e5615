"""Data sets of the hub, from a hub on localhost: configs, splits, columns, rows, the commit; the judge is `datasets` itself."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys

import local_hub
import pytest
from test_hub_models import hub  # noqa: F401 : a fixture

from generator.errors import SourceError
from generator.inputs import hub_data
from generator.inputs.data_files import read_data
from generator.inputs.hub_files import list_files
from generator.inputs.hub_splits import choose_split, list_splits, read_configs

ROWS = [
    {"messages": [{"role": "user", "content": f"How much is {n}?"}, {"role": "assistant", "content": "x" * n}]}
    for n in range(1, 41)
]
ROW = '{"text": "a b c"}\n'
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def read(name="owner/set", task="sft", **more):
    return read_data(name, **{"task": task, "offline": False} | more)


def make_parquet(rows, **options) -> bytes:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out, **options)
    return out.getvalue()


def front(**card) -> str:
    return f"---\n{json.dumps(card)}\n---\n# A data set\n"  # JSON is YAML


LAYOUTS = {
    "one file": ({}, ["data.jsonl"]),
    "names of files": ({}, ["train.jsonl", "test.jsonl", "validation.jsonl"]),
    "names inside": ({}, ["my-train-part.jsonl", "my-dev-part.jsonl", "latrain.jsonl"]),
    "folders": ({}, ["train/a.jsonl", "train/b.jsonl", "eval/c.jsonl"]),
    "folders below": ({}, ["x/training/a.jsonl", "x/testing/a.jsonl"]),
    "shards": (
        {},
        ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/odd-00000-of-00001.jsonl"],
    ),
    "hidden": ({}, [".hidden/a.jsonl", "__pycache__/b.jsonl", "c.jsonl", ".d.jsonl"]),
    "one config": ({"configs": [{"config_name": "x", "data_files": "sub/*.jsonl"}]}, ["sub/a.jsonl", "b.jsonl"]),
    "splits": (
        {
            "configs": [
                {
                    "config_name": "x",
                    "data_files": [{"split": "sft", "path": "s/*"}, {"split": "gen", "path": ["g/1.jsonl"]}],
                }
            ]
        },
        ["s/1.jsonl", "g/1.jsonl", "g/2.jsonl"],
    ),
    "data_dir": (
        {"configs": [{"config_name": "x", "data_dir": "x"}, {"config_name": "y", "data_dir": "y", "default": True}]},
        ["x/train.jsonl", "y/train.jsonl", "y/test.jsonl"],
    ),
    "several": (
        {"configs": [{"config_name": "x", "data_files": "x.jsonl"}, {"config_name": "y", "data_files": "y.jsonl"}]},
        ["x.jsonl", "y.jsonl"],
    ),
    "recursive": ({"configs": [{"config_name": "default", "data_files": "**/*.jsonl"}]}, ["a.jsonl", "b/c/d.jsonl"]),
}
ASK_DATASETS = """
import json, sys
from datasets import get_dataset_config_names, get_dataset_default_config_name, load_dataset_builder
answers = {}
for name in json.loads(sys.argv[1]):
    configs = {}
    for config in get_dataset_config_names(name):
        files = load_dataset_builder(name, config).config.data_files
        configs[config] = {str(s): [str(p).split("@", 1)[1].split("/", 1)[1] for p in ps] for s, ps in files.items()}
    answers[name] = [get_dataset_default_config_name(name), configs]
print("ANSWER" + json.dumps(answers))
"""


def test_configs_splits_and_files_are_those_that_datasets_loads(hub, tmp_path):  # noqa: F811
    names = {}
    for number, (title, (card, files)) in enumerate(LAYOUTS.items()):
        names[title] = f"owner/layout-{number}"
        readme = {"README.md": front(**card)} if card else {}
        hub.add("datasets", names[title], readme | dict.fromkeys([*files, ".gitattributes"], '{"text": "a"}\n'))
    environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    command = [sys.executable, "-c", ASK_DATASETS, json.dumps(list(names.values()))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = json.loads(done.stdout.split("ANSWER")[1])
    for title, (card, files) in LAYOUTS.items():
        default, expected = answers[names[title]]
        configs = read_configs(card) or {"default": {}}
        every = sorted([*files, ".gitattributes", *(["README.md"] if card else [])])
        assert {n: list_splits(c, every) for n, c in configs.items()} == expected, title
        if default is None:
            with pytest.raises(SourceError, match=r"several configs and no default: x, y\n.*--data-config"):
                choose_split("n", card, every, None, None)
        else:
            split = next(iter(expected[default])) if "train" not in expected[default] else "train"
            choice = choose_split("n", card, every, None, split)
            assert (choice.config or "default", list(choice.files)) == (default, expected[default][split]), title


@pytest.mark.parametrize("packed", ["data.jsonl", "data.json", "data.jsonl.gz", "data.parquet"])
def test_columns_rows_and_commit_are_read(hub, packed):  # noqa: F811
    content = {
        "data.jsonl": LINES.encode(),
        "data.json": json.dumps(ROWS).encode(),
        "data.jsonl.gz": gzip.compress(LINES.encode()),
        "data.parquet": make_parquet(ROWS),
    }[packed]
    commit = hub.add("datasets", "owner/set", {packed: content}).head
    data = read()
    assert (data.path, data.format, data.columns) == ("owner/set", "hub", ("messages",))
    assert (data.text_column, data.sft_format, data.rows) == ("messages", "messages", 40)
    assert (data.config, data.split, data.revision) == (None, "train", commit)
    assert data.token_quantiles and f"split train at {commit[:12]}" in data.notes[0] and packed in data.notes[0]


def test_tables_and_texts(hub):  # noqa: F811
    table = "sentence,label\n" + "".join(f'"a, b\n{n}",{n % 2}\n' for n in range(10))
    hub.add("datasets", "owner/table", {"train.csv": table})
    data = read("owner/table", task="text-classification")
    assert (data.text_column, data.label_column, data.labels, data.rows) == ("sentence", "label", 2, 10)
    hub.add("datasets", "owner/text", {"all.txt": "one line\nanother\n"})
    data = read("owner/text", task="causal-lm")
    assert (data.text_column, data.rows) == ("text", 2)


def test_of_large_files_the_beginning_is_fetched(hub, monkeypatch):  # noqa: F811
    rows = [{"text": os.urandom(500).hex()} for _ in range(3000)]
    monkeypatch.setattr(hub_data, "HEAD_BYTES", 100_000)
    monkeypatch.setattr(hub_data, "HEAD_ROWS", 50)
    hub.add(
        "datasets",
        "owner/lines",
        {"a.jsonl": "".join(json.dumps(r) + "\n" for r in rows), "b.jsonl": '{"text": "b"}\n'},
    )
    data = read("owner/lines", task="causal-lm")
    assert data.rows == pytest.approx(3000, rel=0.02) and data.tokens == pytest.approx(3000 * 250, rel=0.03)
    assert "a.jsonl of 2" in data.notes[0]
    wide = make_parquet(rows * 3, row_group_size=9000, compression="none", use_dictionary=False)
    hub.add("datasets", "owner/wide", {"data/train-00000-of-00001.parquet": wide})
    sent = hub.sent
    data = read("owner/wide", task="causal-lm")
    assert data.rows == 9000 and len(wide) > 8 << 20
    assert hub.sent - sent < 4 << 20, "not the file, nor its row group"


def test_the_readme_counts_the_rows(hub):  # noqa: F811
    info = {"config_name": "default", "splits": [{"name": "train", "num_examples": 77}]}
    hub.add("datasets", "owner/set", {"README.md": front(dataset_info=info), "a.jsonl": LINES, "b.jsonl": LINES})
    assert read().rows == 77


def test_splits_and_configs_are_named_or_refused(hub):  # noqa: F811
    card = {"configs": [{"config_name": n, "data_files": [{"split": s, "path": f"{n}-{s}.jsonl"} for s in splits]} for n, splits in
            (("en", ("sft", "gen")), ("fr", ("only",)))]}  # fmt: skip
    files = dict.fromkeys(("en-sft.jsonl", "en-gen.jsonl", "fr-only.jsonl"), LINES)
    hub.add("datasets", "owner/set", {"README.md": front(**card)} | files)
    for more, words in (
        ({}, "several configs and no default: en, fr"),
        ({"config": "de"}, "--data-config 'de': owner/set has en, fr"),
        ({"config": "en"}, "no train split but sft, gen"),
        ({"config": "en", "split": "train"}, "--split 'train': owner/set, config en has sft, gen"),
    ):
        with pytest.raises(SourceError, match=words):
            read(**more)
    assert read(config="fr").split == "only"
    chosen = read(config="en", split="gen")
    assert (chosen.config, chosen.split, chosen.rows) == ("en", "gen", 40)


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (None, "no data set owner/set, or hides it"),
        ({"access": {"gated": "hf_right"}}, "gated, and no token"),
        ({"access": {"token": "hf_right"}}, "no data set owner/set"),
        ({"files": {"set.py": "print(1)"}}, "its own Python code"),
        ({"files": {"README.md": "# nothing"}}, "no data file among README.md"),
        ({"files": {"data.jsonl": LINES}, "access": {"gated": "hf_right"}}, "gated, and no token"),
        ({"files": {"README.md": "---\na: [\n---\n", "a.txt": "x"}}, "owner/set, README.md cannot be read"),
        ({"files": {"a.parquet": "not parquet"}}, "cannot be read"),
        ({"files": {"a.jsonl": '{"x": 1}\n'}}, "no text among 'x'"),
        ({"files": {"a.jsonl": LINES + "{]\n"}}, "owner/set, row 41: not JSON"),
    ],
    ids=[
        "missing",
        "gated",
        "private",
        "code",
        "empty",
        "gated without README",
        "README",
        "damaged",
        "columns",
        "bad row",
    ],
)
def test_what_the_hub_denies_is_one_line(hub, add, words):  # noqa: F811
    if add:
        files = add.get("files", {"README.md": "# x", "data.jsonl": LINES})
        hub.add("datasets", "owner/set", files, **add.get("access", {}))
    with pytest.raises(SourceError, match=words) as refused:
        read()
    assert len(str(refused.value).splitlines()) == 2


@pytest.mark.parametrize("fault", ["limited", "slow", "gone", "offline"])
def test_a_hub_that_does_not_answer_leaves_it_to_the_run(hub, monkeypatch, fault):  # noqa: F811
    hub.add("datasets", "owner/set", {"data.jsonl": LINES})
    hub.limited = fault == "limited"
    if fault == "slow":
        monkeypatch.setattr("generator.inputs.hub_requests.HUB_SECONDS", 0.2)
        hub.delay = 2
    if fault == "gone":
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    data = read(offline=fault == "offline")
    assert (data.format, data.rows, data.split, data.revision) == ("hub", None, None, None)
    assert "was not looked at" in data.notes[0] and "assumed" in data.notes[0]
    assert hub.paths() == [] if fault == "offline" else True


def test_a_cut_download_is_no_wrong_data(hub):  # noqa: F811
    hub.add("datasets", "owner/set", {"data.jsonl": LINES})
    hub.cut = 1000
    assert read().rows in (40, None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([], "no answer of a hub"),
        ({"sha": "a" * 40}, "no answer of a hub"),
        ({"id": "o/set", "sha": 7}, "no answer of"),
    ],
    ids=["a list", "without an id", "a commit that is no text"],
)
@pytest.mark.parametrize("kind", ["model", "set"])
def test_an_answer_of_something_else_than_a_hub_is_one_line(hub, monkeypatch, kind, answer, words):  # noqa: F811
    """A proxy's page, or another service under HF_ENDPOINT: TypeError and KeyError of the library before."""
    hub.add("datasets", "owner/set", {"train.jsonl": ROW})
    hub.add("models", "owner/model", {"config.json": "{}"})
    send = local_hub.Handler.send_json
    monkeypatch.setattr(local_hub.Handler, "send_json", lambda self, value: send(self, answer))
    if kind == "set":
        with pytest.raises(SourceError, match=words):
            read_data("owner/set", task="causal-lm", offline=False)
    elif answer != {"id": "o/set", "sha": 7}:
        with pytest.raises(SourceError, match=words):
            list_files("owner/model", None)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"train.jsonl": ""}, "holds no usable row"),
        ({"train.json": "[" * 100_000}, "cannot be read: maximum recursion depth"),
        (
            {"train.jsonl": ROW, "README.md": "---\na: " + "[" * 5000 + "]" * 5000 + "\n---\n"},
            "README.md cannot be read",
        ),
        (
            {"train.jsonl": ROW, "README.md": front(configs=[{"config_name": "x", "data_files": "**a"}])},
            "is no pattern",
        ),
    ],
    ids=["empty file", "deep JSON", "deep YAML", "pattern"],
)
def test_odd_files_of_a_set_are_refused_in_one_line(hub, files, words):  # noqa: F811
    hub.add("datasets", "owner/set", files)
    with pytest.raises(SourceError, match=re.escape(words)):
        read_data("owner/set", task="causal-lm", offline=False)


@pytest.mark.parametrize("splits", [5, [{"name": "train", "num_examples": 10**20}]])
def test_a_readme_that_counts_nothing_is_not_asked(hub, splits):  # noqa: F811
    card = front(dataset_info={"config_name": "default", "splits": splits})
    hub.add("datasets", "owner/set", {"train.jsonl": ROW * 3, "README.md": card})
    assert read_data("owner/set", task="causal-lm", offline=False).rows == 3
