"""Inputs of the emitted projects: a model folder without weights, data, and the project as perfgen renders it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.measurements import HUB_NAMES, config_of

ROOT = Path(__file__).resolve().parents[2]
WORDS, TOKENS = 1000, 2048


def prepare(folder: Path, hardware: str | None, tiny: bool, rows: list[dict]) -> None:
    """A folder for each project: model/ (config and tokenizer), data, and project/ as perfgen renders it.

    ``hardware`` is planned for; ``None``: the machine that is here.
    """
    for row in rows:
        inputs = folder / row["project"]
        write_model(inputs / "model", row["model"], tiny)
        words = [*row["flags"], *(["--hardware", hardware] if hardware else [])]
        if row["rows"]:
            words += ["--data", str(write_data(inputs, row))]
        source = ["--model", HUB_NAMES[row["model"]], "--config", str(inputs / "model" / "config.json")]
        command = [sys.executable, "-m", "generator.cli", "init", str(inputs / "project"), *source, *words]
        command += ["--offline", "--no-smoke", "--overwrite", "--yes", "--json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{row['project']}: {done.stderr.strip()}", flush=True)
            continue
        print(f"{row['project']}: rendered", flush=True)


def write_model(folder: Path, model: str, tiny: bool) -> None:
    """config.json of the model, and a tokenizer."""
    from transformers import AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(model, tiny), indent=2), encoding="utf-8")
    make_tokenizer().save_pretrained(folder)
    text = " ".join(words_of_language())
    ids = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False)["input_ids"]
    if not WORDS <= len(ids) <= 2 * WORDS:  # a class of its own for the model's type may read the file otherwise
        sys.exit(f"{folder}: {len(ids)} tokens for {WORDS} words")


def make_tokenizer():
    """A byte-level BPE of ``TOKENS`` that makes about one token of each word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learn = trainers.BpeTrainer(
        vocab_size=TOKENS, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(words_of_language())] * 4, learn)
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def words_of_language() -> list[str]:
    """Four letters each, so that perfgen's guess of tokens from characters is near."""
    return ["".join("aeioubcdfg"[int(digit)] for digit in f"{number:03}") + "s" for number in range(WORDS)]


def write_data(folder: Path, row: dict) -> Path:
    """Rows that are longer than a sequence, so that every one is cut and none is padded."""
    language, chance = words_of_language(), random.Random(0)
    texts = [" ".join(chance.choices(language, k=row["words"])) for _ in range(row["rows"])]
    if "sft" in row["flags"]:
        turns = [[{"role": "user", "content": t[:50]}, {"role": "assistant", "content": t[50:]}] for t in texts]
        lines = [{"messages": turn} for turn in turns]
    else:
        lines = [{"text": text} for text in texts]
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
