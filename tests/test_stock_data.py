"""Files as they come from the field, learned by a project and, from the same file, by the libraries' own loaders and trainers: equal losses.

The reference looks at nothing that the project made: it reads the file by `datasets` or pandas, and tokenizes, masks and pads by TRL or Transformers.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
from projects import render_small_project
from stock_losses import list_differences
from test_data_formats import make_tokenizer, write_rows

pytestmark = pytest.mark.slow
SECONDS, SEQ_LEN, BATCH, STEPS = 400, 64, 4, 3
SAME = {
    "learning_rate": 0.003,
    "logging_steps": 1,
    "save_strategy": "no",
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
}
SAME |= {"weight_decay": 0.1, "max_grad_norm": 1.0, "seed": 3}


def say(role: str, content: Any, **further) -> dict:
    return {"role": role, "content": content, **further}


WORDS = [
    "the capital, “Paris”",
    "it's\tfine;",
    "naïve café ☕",
    '"quoted"',
    "line\nbreak",
    "日本語",
    "a" * 40,
    " led",
    "end ",
]


def words(number: int, most: int = 4) -> str:
    """Never blank, now and then longer than the sequences are."""
    count = 30 if number % 11 == 7 else 1 + number % most
    return " ".join(WORDS[(number * 7 + place) % len(WORDS)] for place in range(count)).strip(" ") or "x"


def make_chat(number: int) -> list[dict]:
    turns = [say("user", words(number)), say("assistant", words(number + 1))]
    if number % 3 == 0:
        turns = [say("system", words(number + 5, 2)), *turns]
    if number % 4 == 1:
        turns += [say("user", words(number + 2, 2)), say("assistant", words(number + 3, 2))]
    return turns


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None]}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "ä", "parameters": {"type": "object", "properties": {}}},
    }
]
N = range(24)
CHATS = [{"messages": make_chat(n), "source": "x"} for n in N]
PAIRS = [{"prompt": f"Q{n}: {words(n, 2)}", "completion": " " + words(n + 4)} for n in N]
LABELLED = [{"text": words(n), "label": ("no", " yes", "n/a")[n % 3]} for n in N]


def write_json_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=n % 2 == 0) + "\n" for n, row in enumerate(rows)), "utf-8")


def write_marked(path: Path, rows: list[dict]) -> None:
    """As Excel writes a CSV: a byte order mark, CRLF, semicolons, quotes where they must be."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], delimiter=";", lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(b"\xef\xbb\xbf" + text.getvalue().encode())


def write_saved(path: Path, rows: list[dict]) -> None:
    from datasets import Dataset

    Dataset.from_list(rows).save_to_disk(path, num_shards=3)


def write_zipped(path: Path, rows: list[dict]) -> None:
    path.write_bytes(gzip.compress("\r\n\r\n".join(json.dumps(row) for row in rows).encode()))


def read_marked(path: Path):
    import pandas as pd
    from datasets import Dataset

    return Dataset.from_pandas(pd.read_csv(path, sep=";", keep_default_na=False))


def read_by_datasets(path: Path):
    from datasets import load_dataset, load_from_disk

    if path.is_dir():
        return load_from_disk(path)
    kind = {".jsonl": "json", ".gz": "json", ".json": "json"}.get(path.suffix, path.suffix[1:])
    return load_dataset(kind, data_files=str(path), cache_dir=str(path.parent / "cache"), split="train")


@dataclass(frozen=True, kw_only=True)
class Case:
    """``asked`` of perfgen; ``stock``: what SFTConfig is told so that it learns the same."""

    rows: list[dict]
    name: str = "d.jsonl"
    task: str = "sft"
    write: Callable[[Path, list[dict]], None] = write_json_lines
    read: Callable[[Path], Any] = read_by_datasets
    template: str | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    stock: dict[str, Any] = field(default_factory=dict)


ASSISTANT, ALL = {"assistant_only_loss": True}, {"loss_on": "all"}
CASES = {
    "chats, all of it learned": Case(rows=CHATS, asked=ALL),
    "chats of a saved data set": Case(rows=CHATS, name="saved", write=write_saved, asked=ALL),
    "chats of Parquet": Case(rows=CHATS, name="d.parquet", write=write_rows, asked=ALL),
    "chats, packed by gzip, with blank lines": Case(rows=CHATS, name="d.jsonl.gz", write=write_zipped, asked=ALL),
    **{
        f"chats, the assistant's words under {name}": Case(rows=CHATS, template=name, stock=ASSISTANT)
        for name in ("llama3_training", "deepseekv3_training", "glm4moe_training", "cohere_training")
    },
    "rows that give their template something": Case(
        rows=[{"messages": make_chat(n), "chat_template_kwargs": {"enable_thinking": n % 2 == 0}} for n in N],
        template="glm4moe_training",
        stock=ASSISTANT,
    ),
    "an assistant that begins": Case(
        rows=[{"messages": [say("assistant", words(n, 2)), *make_chat(n)[-2:]]} for n in N],
        template="llama3_training",
        stock=ASSISTANT,
    ),
    "tool calls": Case(
        rows=[
            {
                "tools": TOOLS,
                "messages": [
                    say("user", words(n, 2)),
                    say("assistant", "", tool_calls=[CALL]),
                    say("tool", "3", name="add"),
                    say("assistant", words(n)),
                ],
            }
            for n in N
        ],
        template="qwen2_5",
        asked=ALL | {"seq_len": 256},
    ),
    "prompts with completions": Case(rows=PAIRS),
    "prompts with completions, all of it learned": Case(rows=PAIRS, asked=ALL, stock={"completion_only_loss": False}),
    "prompts with completions as Excel writes them": Case(
        rows=PAIRS, name="d.csv", write=write_marked, read=read_marked
    ),
    "prompts and completions that are messages": Case(
        rows=[{"prompt": make_chat(n)[:-1], "completion": make_chat(n)[-1:]} for n in N], template="llama3"
    ),
    "texts": Case(rows=[{"text": words(n), "url": "u"} for n in N]),
    "labels as Excel writes them": Case(
        rows=LABELLED, name="d.csv", task="text-classification", write=write_marked, read=read_marked
    ),
    "labels of Parquet": Case(rows=LABELLED, name="d.parquet", task="text-classification", write=write_rows),
}


def make_model(folder: Path, case: Case) -> None:
    import re

    import torch
    import trl
    from transformers import LlamaConfig, LlamaForCausalLM

    if (
        case.template
    ):  # of those whose marks TRL sets where they are set here: others have it learn a line break behind an end
        text = (Path(trl.__file__).parent / "chat_templates" / f"{case.template}.jinja").read_text(encoding="utf-8")
        marks = dict.fromkeys(re.findall(r"<[^<>{}\s'\"]*[|｜][^<>{}\s'\"]*>", text))
        known = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        tokenizer = make_tokenizer(folder, text, tuple(mark for mark in marks if mark not in known))
        tokenizer.bos_token = known[0]
        tokenizer.save_pretrained(folder)
    else:
        tokenizer = make_tokenizer(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        **sizes,
        num_key_value_heads=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def train_project(project: Path) -> list[dict]:
    from transformers import Trainer

    trainers: list[Trainer] = []
    train = Trainer.train

    def look(trainer, *args, **kwargs):
        trainers.append(trainer)
        return train(trainer, *args, **kwargs)

    Trainer.train = look
    os.chdir(project)
    sys.path.insert(0, str(project))
    flags = SAME | {"per_device_train_batch_size": BATCH, "gradient_accumulation_steps": 1}
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in flags.items())]
    try:
        runpy.run_path("train.py", run_name="__main__")
    finally:
        Trainer.train = train
    return list(trainers[0].state.log_history)


def train_stock(folder: Path, case: Case, seq_len: int) -> list[dict]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    rows, tokenizer = case.read(folder / case.name), AutoTokenizer.from_pretrained(folder / "model")
    more = {
        "output_dir": str(folder / "stock"),
        "use_cpu": True,
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
    }
    more |= {"report_to": "none", "disable_tqdm": True, "optim": "adamw_torch", "bf16": False}
    if case.task == "text-classification":
        return train_classifier(folder, rows, tokenizer, seq_len, SAME | more)
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", attn_implementation="eager"),
        args=SFTConfig(**SAME, **more, max_length=seq_len, packing=False, activation_checkpointing=False, **case.stock),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    trainer.train()
    return list(trainer.state.log_history)


def train_classifier(folder: Path, rows, tokenizer, seq_len: int, args: dict) -> list[dict]:
    import torch
    from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments

    names = sorted(set(rows["label"]))
    tokens = [
        {**tokenizer(row["text"], truncation=True, max_length=seq_len), "labels": names.index(row["label"])}
        for row in rows
    ]
    model = AutoModelForSequenceClassification.from_pretrained(
        folder / "model", num_labels=len(names), attn_implementation="eager"
    )
    model.load_state_dict(torch.load(folder / "start.pt"))  # the head is drawn
    collator = DataCollatorWithPadding(tokenizer)
    trainer = Trainer(model=model, args=TrainingArguments(**args), train_dataset=tokens, data_collator=collator)
    trainer.train()
    return list(trainer.state.log_history)


def keep_start(folder: Path) -> None:
    """What train.py begins with, of which the head of a classifier is drawn."""
    import torch
    from transformers import Trainer

    train = Trainer.train

    def keep(trainer, *args, **kwargs):
        torch.save(trainer.model.state_dict(), folder / "start.pt")
        return train(trainer, *args, **kwargs)

    Trainer.train = keep


def write_differences(folder: Path, name: str) -> None:
    """Of a process of its own, to found.json; what was said to log."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.alarm(SECONDS)
    case = CASES[name]
    make_model(folder / "model", case)
    case.write(folder / case.name, case.rows)
    pins = {"packing": "padded", "precision": "fp32", "compile": "off"}
    asked = {"seq_len": SEQ_LEN, "global_batch": BATCH, "max_steps": STEPS, "eval": "none", "pins": tuple(pins.items())}
    asked |= {"task": case.task, "model": str(folder / "model")} | case.asked
    project = render_small_project(folder, folder / case.name, **asked)
    keep_start(folder)
    ours = train_project(project)
    found = list_differences(ours, train_stock(folder, case, asked["seq_len"]))
    (folder / "found.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def forks():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["test_stock_data", "trl", "transformers.trainer"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the server has no other
        patch.chdir(Path(__file__).parent)
        yield context


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_learned_as_the_libraries_learn_it(forks, tmp_path, name):
    process = forks.Process(target=write_differences, args=(tmp_path, name))
    process.start()
    process.join()
    assert (tmp_path / "found.json").exists(), (tmp_path / "log").read_text(errors="replace")[-2000:]
    assert json.loads((tmp_path / "found.json").read_text()) == []
