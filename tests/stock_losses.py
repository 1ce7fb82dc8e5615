"""A drawn training by the project that is emitted for it, and by the libraries' own Trainer with nothing of it.

The reference is one process with plain loss, padded rows, a mask, and whole global batches: no accumulation. It begins with the
weights that the project begins with and sees the rows that the project sees, in float32 without dropout.
"""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from projects import render_small_project

STEPS = 5
TYPES = {
    "causal-lm": ("llama", "qwen3", "gpt2", "mistral"),
    "sft": ("llama", "qwen3", "gpt2", "opt"),
    "text-classification": ("llama", "bert", "gpt2", "modernbert"),
}
PACKINGS = {
    "causal-lm": ("packed",),
    "sft": ("padded", "flattened", "shared-prefix", "group-by-length"),
    "text-classification": ("padded", "group-by-length"),
}
LOSSES = {"causal-lm": ("plain", "chunked"), "sft": ("chunked",), "text-classification": ("plain",)}
WITHOUT_DROPOUT = dict.fromkeys(
    (
        *("attention_dropout", "dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "hidden_dropout_prob"),
        *("mlp_dropout",),
        *("attention_probs_dropout_prob", "classifier_dropout", "embedding_dropout"),
    ),
    0.0,
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "num_local_experts": 4,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "vocab_size": 300,
}


@dataclass(frozen=True, kw_only=True)
class Draw:
    """``flags`` are those of train.py that both trainings have; ``parts``: into so many micro-batches the project divides a step.

    What makes a project (``model_type`` to ``checkpointing``, ``rows``) is empty for one that is there already.
    """

    task: str
    train: str
    model_type: str = ""
    packing: str = ""
    loss: str = ""
    checkpointing: str = ""
    parts: int
    batch: int
    rows: int = 0
    steps: int = STEPS
    flags: dict[str, Any] = field(default_factory=dict)

    def describe(self) -> str:
        flags = " ".join(f"--{name} {value}" for name, value in self.flags.items())
        return (
            f"{self.task} {self.train} {self.model_type} {self.packing} {self.loss} {self.checkpointing}, "
            f"{self.rows} rows in {self.parts} x {self.batch // self.parts}: {flags}"
        )


def draw(seed: int) -> Draw:
    chance = random.Random(seed)
    task = chance.choice(list(TYPES))
    batch, parts = chance.choice(((4, 1), (4, 2), (8, 2), (8, 4), (6, 3)))
    flags: dict[str, Any] = {"seed": chance.randrange(1000), "weight_decay": chance.choice((0.0, 0.3))}
    flags["lr_scheduler_type"] = chance.choice(("linear", "cosine", "constant_with_warmup"))
    flags["warmup_steps"] = chance.choice((0, 2))
    flags["max_grad_norm"] = chance.choice((0.05, 1.0))
    if chance.random() < 0.5:
        flags["label_smoothing_factor"] = chance.choice((0.1, 0.3))
    if chance.random() < 0.3:
        flags["eval_strategy"] = "steps"
    loss = chance.choice(LOSSES[task])
    if loss == "chunked" and task == "causal-lm":
        flags.pop("label_smoothing_factor", None)  # refused, and tests/templates hold that
    packing = chance.choice(PACKINGS[task])
    types = [name for name in TYPES[task] if packing != "shared-prefix" or name not in ("gpt2", "opt")]
    return Draw(
        task=task,
        train=chance.choice(("full", "lora")),
        model_type=chance.choice(types),
        packing=packing,
        loss=loss,
        checkpointing=chance.choice(("off", "off", "full")),
        parts=parts,
        batch=batch,
        rows=chance.choice((64, batch * 2 + 1, batch * 3 - 1)),
        flags=flags,
    )


# ---- what both are made of


def make_model(folder: Path, of: Draw) -> None:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from benchmarks.zoo import make_tokenizer

    make_tokenizer(folder)
    known = AutoConfig.for_model(of.model_type).to_dict()
    sizes = {name: value for name, value in (SIZES | WITHOUT_DROPOUT).items() if name in known or name == "head_dim"}
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0) | {"pad_token_id": 1}
    config = AutoConfig.for_model(of.model_type, **sizes, **special, initializer_range=0.2)
    kind = AutoModel if of.task == "text-classification" else AutoModelForCausalLM
    torch.manual_seed(0)
    kind.from_config(config).save_pretrained(folder)


WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "while",
    "seven",
    "wizards",
    "boil",
    "strange",
    "blue",
    "jam",
]


def make_data(of: Draw) -> tuple[str, str]:
    chance = random.Random(1)

    def say(most: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(chance.randint(1, most)))

    if of.task == "causal-lm":
        return "d.txt", "".join(say(12) + "\n" for _ in range(of.rows * 3))
    if of.task == "sft":
        system = {"role": "system", "content": "you are a fox"}
        chats = [
            [system, {"role": "user", "content": say(4)}, {"role": "assistant", "content": say(9)}]
            for _ in range(of.rows)
        ]
        return "d.jsonl", "\n".join(json.dumps({"messages": chat}) for chat in chats)
    rows = [{"text": say(9), "label": chance.choice("abc")} for _ in range(of.rows)]
    return "d.jsonl", "\n".join(map(json.dumps, rows))


def make_project(place: Path, of: Draw) -> Path:
    make_model(place / "model", of)
    name, data = make_data(of)
    asked = {
        "packing": of.packing,
        "loss": of.loss,
        "checkpointing": of.checkpointing,
        "precision": "fp32",
        "compile": "off",
    }
    return render_small_project(
        place,
        data=data,
        name=name,
        model=str(place / "model"),
        task=of.task,
        train=of.train,
        seq_len=48,
        global_batch=of.batch,
        max_steps=of.steps,
        eval="0.2" if "eval_strategy" in of.flags else "none",
        pins=tuple(asked.items()),
    )


# ---- the project's training, looked at


def train_project(project: Path, of: Draw) -> dict[str, Any]:
    """What its Trainer began with, and what came of it."""
    from transformers import Trainer

    seen: dict[str, Any] = {}
    train = Trainer.train

    def look(trainer, *args, **kwargs):
        model = trainer.model
        seen["trainer"] = trainer
        seen["start"] = {name: value.detach().clone() for name, value in model.state_dict().items()}
        seen["rows"], seen["held"] = trainer.train_dataset, trainer.eval_dataset
        return train(trainer, *args, **kwargs)

    Trainer.train = look
    flags = of.flags | {
        "per_device_train_batch_size": of.batch // of.parts,
        "gradient_accumulation_steps": of.parts,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "load_best_model_at_end": False,
    }
    if "eval_strategy" in of.flags:
        flags |= {"eval_steps": 2}
    os.chdir(project)
    sys.path.insert(0, str(project))
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in flags.items())]
    try:
        runpy.run_path("train.py", run_name="__main__")
    finally:
        Trainer.train = train
    return seen | {"log": list(seen["trainer"].state.log_history), "end": dict(seen["trainer"].model.state_dict())}


# ---- the same by Trainer itself


def train_stock(project: Path, of: Draw, seen: dict[str, Any]) -> list[dict]:
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        default_data_collator,
    )
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    source = project.parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(source)
    if of.task == "text-classification":
        names = sorted({json.loads(line)["label"] for line in (project.parent / "d.jsonl").read_text().splitlines()})
        model = AutoModelForSequenceClassification.from_pretrained(
            source, num_labels=len(names), attn_implementation="eager", ignore_mismatched_sizes=True
        )
        model.config.pad_token_id = tokenizer.pad_token_id
    else:
        model = AutoModelForCausalLM.from_pretrained(source, attn_implementation="eager")
        if getattr(seen["trainer"], "router_aux_loss_coef", 0):
            model.config.output_router_logits = True
    if of.train == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(**seen["trainer"].model.peft_config["default"].to_dict()))
    model.load_state_dict(seen["start"])
    collators = {
        "causal-lm": default_data_collator,
        "sft": DataCollatorForLanguageModeling(tokenizer.pad_token_id),
        "text-classification": DataCollatorWithPadding(tokenizer),
    }
    args = TrainingArguments(
        output_dir=str(project.parent / "stock"),
        use_cpu=True,
        max_steps=of.steps,
        per_device_train_batch_size=of.batch,
        learning_rate=0.01,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        eval_steps=2,
        per_device_eval_batch_size=1000,
        eval_on_start="eval_strategy" in of.flags,
        label_names=seen["trainer"].args.label_names,
        optim="adamw_torch",
        train_sampling_strategy=seen["trainer"].args.train_sampling_strategy,
        remove_unused_columns=of.task != "sft",
        **of.flags,
    )
    callbacks = [c for c in seen["trainer"].callback_handler.callbacks if type(c).__name__ == "SeedLengthGroups"]
    rows, held = seen["rows"], seen["held"]
    if of.task == "sft":
        rows, held = (of_rows and of_rows.select_columns(["input_ids", "labels"]) for of_rows in (rows, held))
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=rows,
        eval_dataset=held,
        processing_class=tokenizer,
        data_collator=collators[of.task],
        callbacks=callbacks,
    )
    trainer.train()
    assert all(torch.isfinite(value).all() for value in model.state_dict().values() if value.is_floating_point())
    seen["stock end"] = dict(model.state_dict())
    return list(trainer.state.log_history)


def list_differences(ours: list[dict], theirs: list[dict], tolerance: float = 1e-4) -> list[str]:
    """Values of equal steps that are not equal."""
    found = []
    for name in ("loss", "grad_norm", "learning_rate", "eval_loss"):
        mine, stock = ([row[name] for row in log if name in row] for log in (ours, theirs))
        equal = len(mine) == len(stock) and all(
            abs(a - b) <= tolerance * max(1.0, abs(b)) for a, b in zip(mine, stock, strict=True)
        )
        if not equal:
            found.append(f"{name}: {mine}, stock {stock}")
    return found


SECONDS = 240


def write_differences(place: Path, seed: int) -> None:
    """What ``compare`` found, to found.json of ``place``, and what was said to log: of a process of its own."""
    log = os.open(place / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.alarm(SECONDS)
    found = compare(make_project(place / "made", draw(seed)), draw(seed))
    (place / "found.json").write_text(json.dumps(found))


def compare(project: Path, of: Draw) -> list[str]:
    seen = train_project(project, of)
    stock = train_stock(project, of, seen)
    found = list_differences(seen["log"], stock)
    gap = max(
        (float((value - seen["stock end"][name]).abs().max()) for name, value in seen["end"].items()), default=0.0
    )
    return [*found, *([f"weights differ by {gap:.2g}"] if found else [])]
