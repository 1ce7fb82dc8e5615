"""Rows and tokens that are prepared in several processes: in order, complete, once."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from leaves import FRAGMENTS
from projects import render_small_project
from test_data_formats import load_data, make_tokenizer  # noqa: F401 (a fixture)

SCHEMA = pa.schema({"n": pa.int32()})


@pytest.fixture
def parts(load, tmp_path, monkeypatch):
    """The leaf, with a cache of its own, three cores, and tiny parts."""
    leaf = load("parts")
    monkeypatch.setattr(leaf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(leaf, "count_cores", lambda: 3)
    return leaf


def work(part: list[int], began: Path):
    """Two batches of a part, and a file that says which process began it."""
    (began / f"{part[0]}-{os.getpid()}").touch()
    for half in (part[: len(part) // 2], part[len(part) // 2 :]):
        yield pa.record_batch([pa.array(half, pa.int32())], SCHEMA)
    return part[0] % 2


def test_parts_come_in_order_from_several_processes_and_are_made_once(parts, tmp_path):
    numbers = [list(range(start, start + 5)) for start in range(0, 50, 5)]
    prepare = partial(parts.prepare_parts, numbers, [5] * 10, partial(work, began=tmp_path), SCHEMA, "key", "Reading")
    files, left_out = prepare()
    assert parts.load_parts(files)["n"][:] == list(range(50)) and left_out == 5
    began = {path.name for path in tmp_path.glob("*-*")}
    assert len(began) == 10 and str(os.getpid()) not in {name.split("-")[1] for name in began}
    files[3].unlink()
    assert prepare() == (files, 5)  # of the part that is made now, and of those that were kept
    assert prepare() == (files, 5)
    assert len(list(tmp_path.glob("*-*"))) == 11 and not list((tmp_path / "cache").rglob("*.tmp"))


@pytest.mark.parametrize("left", [0.0, 0.5, 0.99])
def test_a_part_that_is_not_whole_is_made_again(parts, tmp_path, left):
    """As a power cut leaves it: cut between two batches it was read as fewer rows."""
    numbers = [list(range(start, start + 5)) for start in range(0, 20, 5)]
    prepare = partial(parts.prepare_parts, numbers, [5] * 4, partial(work, began=tmp_path), SCHEMA, "key", "Reading")
    files, _ = prepare()
    whole = files[2].read_bytes()
    for damaged in (whole[: int(left * len(whole))], whole[: -len(parts.END)], bytes(len(whole))):
        files[2].write_bytes(damaged)
        assert prepare() == (files, 2)
        assert parts.load_parts(files)["n"][:] == list(range(20)) and files[2].read_bytes() == whole


def test_one_row_of_many_is_another_hash(parts, tmp_path):
    """Of what was read: other batches of one part, a selection or another order of its rows change nothing."""

    def hash_rows(key: str, changed: dict | None = None):
        rows = [{"text": f"row {number}"} for number in range(1000)]
        for number, row in (changed or {}).items():
            rows[number] = row
        schema = pa.schema({"text": pa.string()})

        def read(numbers: range):
            yield pa.RecordBatch.from_pylist([rows[number] for number in numbers], schema)

        spans = [range(start, start + 100) for start in range(0, 1000, 100)]
        files, _ = parts.prepare_parts(spans, [100] * 10, read, schema, key, "Reading")
        return parts.load_parts(files)

    read = hash_rows("first")
    whole = parts.hash_every_row(read)
    assert parts.hash_every_row(hash_rows("again")) == whole
    assert parts.hash_every_row(read.shuffle(seed=1)) == parts.hash_every_row(read.select([5, 1])) == whole
    changed = {parts.hash_every_row(hash_rows(f"{n}", {n: {"text": text}})) for n, text in ((7, "row 8"), (999, None))}
    assert len({whole, *changed}) == 3
    name = next((tmp_path / "cache/prepared/first").glob("*.sha256"))
    name.unlink()  # as a version that wrote none would leave it
    assert parts.hash_every_row(hash_rows("first")) == whole and name.exists()


def test_a_column_that_no_row_has_changes_no_hash(parts):
    """Rows are columns, lists and structs; a later version may have more of them."""

    def hash_column(rows: list, kind: pa.DataType) -> str:
        value = hashlib.sha256()
        parts.add_to_hash(value, pa.array(rows, kind))
        return value.hexdigest()

    turn = {"role": pa.string(), "content": pa.string()}
    before, after = (pa.list_(pa.struct(list(t.items()))) for t in (turn, turn | {"further": pa.string()}))
    rows = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], [], [{"role": "c"}]]
    assert hash_column([None, None], pa.string()) == hash_column([], before) == hashlib.sha256().hexdigest()
    assert hash_column(rows, before) == hash_column(rows, after)
    other = json.loads(json.dumps(rows))
    other[0][1]["content"] = "c"
    longer = [[*rows[0], rows[2][0]], [], []]
    further = [[{**rows[0][0], "further": "x"}, rows[0][1]], *rows[1:]]
    hashes = {
        hash_column(many, kind) for many, kind in ((rows, after), (other, after), (longer, after), (further, after))
    }
    assert len(hashes) == 4


def test_the_first_part_that_fails_gives_the_reason_and_the_others_are_kept(parts):
    def fail(part):
        if part in (4, 6):
            time.sleep(0.3 if part == 4 else 0)
            sys.exit(f"row {part} is bad")
        yield pa.record_batch([pa.array([part], pa.int32())], SCHEMA)

    with pytest.raises(SystemExit, match=r"^row 4 is bad$"):
        parts.prepare_parts(range(9), [1] * 9, fail, SCHEMA, "key", "Reading")
    kept = sorted(
        int(file.name[:5]) for file in (Path(parts.config.HF_DATASETS_CACHE) / "prepared/key").glob("*.arrow")
    )
    assert kept[:4] == [0, 1, 2, 3] and not {4, 6} & set(kept)


def test_a_process_that_is_killed_ends_the_run_and_says_so(parts):
    def end(part):
        if part == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield pa.record_batch([pa.array([part], pa.int32())], SCHEMA)

    with pytest.raises(SystemExit, match=r"Reading: a process ended with -9 \(out of memory\?\)\. Parts .* are kept"):
        parts.prepare_parts(range(5), [1] * 5, end, SCHEMA, "key", "Reading")


KILLED = """
import sys, time
import pyarrow as pa
sys.path.insert(0, sys.argv[1])
import parts
parts.count_cores = lambda: 3
schema = pa.schema({"n": pa.int32()})
def work(part):
    yield pa.record_batch([pa.array([part], pa.int32())], schema)
    time.sleep(float(sys.argv[2]))
    sys.stdout.write(f"{part}\\n")  # in one piece, whatever Python buffers
    yield pa.record_batch([pa.array([part], pa.int32())], schema)
files, _ = parts.prepare_parts(range(12), [1] * 12, work, schema, "key", "Reading")
print(parts.load_parts(files)["n"][:])
"""


def test_a_run_that_is_killed_keeps_what_is_done_and_leaves_no_process(tmp_path):
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-c", KILLED, str(FRAGMENTS)]
    folder = tmp_path / "prepared" / "key"
    with subprocess.Popen([*command, "0.4"], env=environment, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout
        while not list(folder.glob("*.arrow")):
            time.sleep(0.02)
        killed.kill()
        killed.stdout.read()  # until the last of its processes has ended
    done = {int(file.name[:5]) for file in folder.glob("*.arrow")}
    assert done and len(done) < 12
    again = subprocess.run([*command, "0"], env=environment, capture_output=True, text=True, check=True)
    *made, rows = again.stdout.splitlines()
    assert {int(number) for number in made} == set(range(12)) - done
    assert json.loads(rows) == [number for number in range(12) for _ in range(2)]


def test_a_kill_ends_the_processes_in_the_middle_of_their_parts(tmp_path):
    environment = os.environ | {"HF_DATASETS_CACHE": str(tmp_path), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-c", KILLED, str(FRAGMENTS), "60"]
    folder = tmp_path / "prepared" / "key"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout
        while len(list(folder.glob("*.tmp"))) < 3:
            time.sleep(0.02)
        killed.kill()
        since = time.monotonic()
        killed.stdout.read()  # until the last of its processes has ended
    assert time.monotonic() - since < 20


def test_what_killed_processes_have_left_is_removed(parts):
    folder = Path(parts.config.HF_DATASETS_CACHE) / "prepared" / "key"
    folder.mkdir(parents=True)
    old, new = folder / "00000-of-00003.a.tmp", folder / "00001-of-00003.b.tmp"
    (folder / "gone.tmp").symlink_to("nowhere")  # as one that is renamed between the listing and the look
    for draft in (old, new):
        draft.touch()
    os.utime(old, (time.time() - 2 * parts.DEAD_SECONDS,) * 2)
    make = lambda part: iter([pa.record_batch([pa.array([part], pa.int32())], SCHEMA)])  # noqa: E731
    for _ in range(2):  # also where nothing is missing
        parts.prepare_parts(range(3), [1] * 3, make, SCHEMA, "key", "Reading")
        assert [draft for draft in folder.glob("*.tmp") if draft.exists()] == [new]
        old.touch()
        os.utime(old, (time.time() - 2 * parts.DEAD_SECONDS,) * 2)


@pytest.mark.parametrize("cores", [1, 3])
def test_a_full_disk_is_said_in_one_line(parts, monkeypatch, capfd, cores):
    monkeypatch.setattr(parts, "count_cores", lambda: cores)

    def fill(part):
        yield pa.record_batch([pa.array([part], pa.int32())], SCHEMA)
        if part == 2:
            raise OSError(28, "No space left on device")

    with pytest.raises(SystemExit, match=r"No space left on device\. Prepared data are kept in .*HF_HOME"):
        parts.prepare_parts(range(5), [1] * 5, fill, SCHEMA, "key", "Reading")
    assert "Traceback" not in capfd.readouterr().err


def test_of_a_long_line_a_span_reads_no_more_than_it_holds(load, tmp_path, monkeypatch):
    leaf = load("open_data")
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"x" * (48 << 20))  # and no end of the line
    read = 0

    class Counted(io.BufferedReader):
        def readline(self, size=-1):
            nonlocal read
            line = super().readline(size)
            read += len(line)
            return line

    monkeypatch.setattr(leaf, "open_data", lambda file: Counted(io.FileIO(file)))
    spans = [span for span, _ in leaf.list_spans(file)]
    lines = [[len(line) for line in leaf.read_lines(file, span)] for span in spans]
    assert lines == [[48 << 20], [], [], [], [], []]
    assert read <= 2 * file.stat().st_size


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_spans_of_a_file_have_every_line_once(load, tmp_path, monkeypatch, ending):
    import gzip

    leaf = load("open_data")
    monkeypatch.setattr(leaf, "SPAN_BYTES", 7)
    draw = random.Random(0)
    for _ in range(50):
        lines = [b"x" * draw.randrange(12) + draw.choice([b"\n", b"\r\n"]) for _ in range(draw.randrange(9))]
        lines += [b"last"] * draw.randrange(2)
        (tmp_path / f"a{ending}").write_bytes((gzip.compress if ending.endswith("gz") else bytes)(b"".join(lines)))
        spans = [span for span, _ in leaf.list_spans(tmp_path / f"a{ending}")]
        read = [list(leaf.read_lines(tmp_path / f"a{ending}", span)) for span in spans]
        assert [line for part in read for line in part] == lines
        before = [leaf.count_lines(tmp_path / f"a{ending}", start) for start, _ in spans]
        assert before == [sum(map(len, read[:number])) for number in range(len(read))]


def test_pieces_are_grouped_and_none_is_lost(parts):
    for sizes in ([], [1] * 1000, [3 << 20] * 700, [1 << 30, 1, 1]):
        groups, filled = parts.group_pieces(range(len(sizes)), sizes)
        assert [piece for group in groups for piece in group] == list(range(len(sizes)))
        assert sum(filled) == sum(sizes) and 1 <= len(groups) <= parts.MOST_PARTS + 1


@pytest.mark.parametrize("ending", ["txt", "jsonl"])
def test_the_stream_of_tokens_is_that_of_one_process(tmp_path, load_data, monkeypatch, ending):  # noqa: F811
    import yaml
    from transformers import AutoTokenizer

    draw = random.Random(0)
    words = ["Paris", "is", "the", "capital", "of", "France", "été", "🙂", "  ", "What"]
    texts = ["so " + " ".join(draw.choices(words, k=draw.randrange(1, 30))) for _ in range(2500)]
    lines = [text + "\n" if ending == "txt" else json.dumps({"text": text}) + "\n" for text in texts]
    project = render_small_project(tmp_path, "".join(lines), f"d.{ending}", seq_len=16)
    data, config = load_data(project), yaml.safe_load((project / "config.yaml").read_text())
    monkeypatch.setattr(sys.modules["parts"].config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(sys.modules["parts"], "count_cores", lambda: 3)
    monkeypatch.setattr(sys.modules["parts"], "PART_BYTES", 20_000)
    monkeypatch.setattr(sys.modules["open_data"], "SPAN_BYTES", 15_000)
    make_tokenizer(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    read = data.load_texts(config)
    assert read["text"][:] == (lines if ending == "txt" else texts)
    read = read if ending == "txt" else read.shuffle(seed=42)
    blocks = data.cut_blocks(read, tokenizer, 16)
    joined = ["".join(lines[start : start + 1000]) for start in range(0, 2500, 1000)]
    sources = joined if ending == "txt" else [texts[index] for index in read._indices.column(0).to_pylist()]
    end = [] if ending == "txt" else [tokenizer.eos_token_id]
    stream = [token for text in sources for token in [*tokenizer.encode(text, add_special_tokens=False), *end]]
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) > 4
    assert [token for block in blocks for token in block["input_ids"]] == stream[: len(stream) // 16 * 16]
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}
    assert list(data.cut_blocks(read, AutoTokenizer.from_pretrained(tmp_path / "tokenizer"), 16)) == list(blocks)
    assert written == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.arrow")}
    monkeypatch.setattr(data, "CHARACTERS", 300)
    groups = list(data.group_texts(read, range(len(read))))
    assert [text for group in groups for text in group] == read["text"][:]
    assert len(groups) > 500 and all(len(group) == 1 or sum(map(len, group)) <= 300 for group in groups)
    if ending == "jsonl":
        with (tmp_path / "d.jsonl").open("a") as file:
            file.write('{"text": 5}\n')
        with pytest.raises(SystemExit, match=r"d\.jsonl, row 2501: no usable text"):
            data.load_texts(config)


@pytest.mark.parametrize("change", ["longer", "replaced", "gone"])
def test_a_file_that_is_written_to_while_it_is_read_ends_the_run(tmp_path, load_data, monkeypatch, change):  # noqa: F811
    """Its rows were trained on, and kept as those of the file that was there before."""
    import yaml

    project = render_small_project(tmp_path, '{"text": "Paris is the capital"}\n' * 90, "d.jsonl", seq_len=16)
    data, config = load_data(project), yaml.safe_load((project / "config.yaml").read_text())
    monkeypatch.setattr(sys.modules["parts"].config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(sys.modules["parts"], "count_cores", lambda: 1)
    file, read_rows = tmp_path / "d.jsonl", data.read_rows

    def read_and_write(*place):
        for number, row in read_rows(*place):
            if number == 50:
                if change == "longer":
                    with file.open("a") as end:
                        end.write('{"text": "more"}\n')
                else:
                    file.rename(tmp_path / "old")
                if change == "replaced":
                    file.write_text('{"text": "Rome is the capital!"}\n' * 90)
            yield number, row

    monkeypatch.setattr(data, "read_rows", read_and_write)
    with pytest.raises(SystemExit, match=r"d\.jsonl was written to while it was read: run again"):
        data.load_texts(config)
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    monkeypatch.setattr(data, "read_rows", read_rows)
    if change != "gone":
        assert len(data.load_texts(config)) == (91 if change == "longer" else 90)


def test_token_ids_are_those_of_the_tokenizer_itself(tmp_path, load_data):  # noqa: F811
    """Whatever its file says of truncation and padding; one that has a method of its own is asked itself."""
    from transformers import AutoTokenizer, TokenizersBackend

    data = load_data(render_small_project(tmp_path, "Paris is the capital\n" * 40, "d.txt", seq_len=16))
    make_tokenizer(tmp_path / "tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    texts = ["Paris is the capital of France. " * 9, "", "été 🙂 </s> <s>"]
    expected = tokenizer(texts, add_special_tokens=False)["input_ids"]
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=64)
    assert data.encode_texts(tokenizer, texts) == expected and len(expected[0]) > 64

    class Reversing(TokenizersBackend):
        def _encode_plus(self, text, **more):
            return super()._encode_plus([one[::-1] for one in text], **more)

    tokenizer.__class__ = Reversing
    assert data.encode_texts(tokenizer, texts) == tokenizer(texts, add_special_tokens=False)["input_ids"] != expected


@pytest.mark.parametrize(
    ("begins", "bos", "text", "marked"),
    [
        (True, "<s>", "Paris is", "<s>Paris is</s>"),
        (True, "<s>", "<s>Paris is</s>", "<s>Paris is</s>"),
        (True, "</s>", "Paris is", "Paris is</s>"),
        (False, "<s>", "Paris is", "Paris is</s>"),
        (False, None, "", "</s>"),
    ],
)
def test_a_text_of_a_stream_begins_and_ends_as_the_tokenizer_says_once(tmp_path, load_data, begins, bos, text, marked):  # noqa: F811
    from tokenizers.processors import TemplateProcessing

    data = load_data(render_small_project(tmp_path, '{"text": "so"}\n' * 999, "d.jsonl", seq_len=16))
    tokenizer = make_sentencepiece_like("never")
    tokenizer.bos_token = bos
    if begins:
        mark = [(bos, tokenizer.convert_tokens_to_ids(bos))]
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=mark)
    begin = data.find_begin(tokenizer)
    tokens = data.mark_text(tokenizer.encode(text, add_special_tokens=False), begin, tokenizer.eos_token_id)
    assert tokenizer.decode(tokens) == marked


def make_sentencepiece_like(scheme: str):
    """A tokenizer that writes a mark for a space, as those of Llama 2 and Gemma do."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<s>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(["What is the capital of France? Paris is.\n\n assistant user"] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", normalized=False), AddedToken("<|im_end|>", lstrip=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("scheme", ["bytes", "always", "first", "never"])
def test_no_token_before_an_edge_writes_what_is_behind_it(load, tmp_path, scheme):
    """Those that the text up to the edge has, compared one by one, and others that stand before it whole."""
    load("fields")
    load("token_edges")
    labels = load("labels/messages", "labels")
    tokenizer = make_tokenizer(tmp_path / "t") if scheme == "bytes" else make_sentencepiece_like(scheme)
    draw = random.Random(0)
    pieces = ["<|im_start|>", "<|im_end|>", "assistant\n", "user\n", "Paris", " is", "\n", "\n\n", "  ", "é🙂", "<|im_"]
    moved = 0
    for _ in range(400):
        chosen = draw.choices(pieces, k=draw.randrange(1, 14))
        text = "".join(chosen)
        edges = sorted(draw.sample(range(len(text) + 1), 2))
        (encoding,) = labels.encode_together([text], tokenizer)
        counts = labels.locate_edges(text, encoding, edges, tokenizer)
        whole, *before = labels.encode([text, *(text[:edge] for edge in edges)], tokenizer)
        assert encoding.ids == whole
        for edge, count, prefix in zip(edges, counts, before, strict=True):
            common = labels.count_common(prefix, whole)
            assert count >= common and (count == common or text[:edge].startswith(tokenizer.decode(whole[:count])))
        moved += any(labels.count_common(p, whole) < len(p) for p in before)
    assert moved > 20  # edges within a token, where both differ from a cut of the tokens by their offsets


@pytest.mark.parametrize("rank", ["0", "1"])
def test_rows_left_out_are_said_each_time_and_once(tmp_path, load_data, monkeypatch, capsys, rank):  # noqa: F811
    import yaml

    monkeypatch.setenv("RANK", rank)
    project = render_small_project(tmp_path, '{"text": "so"}\n' * 999, "d.jsonl", seq_len=16)
    (tmp_path / "d.jsonl").write_text('{"text": "so"}\n{"text": 5}\n' * 3)
    data, config = load_data(project), yaml.safe_load((project / "config.yaml").read_text()) | {"skip_bad": True}
    monkeypatch.setattr(sys.modules["parts"].config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for _ in range(2):
        assert len(data.load_texts(config)) == 3
        assert ("skipped 3 bad rows" in capsys.readouterr().out) == (rank == "0")


def test_a_parquet_file_is_divided_by_its_row_groups(load, tmp_path):
    """Every row once, in order, under its number in the file; what is no Parquet is said where its rows are asked for."""
    import pyarrow.parquet as pq

    leaf, file = load("rows/parquet", "rows"), tmp_path / "d.parquet"
    pq.write_table(pa.table({"n": list(range(2500))}), file, row_group_size=700)
    spans = leaf.list_spans(file)
    assert len(spans) == 4 and all(size > 0 for _, size in spans)
    rows = [row for span, _ in spans for row in leaf.read_rows(file, span)]
    assert rows == list(leaf.read_rows(file)) == [(n + 1, {"n": n}) for n in range(2500)]
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), file)
    assert [row for span, _ in leaf.list_spans(file) for row in leaf.read_rows(file, span)] == []
    file.write_bytes(b"nope")
    ((span, _),) = leaf.list_spans(file)
    with pytest.raises(leaf.UNREADABLE):
        list(leaf.read_rows(file, span))
