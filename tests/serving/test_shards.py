"""The parts of a batch: how rows are cut, sealed and put together again."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from leaves import FRAGMENTS

ASKED_FROM = ("messages", "prompt", "text")


@pytest.fixture
def shards(load):
    load("seals")
    return load("serving/shards", "shards")


@pytest.fixture
def rows(load):
    for leaf in ("fields", "open_data"):
        load(leaf)
    for kind in ("jsonl", "csv", "txt"):
        load(f"rows/{kind}", f"rows_{kind}")
    return load("serving/batch_input", "batch_input")


@pytest.fixture
def assembly(load, shards, rows):
    return load("serving/assembly", "assembly")


def test_shards_hold_every_row_once_and_no_more_than_they_may(rows):
    draw = random.Random(0)
    made = [rows.Row(number, size=draw.choice([1, 10, 500])) for number in range(300)]
    cut = list(rows.cut_shards(iter(made), most_rows=7, most_bytes=600))
    assert [row for shard in cut for row in shard] == made and list(rows.cut_shards([], 7, 600)) == []
    assert all(0 < len(shard) <= 7 for shard in cut)
    assert all(sum(row.size for row in shard) <= 600 or len(shard) == 1 for shard in cut)
    later = next(number for number, shard in enumerate(cut) if shard[0].number > 100)
    assert list(rows.cut_shards(iter(made[cut[later][0].number :]), 7, 600)) == cut[later:]  # wherever it begins again


def test_a_seal_holds_all_of_a_shard(shards, tmp_path, capsys):
    parts = shards.Shards(tmp_path / "out.jsonl")
    parts.claim()
    results = [{"answer": "a\u2028b\r\n\x85", "error": None}, {"answer": "half \ud800", "error": None}]
    parts.seal(3, results)
    assert [json.loads(line) for line in parts.read(3)] == results and parts.read(2) is None
    parts.seal(4, [])
    assert parts.read(4) == []
    file = parts.folder / parts.name(3)
    whole = file.read_bytes()
    for damage in (whole[:-1], whole[: len(whole) // 2], whole.replace(b"a", b"b", 1), b"", whole + whole, b"\xff\n"):
        file.write_bytes(damage)
        assert parts.read(3) is None or damage == whole[:-1]  # a last line without its end says the same
    assert "is not what was written: computed again" in capsys.readouterr().err
    assert not list(parts.folder.glob(f"{shards.DRAFT}*"))


def test_two_at_once_are_one_too_many(shards, tmp_path):
    parts = shards.Shards(tmp_path / "out.jsonl")
    parts.claim()
    script = "import sys; sys.path[:0] = sys.argv[1:3]; from pathlib import Path; import shards; "
    script += "shards.Shards(Path(sys.argv[3])).claim()"
    command = [sys.executable, "-c", script, FRAGMENTS, FRAGMENTS / "serving", tmp_path / "out.jsonl"]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1 and "another process is at work there" in second.stderr
    os.close(parts.lock)
    assert subprocess.run(command, check=False).returncode == 0


def test_a_lock_of_a_folder_that_is_gone_keeps_nobody_out(shards, tmp_path, monkeypatch):
    """Between opening the lock and holding it the first process is done, and a third one begins in a folder of its own."""
    first, third = shards.Shards(tmp_path / "out.jsonl"), shards.Shards(tmp_path / "out.jsonl")
    first.claim()
    lock = shards.fcntl.lockf

    def lock_later(descriptor, flags):
        monkeypatch.setattr(shards.fcntl, "lockf", lock)
        first.remove()
        third.claim()
        lock(descriptor, flags)

    monkeypatch.setattr(shards.fcntl, "lockf", lock_later)
    with pytest.raises(SystemExit, match="was removed just now"):
        shards.Shards(tmp_path / "out.jsonl").claim()
    third.remove()
    assert not first.folder.exists()


def test_a_folder_in_which_another_one_has_begun_is_left(shards, tmp_path, monkeypatch):
    parts = shards.Shards(tmp_path / "out.jsonl")
    parts.claim()
    parts.seal(0, [])
    close = os.close

    def begin_there(descriptor):
        monkeypatch.setattr(shards.os, "close", close)
        assert not list(parts.folder.iterdir())  # the lock is the last to go
        (parts.folder / shards.LOCK).touch()
        close(descriptor)

    monkeypatch.setattr(shards.os, "close", begin_there)
    parts.remove()
    assert [path.name for path in parts.folder.iterdir()] == [shards.LOCK]


def test_a_full_disk_is_two_lines_and_what_is_sealed_stays(shards, tmp_path, monkeypatch):
    parts = shards.Shards(tmp_path / "out.jsonl")
    parts.claim()
    parts.seal(0, [{"error": None}])

    def fill(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shards.os, "fsync", fill)
    with pytest.raises(OSError) as full:
        parts.seal(1, [{"error": None}])
    assert parts.read(0) is not None and parts.read(1) is None
    with pytest.raises(SystemExit) as end:
        shards.end_unwritable(parts.folder, full.value)
    said = str(end.value).splitlines()
    assert (
        len(said) == 2
        and "No space left on device" in said[0]
        and "run again: shards that are done are kept" in said[1]
    )


def test_files_that_may_not_grow_are_said(shards, tmp_path):
    with pytest.raises(SystemExit, match="raise the limit"):
        shards.end_unwritable(tmp_path, OSError(errno.EFBIG, os.strerror(errno.EFBIG)))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("text", ["é", "\ud800"])
def test_a_line_is_json_that_every_reader_takes(shards, number, text):
    """Parquet's NaN, and 1e400, which is JSON and too large to be read back; also below more levels than Python recurses."""
    deep: list = [number]
    for _ in range(600):
        deep = [deep]
    line = shards.dump_line({"a": number, "b": [{"c": number}], "text": text, "when": b"\xff", "deep": deep})

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no number of JSON")

    read = json.loads(line, parse_constant=refuse)
    assert (read["a"], read["b"], read["text"], read["when"]) == (None, [{"c": None}], text, "ff")
    assert shards.dump_line({"a": 1.5, "text": text}) == shards.dump_line({"a": 1.5, "text": text})
    assert json.loads(shards.dump_line({"a": 1e308, "text": "é"})) == {"a": 1e308, "text": "é"}


def test_a_column_that_stands_there_twice_is_refused(rows, tmp_path):
    """A row would keep one of them, and nobody would know which was answered."""
    file = tmp_path / "a.csv"
    file.write_text("prompt,x,prompt\nfirst,1,second\n")
    with pytest.raises(SystemExit, match="a column name twice: 'prompt', 'x', 'prompt'"):
        rows.choose_column(file, None, ASKED_FROM)
    table = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["first"]), pa.array(["second"])], ["prompt", "prompt"]), table)
    with pytest.raises(SystemExit, match="the column name 'prompt' stands there twice"):
        rows.choose_column(table, None, ASKED_FROM)


def test_the_columns_of_a_row_are_all_kept(assembly):
    result = {"answer": "new", "error": None}
    merged = assembly.merge_row({"answer": 1, "input_answer": 2, "input_input_answer": 3, "x": 4}, result)
    assert merged == {"input_input_input_answer": 1, "input_answer": 2, "input_input_answer": 3, "x": 4, **result}


def test_columns_that_disagree_become_json(assembly, monkeypatch):
    monkeypatch.setattr(assembly, "BATCH_ROWS", 2)
    made = [
        {"whole": 1, "mixed": "a", "nested": {"a": 1}, "empty": {}, "big": 1, "error": None},
        {"whole": None, "mixed": "b", "nested": {"a": 2}, "empty": {}, "big": 2, "error": None},
        {"whole": 2.5, "mixed": 3, "nested": {"b": "x"}, "empty": {}, "big": 10**30, "error": None, "late": [1]},
    ]
    schema, texts = assembly.find_schema(made, {"error": "string"})
    assert texts == {"mixed", "empty", "big"}
    assert schema.field("whole").type == pa.float64() and schema.field("error").type == pa.string()
    assert {field.name for field in schema.field("nested").type} == {"a", "b"}
    assert schema.field("late").type == pa.list_(pa.int64())
    table = pa.Table.from_pylist([assembly.convert_row(row, texts) for row in made], schema)
    assert table.column("mixed").to_pylist() == ['"a"', '"b"', "3"] and table.num_rows == 3


def nest(levels: int) -> list:
    return [nest(levels - 1)] if levels > 1 else [1]


def test_rows_that_no_table_holds_as_they_are_are_written_as_text(assembly, tmp_path):
    """A name that UTF-8 cannot hold ended every start before the output; lists in lists were written, and read by nobody."""
    rows = [{"half \ud800": 1, "deep": nest(60), "list": nest(16)}, {"deep": None, "error": "half \ud800"}]
    assembly.write_parquet_of_rows(tmp_path / "out.parquet", lambda: iter(rows), {"error": "string"})
    first, second = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert first == {"half \\ud800": 1, "deep": json.dumps(nest(60)), "list": nest(16), "error": None}
    assert second == {"half \\ud800": None, "deep": None, "list": None, "error": "half \\ud800"}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_record_that_is_damaged_is_named(shards, tmp_path, content):
    (tmp_path / "job.json").write_bytes(content)
    with pytest.raises(SystemExit, match=r"job\.json is not what was written there: remove it"):
        shards.read_record(tmp_path / "job.json")


@pytest.mark.parametrize("failed", [0, 3, 5], ids=["none", "first", "all"])
def test_results_of_any_kind_have_the_type_of_those_that_are_there(assembly, monkeypatch, tmp_path, failed):
    """A table whose first thousand texts are empty, in a classification: the output was never written."""
    monkeypatch.setattr(assembly, "BATCH_ROWS", 2)
    source, output = tmp_path / "in.parquet", tmp_path / "out.parquet"
    columns = {"label": "string", "probabilities": "any", "error": "string"}
    right = {"label": "a", "probabilities": {"a": 0.75, "b": 0.25}, "error": None}
    wrong = {"label": None, "probabilities": None, "error": "no text"}
    results = [wrong] * failed + [right] * (5 - failed)
    for count in (5, 0):
        pq.write_table(pa.table({"text": pa.array(["x"] * count, pa.string())}), source)
        assembly.write_parquet_of_parquet(output, source, lambda: iter(results[:count]), count, columns)  # noqa: B023
        read = pq.read_table(output).to_pylist()
        assert read == [{"text": "x", **result} for result in results[:count]]


def test_the_column_of_the_prompt_is_found_or_asked_for(rows, tmp_path):
    cases = {
        '{"text": "a", "messages": [], "x": 1}': "messages and text among text, messages, x",
        '{"question": "a"}': "none of messages, prompt, text among question",
        '{"prompt": "a", "x": 1}': None,
    }
    for number, (line, words) in enumerate(cases.items()):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(f"not JSON\n{line}\n")
        if words is None:
            assert rows.choose_column(file, None, ASKED_FROM) == "prompt"
            assert rows.choose_column(file, "later", ASKED_FROM) == "later"
            continue
        with pytest.raises(SystemExit, match=words):
            rows.choose_column(file, None, ASKED_FROM)
    table = tmp_path / "x.csv"
    table.write_text("prompt,x\na,1\n")
    with pytest.raises(SystemExit, match="no column 'y' among prompt, x"):
        rows.choose_column(table, "y", ASKED_FROM)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert rows.choose_column(empty, None, ASKED_FROM) == "messages"
