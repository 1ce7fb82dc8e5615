"""batch.py over sounds and images: what the model alone says of each, wherever it stands in a batch."""

from __future__ import annotations

import io
import json
import math
import struct
import subprocess
import sys
import wave
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batch_kills import compare_killed_job
from PIL import Image
from serving_projects import BATCH, IMAGES, TRANSCRIPTS, make_row_project, make_tiny_vit, make_tiny_whisper


def compute(project: Path, source: Path, output: Path, *flags: str) -> str:
    command = [sys.executable, "batch.py", "--input", source, "--output", output, *flags]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def draw(shade: int) -> bytes:
    content = io.BytesIO()
    image = Image.new("RGB", (20, 14), (shade, 255 - shade, 40))
    image.paste((255, 255, 255), (2, 3, 8 + shade % 9, 9))
    image.save(content, "PNG")
    return content.getvalue()


def draw_of_no_format() -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (20, 14)).save(content, "DDS")
    return content.getvalue()[:80] + bytes(4) + content.getvalue()[84:]


def make_wave(hertz: float, seconds: float, rate: int = 16000) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        values = (round(9000 * math.sin(2 * math.pi * hertz * at / rate)) for at in range(int(seconds * rate)))
        file.writeframes(b"".join(struct.pack("<h", value) for value in values))
    return content.getvalue()


def load_media(load):
    for leaf in ("fields", "open_data", "sources"):
        load(leaf)
    for kind in ("jsonl", "csv", "txt"):
        load(f"rows/{kind}", f"rows_{kind}")
    for leaf in ("batch_input", "weights_identity"):
        load(f"serving/{leaf}", leaf)
    return load("serving/media")


def test_what_is_no_image_says_so_in_the_same_words_each_time(load, tmp_path):
    media = load_media(load)
    (tmp_path / "a.png").write_bytes(draw(3))
    for value in ("a.png", str(tmp_path / "a.png"), draw(3), {"bytes": draw(3), "path": "x"}, {"path": "a.png"}):
        image = media.decode_image(media.read_media({"image": value}, "image", tmp_path))
        assert (image.size, image.mode) == ((20, 14), "RGB")
    for value, words in (
        ("b.png", "is no file"),
        (".", "is no file"),
        ("a\0", "is no file"),
        (None, "no path and no bytes"),
        (5, "no path and no bytes"),
        ({"bytes": None, "path": None}, "no path and no bytes"),
        (b"text", "no image of a format"),
        (draw(3)[:-30], "no image that can be read"),
        (draw_of_no_format(), "no image that can be read: Unknown pixel format"),  # ended the job at every start
    ):
        said = set()
        for _ in range(2):
            with pytest.raises(ValueError, match=words) as error:
                media.decode_image(media.read_media({"image": value}, "image", tmp_path))
            said.add(str(error.value))
        assert len(said) == 1


def test_a_sound_whose_header_speaks_of_more_than_memory_holds_is_none(load):
    soundfile = pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    import numpy as np

    media, content = load_media(load), io.BytesIO()
    soundfile.write(content, np.zeros(4000, "float32"), 16000, format="FLAC")
    assert len(media.decode_sound(content.getvalue(), 16000)) == 4000
    header = bytearray(content.getvalue())
    header[21:26] = bytes([header[21] | 15]) + b"\xff" * 4  # STREAMINFO's 36 bits of samples
    with pytest.raises(ValueError, match="no sound that can be held"):
        media.decode_sound(bytes(header), 16000)


@pytest.mark.slow
def test_images_get_the_labels_that_the_model_alone_gives(tmp_path):
    import torch
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    model_folder = make_tiny_vit(tmp_path / "m")
    project = make_row_project(tmp_path / "p", model_folder, BATCH | IMAGES, "AutoModelForImageClassification", 2)
    folder = tmp_path / "in"
    folder.mkdir()
    contents = [draw(shade) for shade in (0, 90, 200)]
    for number, content in enumerate(contents):
        (folder / f"{number}.png").write_bytes(content)
    (folder / "no.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    (folder / "cut.png").write_bytes(contents[0][:-30])
    names = ["0.png", "no.png", "1.png", str(folder / "2.png"), "absent.png", "cut.png", "", "0.png"]
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"image": name, "id": at}) + "\n" for at, name in enumerate(names)))
    said = compute(project, source, tmp_path / "out.jsonl", "--shard_rows", "3", "--top", "2")
    assert "8 rows, 4 of them with an error" in said
    rows = read(tmp_path / "out.jsonl")
    assert [row["id"] for row in rows] == list(range(8))
    assert [row["error"] is None for row in rows] == [True, False, True, True, False, False, False, True]
    processor = AutoImageProcessor.from_pretrained(model_folder, backend="pil")
    model = AutoModelForImageClassification.from_pretrained(model_folder).eval()
    for row, content in zip((rows[0], rows[2], rows[3], rows[7]), (*contents, contents[0]), strict=True):
        inputs = processor(images=Image.open(io.BytesIO(content)), return_tensors="pt")
        with torch.inference_mode():
            shares = model(**inputs).logits[0].softmax(-1)
        best = int(shares.argmax())
        assert row["label"] == model.config.id2label[best]
        assert row["probability"] == pytest.approx(float(shares[best]), abs=1e-5)
        assert len(row["probabilities"]) == 2 and row["label"] in row["probabilities"]
    # the bytes themselves, as the datasets library keeps images
    table = pa.table({"image": [{"bytes": content, "path": None} for content in contents]})
    pq.write_table(table, tmp_path / "in.parquet")
    compute(project, tmp_path / "in.parquet", tmp_path / "out.parquet")
    labels = pq.read_table(tmp_path / "out.parquet").column("label").to_pylist()
    assert labels == [rows[0]["label"], rows[2]["label"], rows[3]["label"]]


@pytest.mark.slow
@pytest.mark.core
def test_sounds_are_written_down_as_the_model_alone_hears_them(tmp_path):
    pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    import numpy as np
    from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

    model_folder = make_tiny_whisper(tmp_path / "m")
    project = make_row_project(tmp_path / "p", model_folder, BATCH | TRANSCRIPTS, "AutoModelForSpeechSeq2Seq", 2)
    folder = tmp_path / "in"
    folder.mkdir()
    sounds = {"a.wav": (300, 0.5), "b.wav": (900, 1.0), "c.wav": (120, 0.3), "long.wav": (500, 2.6)}
    for name, (hertz, seconds) in sounds.items():
        (folder / name).write_bytes(make_wave(hertz, seconds))
    (folder / "fast.wav").write_bytes(make_wave(300, 0.5, rate=44100))
    (folder / "no.wav").write_bytes(b"RIFFno")
    names = ["a.wav", "long.wav", "no.wav", "b.wav", "c.wav", "fast.wav", "a.wav"]
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"path": name}) + "\n" for name in names))
    said = compute(project, source, tmp_path / "out.jsonl", "--shard_rows", "4")
    assert "7 rows, 1 of them with an error" in said
    rows = read(tmp_path / "out.jsonl")
    assert [row["path"] for row in rows] == names
    assert "no sound that can be read" in rows[2]["error"]
    assert [row["seconds"] for row in rows if not row["error"]] == pytest.approx([0.5, 2.6, 1.0, 0.3, 0.5, 0.5])
    assert rows[0]["text"] == rows[6]["text"]
    processor = AutoProcessor.from_pretrained(model_folder)
    model = AutoModelForSpeechSeq2Seq.from_pretrained(model_folder).eval()
    for place in (0, 3, 4):
        with wave.open(str(folder / names[place])) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        inputs = processor.feature_extractor(samples, sampling_rate=16000, return_tensors="pt")
        alone = processor.batch_decode(model.generate(**inputs), skip_special_tokens=True)[0]
        assert rows[place]["text"] == alone.strip() and rows[place]["new_tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["images", "sounds"])
def test_killed_twenty_times_each_is_there_once(tmp_path, kind):
    if kind == "images":
        project = make_row_project(
            tmp_path / "p", make_tiny_vit(tmp_path / "m"), BATCH | IMAGES, "AutoModelForImageClassification", 2
        )
        contents = [draw(shade) for shade in range(0, 240, 10)]
    else:
        pytest.importorskip("soundfile")
        pytest.importorskip("soxr")
        project = make_row_project(
            tmp_path / "p", make_tiny_whisper(tmp_path / "m"), BATCH | TRANSCRIPTS, "AutoModelForSpeechSeq2Seq", 2
        )
        contents = [make_wave(100 + 30 * number, 0.2 + 0.02 * number) for number in range(24)]
    suffix, column = (".png", "image") if kind == "images" else (".wav", "path")
    for number, content in enumerate(contents):
        (tmp_path / f"{number}{suffix}").write_bytes(content)
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({column: f"{n}{suffix}", "id": n}) + "\n" for n in range(len(contents))))
    killed = compare_killed_job(sys.executable, project, source, tmp_path, ["--shard_rows", "3"])
    rows = read(killed)
    assert [row["id"] for row in rows] == list(range(24)) and not any(row["error"] for row in rows)


@pytest.mark.parametrize(
    "samples, rate, kind, problem",
    [
        ([], 16000, "PCM_16", "no samples"),
        ([0.1], 44100, "PCM_16", "no samples"),
        ([0.1, 0.2], 192000, "PCM_16", "no samples"),
        ([0.1, math.nan] * 200, 16000, "FLOAT", "no numbers"),
        ([0.1, math.inf] * 200, 44100, "FLOAT", "no numbers"),
        ([0.1] * 200, 1, "PCM_16", "1 samples per second"),
        ([0.1] * 200, 8000, "PCM_U8", None),
        ([[0.1, 0.3]] * 882, 44100, "PCM_24", None),
    ],
)
def test_a_sound_is_numbers_at_a_rate_that_sounds_have(load, samples, rate, kind, problem):
    np, soundfile = pytest.importorskip("numpy"), pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    content = io.BytesIO()
    soundfile.write(content, np.array(samples, np.float32), rate, subtype=kind, format="WAV")
    media = load_media(load)
    if problem:
        with pytest.raises(ValueError, match=problem):
            media.decode_sound(content.getvalue(), 16000)
    else:
        decoded = media.decode_sound(content.getvalue(), 16000)
        assert decoded.dtype == np.float32 and len(decoded) == pytest.approx(len(samples) * 16000 / rate, abs=1)


@pytest.mark.slow
def test_a_language_that_the_model_does_not_know_is_a_line(tmp_path):
    pytest.importorskip("soundfile")
    pytest.importorskip("soxr")
    model = make_tiny_whisper(tmp_path / "m")
    project = make_row_project(tmp_path / "p", model, BATCH | TRANSCRIPTS, "AutoModelForSpeechSeq2Seq", 2)
    (tmp_path / "a.wav").write_bytes(make_wave(300, 0.5))
    (tmp_path / "in.jsonl").write_text('{"path": "a.wav"}\n')
    command = [sys.executable, "batch.py", "--input", "../in.jsonl", "--output", "../out.jsonl", "--language", "xx"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1 and "--language xx: " in done.stderr and "Traceback" not in done.stderr
