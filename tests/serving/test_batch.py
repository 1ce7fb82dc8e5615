"""batch.py as a user runs it: every row once, whatever the rows hold and whenever the job is ended."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batch_kills import compare_killed_job, start_batch
from serving_projects import ANSWERS, BATCH, TURNS, find_smollm2, make_serving_project, make_tiny_model

NEW = {"answer", "finish_reason", "prompt_tokens", "new_tokens", "error"}


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("batch")
    return make_serving_project(folder / "p", make_tiny_model(folder / "m"), BATCH | ANSWERS, threads=1)


def start(project: Path, source: Path, output: Path, *flags: str) -> subprocess.Popen:
    return start_batch(sys.executable, project, source, output, *flags)


def run(project: Path, source: Path, output: Path, *flags: str) -> tuple[int, str]:
    with start(project, source, output, *flags) as process:
        stdout, stderr = process.communicate(timeout=300)
    assert "Traceback" not in stderr, stderr
    assert stdout == ""
    return process.returncode, stderr


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


HOSTILE = [
    b'{"prompt": "a usual one", "id": 1}',
    b'{"prompt": "", "id": 2}',
    b'{"prompt": "a \\u0000 in it", "id": 3}',
    b'{"prompt": "half a pair \\ud83d", "id": 4}',
    b'{"prompt": "' + b"long " * 200_000 + b'", "id": 5}',
    b"not JSON at all \xff",
    b'{"question": "no such column", "id": 7}',
    b'{"prompt": "a usual one", "id": 1}',
    b'{"prompt": "a usual one", "id": 1}',
    b'{"prompt": 5, "id": 10, "answer": "expected", "input_answer": "?"}',
    b'{"prompt": [{"role": "user", "content": "turns"}, {"role": "assistant", "content": "known"}], "error": {}}',
    b'{"prompt": [{"role": "nobody", "content": "turns"}]}',
    b"[1, 2]",
    b'{"prompt": "big", "n": 123456789012345678901234567890, "x": NaN}',
]


@pytest.mark.slow
def test_hostile_rows_are_answered_or_say_why_not(project, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + b"\n\n".join(HOSTILE))
    code, said = run(project, source, tmp_path / "new" / "out.jsonl", "--shard_rows", "4")
    assert code == 0 and "14 rows, 8 of them with an error" in said
    assert (
        said.count("texts are continued as they are") == 1
    )  # an instruct model's answer to a question was "" without a word
    rows = read(tmp_path / "new" / "out.jsonl")
    assert len(rows) == len(HOSTILE) and all(row.keys() >= NEW for row in rows)
    why = {number: row["error"] for number, row in enumerate(rows) if row["error"] is not None}
    assert {number: rows[number]["finish_reason"] for number in why} == dict.fromkeys(why, "error")
    assert sorted(why) == [1, 3, 4, 5, 6, 9, 11, 12]
    for number, words in {
        1: "no usable text",
        3: "surrogate",
        4: "max_context is 256",
        5: "no row",
        6: "of question, id",
    }.items():
        assert words in why[number], why[number]
    assert rows[3]["prompt"] == "half a pair \ud83d" and rows[5]["line"] == "not JSON at all \\xff"
    assert rows[0] == rows[7] == rows[8] and rows[0]["new_tokens"] > 0 and rows[0]["id"] == 1
    assert (rows[9]["input_answer"], rows[9]["input_input_answer"]) == ("?", "expected") and rows[9]["answer"] is None
    assert (
        rows[10]["input_error"] == {} and rows[10]["error"] is None and rows[13]["n"] == 123456789012345678901234567890
    )
    question = "<|user|>turns<|end|><|assistant|>"  # a mark is one token, a letter another
    assert rows[10]["prompt_tokens"] == 3 + len("turns"), question
    table_code, _ = run(project, source, tmp_path / "out.parquet", "--shard_rows", "4")
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert table_code == 0 and [row["answer"] for row in table] == [row["answer"] for row in rows]
    assert table[3]["prompt"] == '"half a pair \\ud83d"' and table[13]["n"] == "123456789012345678901234567890"


@pytest.mark.slow
def test_rows_give_their_chat_template_what_they_hold(project, tmp_path):
    """As in a training: else every row is answered as if it had asked for nothing."""
    template = TURNS.replace(
        "{% for", "{{ tools[0]['name'] if tools }}{{ documents[0]['text'] if documents }}{{ note }}{% for", 1
    )
    folder = make_tiny_model(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(template)
    asking = make_serving_project(tmp_path / "p", folder, BATCH | ANSWERS, threads=1)
    turns = [{"role": "user", "content": "Hi"}]
    given = [
        {},
        {"tools": [{"name": "weigh"}]},
        {"documents": [{"title": None, "text": "wide"}]},
        {"chat_template_kwargs": {"note": "brief"}},
        {
            "tools": '[{"name": "weigh"}]',
            "documents": '[{"text": "wide"}]',
            "chat_template_kwargs": '{"note": "brief"}',
        },
        {"chat_template_kwargs": {"other": 1}},
        {"chat_template_kwargs": {"tokenize": False}},
        {"documents": "a column of another use"},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"messages": turns, **row}) + "\n" for row in given))
    assert run(asking, source, tmp_path / "out.jsonl")[0] == 0
    rows = read(tmp_path / "out.jsonl")
    plain = rows[0]["prompt_tokens"]
    assert [row["prompt_tokens"] and row["prompt_tokens"] - plain for row in rows] == [0, 5, 4, 5, 14, None, None, 0]
    assert "no argument 'other'" in rows[5]["error"] and "no argument of a template" in rows[6]["error"]
    names = ("tools", "documents", "chat_template_kwargs")
    packed = [
        {"messages": turns, **{name: json.dumps(row[name]) if name in row else None for name in names}}
        for row in given[:4]
    ]
    pq.write_table(pa.Table.from_pylist(packed), tmp_path / "in.parquet")
    assert run(asking, tmp_path / "in.parquet", tmp_path / "two.jsonl")[0] == 0
    assert [row["answer"] for row in read(tmp_path / "two.jsonl")] == [row["answer"] for row in rows[:4]]


@pytest.mark.slow
def test_turns_that_csv_holds_as_json_are_turns(project, tmp_path):
    """They were continued as a text, brackets and all."""
    turns = json.dumps([{"role": "user", "content": "Hi"}])
    held = [turns, "no turns", turns[:-1]]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"messages": value}) + "\n" for value in held))
    assert run(project, tmp_path / "in.jsonl", tmp_path / "out.jsonl")[0] == 0
    asked, text, broken = read(tmp_path / "out.jsonl")
    assert asked["prompt_tokens"] == 3 + len("Hi") and asked["messages"] == turns and asked["error"] is None
    assert text["prompt_tokens"] == len("no turns") and "column 'messages': not JSON" in broken["error"]


@pytest.mark.slow
def test_parquet_keeps_the_types_of_its_columns(project, tmp_path):
    columns = {
        "text": pa.array([f"text {number}" for number in range(9)] + [None]),
        "when": pa.array([1_700_000_000_000_000_001] * 10, pa.timestamp("ns", "UTC")),
        "raw": pa.array([b"\xff"] * 10),
        "answer": pa.array([1.5] * 10, pa.float16()),
    }
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table(columns), source, row_group_size=3)
    assert run(project, source, tmp_path / "out.parquet", "--limit", "10", "--shard_rows", "4")[0] == 0
    table = pq.read_table(tmp_path / "out.parquet")
    kept = table.select(["text", "when", "raw", "input_answer"])
    assert kept.equals(pa.table(columns).rename_columns(["text", "when", "raw", "input_answer"]))
    assert table.column("answer").type == pa.string() and table.column("new_tokens").type == pa.int64()
    assert "no usable text" in table.column("error")[9].as_py() and table.column("error").null_count == 9
    assert run(project, source, tmp_path / "out.jsonl", "--limit", "4")[0] == 0
    rows = read(tmp_path / "out.jsonl")
    assert [row["answer"] for row in rows] == table.column("answer").to_pylist()[:4] and rows[0]["raw"] == "ff"


@pytest.mark.slow
@pytest.mark.parametrize("lines", [9, 3000], ids=["fewer", "more"])
def test_an_input_that_is_written_to_meanwhile_ends_the_job(project, tmp_path, lines):
    """With fewer rows it was a traceback once all of them were computed; nothing that was read of another file is sealed."""
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    parts, before = tmp_path / "out.jsonl.parts", "".join(f"line {number}\n" for number in range(2000))
    source.write_text(before)
    flags = ("--shard_rows", "2", "--max_new_tokens", "2")
    with start(project, source, output, *flags) as process:
        while not list(parts.glob("part-*")):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        sealed = len(list(parts.glob("part-*")))
        source.write_text("".join(f"other {number}\n" for number in range(lines)))
        process.send_signal(signal.SIGCONT)
        said = process.communicate(timeout=300)[1]
    assert process.returncode == 1 and "was written to meanwhile: run again" in said and "Traceback" not in said
    assert (
        not output.exists() and len(list(parts.glob("part-*"))) <= sealed + 1
    )  # one was between its look and its name
    code, said = run(project, source, output, *flags)
    assert code == 1 and f"input.rows was 2000, now {lines}" in said


@pytest.mark.slow
def test_a_job_is_resumed_only_with_what_it_was_begun_with(project, tmp_path):
    source, output = tmp_path / "in.txt.gz", tmp_path / "out.jsonl"
    source.write_bytes(gzip.compress("".join(f"line {number}\n" for number in range(60)).encode()))
    parts = tmp_path / "out.jsonl.parts"
    with start(project, source, output, "--shard_rows", "4", "--max_new_tokens", "64") as process:
        while not list(parts.glob("part-*")):
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        other = run(project, source, output, "--shard_rows", "4")
        assert other[0] == 1 and "another process is at work there" in other[1]
        for signum in (signal.SIGTERM, signal.SIGCONT):
            process.send_signal(signum)
        said = process.communicate()[1]
    assert (
        process.returncode == 143 and "stopped by SIGTERM" in said and "Traceback" not in said and not output.exists()
    )
    code, said = run(project, source, output, "--shard_rows", "4", "--temperature", "0.5")
    assert code == 1 and "settings.temperature was 0.0, now 0.5" in said and "max_new_tokens was 64, now 8" in said
    whole = source.read_bytes()
    source.write_bytes(gzip.compress(b"another line\n"))
    code, said = run(project, source, output, "--shard_rows", "4", "--max_new_tokens", "64")
    assert code == 1 and "input.rows was 60, now 1" in said and f"remove {parts.name} to begin anew" in said
    source.write_bytes(whole)
    damaged = min(parts.glob("part-*"))
    damaged.write_bytes(damaged.read_bytes().replace(b"answer", b"answex", 1))
    code, said = run(project, source, output, "--shard_rows", "4", "--max_new_tokens", "64")
    assert code == 0 and "is not what was written: computed again" in said and not parts.exists()
    assert [row["text"] for row in read(output)] == [f"line {number}" for number in range(60)]
    assert run(project, source, output, "--shard_rows", "4", "--max_new_tokens", "64") == (
        0,
        f"{output} is complete already\n",
    )
    code, said = run(project, source, output)
    assert code == 1 and "is there already, and not of this job" in said and not parts.exists()
    report, whole = tmp_path / "out.jsonl.report.json", output.read_bytes()
    parts.mkdir()  # as a kill leaves it between the moves of the output and of the report
    (parts / "job.json").write_text(json.dumps(json.loads(report.read_text())["job"]))
    report.rename(parts / "report.json")
    code, said = run(project, source, output, "--shard_rows", "4", "--max_new_tokens", "64")
    assert (code, said) == (0, f"{output} is complete already\n")
    assert report.exists() and not parts.exists() and output.read_bytes() == whole


@pytest.mark.slow
def test_what_cannot_be_the_output_or_the_input_is_refused_in_words(project, tmp_path):
    source, link = tmp_path / "in.jsonl", tmp_path / "link.jsonl"
    source.write_text('{"prompt": "a", "text": "b"}\n')
    link.symlink_to(source)
    circle = tmp_path / "circle.jsonl"
    circle.symlink_to(circle)
    (tmp_path / "there.jsonl").write_text("mine\n")
    (tmp_path / "held.jsonl.parts").mkdir()
    (tmp_path / "held.jsonl.parts" / "mine").touch()
    fifo = tmp_path / "pipe.jsonl"
    os.mkfifo(fifo)
    refused = {
        (source, source): "is the input",
        (source, link): "is the input",
        (source, circle): "circle.jsonl",
        (source, tmp_path / "x.csv"): "ends in .jsonl or .parquet",
        (source, tmp_path / "there.jsonl"): "is there already: move it away",
        (source, tmp_path / "held.jsonl"): "holds something else than parts of held.jsonl",
        (source, Path("/proc/x/y.jsonl")): "/proc/x",
        (tmp_path / "none.jsonl", tmp_path / "o.jsonl"): "No such file",
        (tmp_path, tmp_path / "o.jsonl"): "is a folder",
        (circle, tmp_path / "o.jsonl"): "symbolic links",
        (fifo, tmp_path / "o.jsonl"): "can be read only once",  # and not waited for
        (source, tmp_path / "two.jsonl"): "prompt and text among prompt, text: --column says which",
    }
    for (given, output), words in refused.items():
        code, said = run(project, given, output)
        assert code in (1, 2) and words in said, said
        assert code == 2 or len(said.strip().splitlines()) <= 2, said
    for flag in ("--temperature=-1", "--temperature=nan", "--top_p=7", "--max_new_tokens=0"):
        code, said = run(project, source, tmp_path / "o.jsonl", "--column", "prompt", flag)
        assert code == 2 and "is not between" in said, said
    assert (tmp_path / "there.jsonl").read_text() == "mine\n" and (tmp_path / "held.jsonl.parts" / "mine").exists()


@pytest.mark.slow
def test_killed_twenty_times_the_output_is_that_of_one_run(tmp_path):
    model = find_smollm2()
    if model is None:
        pytest.skip("SmolLM2 is not here: `make demo` converts it")
    project = make_serving_project(tmp_path / "p", model, BATCH | ANSWERS, threads=1, max_new_tokens=3)
    source = tmp_path / "in.jsonl"
    texts = [f"{number} people {'and a child ' * (number % 5)}said" for number in range(40)]
    source.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)))
    killed = compare_killed_job(sys.executable, project, source, tmp_path, ["--shard_rows", "4"])
    assert [row["id"] for row in read(killed)] == list(range(40)) and all(row["answer"] for row in read(killed))


@pytest.mark.slow
def test_a_row_of_a_hundred_megabytes_is_one_row(project, tmp_path):
    source = tmp_path / "in.jsonl"
    long = "a river " * (100 * 2**20 // 8)
    with source.open("w") as stream:
        for number, text in enumerate(("a short one", long, "another")):
            stream.write(json.dumps({"id": number, "prompt": text}) + "\n")
    code, said = run(project, source, tmp_path / "out.jsonl", "--shard_rows", "2")
    rows = read(tmp_path / "out.jsonl")
    assert code == 0 and "3 rows, 1 of them with an error" in said
    assert [row["id"] for row in rows] == [0, 1, 2] and rows[1]["prompt"] == long
    assert "max_context is 256" in rows[1]["error"] and rows[0]["answer"] and rows[2]["answer"]


@pytest.mark.slow
def test_nested_columns_of_parquet_come_back_as_they_were(project, tmp_path):
    turns = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    columns = {
        "messages": pa.array([[{"role": "user", "content": f"text {number}"}] for number in range(7)] + [None], turns),
        "tags": pa.array([[["a", None], []]] * 8, pa.list_(pa.list_(pa.string()))),
        "by": pa.array([[("x", 1)]] * 8, pa.map_(pa.string(), pa.int32())),
        "about": pa.array([{"at": {"place": "sea", "dates": [1, 2]}}] * 7 + [None]),
    }
    source = tmp_path / "in.parquet"
    pq.write_table(pa.table(columns), source, row_group_size=3)
    flags = ["--column", "messages", "--shard_rows", "3"]
    assert run(project, source, tmp_path / "out.parquet", *flags)[0] == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.select(list(columns)).equals(pa.table(columns))
    assert table.column("error").null_count == 7 and all(table.column("answer").to_pylist()[:7])
    assert run(project, source, tmp_path / "out.jsonl", *flags)[0] == 0
    rows = read(tmp_path / "out.jsonl")
    assert [row["answer"] for row in rows] == table.column("answer").to_pylist()
    assert rows[0]["about"] == {"at": {"place": "sea", "dates": [1, 2]}}


def test_an_engine_that_fails_is_a_line(load):
    """OpenVINO's process, killed for want of memory, ended the batch in a traceback."""
    needed = (
        "open_data",
        "fields",
        "seals",
        "sources",
        "stop_tokens",
        "template_limits",
        "config_file",
        "quiet_imports",
    )
    for leaf in (*needed, "serving/batch_input", "serving/sampling", "serving/weights_identity"):
        load(leaf, leaf.rpartition("/")[2])
    leaf = load("serving/batch_work/answers", "batch_work")

    def fail(prompts, samplings):
        raise RuntimeError("error: DeviceLost: the engine's process has ended (-9)")

    work = leaf.Work.__new__(leaf.Work)
    work.batch, work.engine = 2, SimpleNamespace(generate=fail)
    work.prepare = lambda place, row: leaf.Task(place, [1], leaf.Sampling(1))
    with pytest.raises(
        SystemExit, match=r"the engine failed \(error: DeviceLost: .*\): shards .* kept, run again to go on"
    ):
        list(work.compute([leaf.Row(0)]))
