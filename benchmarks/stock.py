"""Training on a CPU: a generated project against a script with the library's default arguments.

python benchmarks/stock.py MODEL --chats FILE.jsonl --texts FILE.jsonl [--labels FILE] [--tasks sft lora pretraining classification]
                           [--ablate bf16 flattening "kept memory" ...]
                                                                           writes benchmarks/results/stock-cpu.json

Rows of tasks that are not measured anew stay. The stock scripts are those of the libraries' own guides: SFTTrainer with SFTConfig's
defaults, Trainer with TrainingArguments'. They get the tokens and labels that the project's data.py makes, the same weights, seed and
global batch. SFTConfig's defaults compute in bf16 and recompute activations, of which a CPU without bf16 instructions emulates the
first: "stock, fp32" has both switched off. Compared are CPU seconds of a step on one thread, the first two left out (SETTLING),
of each of the others the fastest of all rounds; losses must be equal, but where the plan takes examples of like length together.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from flattened import SCORING, name_processor, time_program, time_steps

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SETTLING = 2
"""Steps that are not compared: they compile and check, and the second lays out memory beside the optimizer's states."""
TOLERANCE = {"fp32": 1e-3, "bf16": 0.02}
"""Of a loss, relative, over the first steps."""
KINDS = {"amx_bf16": "amx", "_bf16": "bf16"}
"""Of processors, by their instructions: each has a file of its own."""
HEAD = """
import sys, yaml
sys.path.insert(0, {project!r})
import data
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers import Trainer, TrainingArguments, default_data_collator, set_seed
config = yaml.safe_load(open({project!r} + "/config.yaml"))
model_name = str(data.find_source(config, "model"))
tokenizer = AutoTokenizer.from_pretrained(model_name)
arguments = dict(output_dir="out", max_steps={steps}, per_device_train_batch_size={batch}, learning_rate=float(config["training"]["learning_rate"]),
    lr_scheduler_type="linear", warmup_steps=config["training"]["warmup_steps"], logging_steps=1, save_strategy="no", use_cpu=True, report_to="none", seed=42)
"""
SFT = """
from trl import SFTConfig, SFTTrainer
rows = data.tokenize_examples(data.load_examples(config), tokenizer, config["seq_len"], config["loss_on"])
rows = rows.select_columns(["input_ids", "labels"])
peft = {peft}
SFTTrainer(model=model_name, args=SFTConfig(**arguments{more}), train_dataset=rows, processing_class=tokenizer, peft_config=peft).train()
"""
PEFT = (
    "__import__('peft').LoraConfig(task_type='CAUSAL_LM', target_modules='all-linear', "
    "**(config['lora'] | {'lora_dropout': 0.0}))"
)
FP32 = ", bf16=False, gradient_checkpointing=False"
PRETRAINING = """
set_seed(42)
blocks = data.cut_blocks(data.load_texts(config).shuffle(seed=42), tokenizer, config["seq_len"])
model = AutoModelForCausalLM.from_pretrained(model_name)
Trainer(model=model, args=TrainingArguments(**arguments), train_dataset=blocks, data_collator=default_data_collator).train()
"""
CLASSIFICATION = """
examples = data.load_examples(config)
names = data.list_labels(examples)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
rows = data.tokenize(examples, names, tokenizer, config["seq_len"])
set_seed(42)
model = AutoModelForSequenceClassification.from_pretrained(model_name, num_labels=len(names))
model.config.pad_token_id = tokenizer.pad_token_id
Trainer(model=model, args=TrainingArguments(**arguments), train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer)).train()
"""
SCRIPTS = {
    "sft": {"stock": SFT.format(peft="None", more=""), "stock, fp32": SFT.format(peft="None", more=FP32)},
    "lora": {"stock": SFT.format(peft=PEFT, more=""), "stock, fp32": SFT.format(peft=PEFT, more=FP32)},
    "pretraining": {"stock": PRETRAINING},
    "classification": {"stock": CLASSIFICATION},
}
ABLATED = {
    "bf16": "precision=fp32",
    "shared prefix": "packing=flattened",
    "flattening": "packing=padded",
    "compiling": "compile=off",
    "logits of trained tokens": ("train.py", SCORING, ""),
    "short rows in fp32": ("row_attention.py", "SHORT_ROW = 512", "SHORT_ROW = 0"),
    "kept memory": ("train.py", '    keep_freed_memory(CONFIG["machine"])\n', ""),
    "large pages": ("machine.py", """        widen_heap(libc, int(planned["needs_gib"] * GIB))\n""", ""),
}
"""By what is left out: the pin that does it, or a file of the project with what is replaced."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--chats", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--labels")
    parser.add_argument("--tasks", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--scripts", nargs="+", default=["stock", "stock, fp32"], help="of those that a task has")
    parser.add_argument("--pin", action="append", default=[], metavar="AXIS=NAME", help="of the generated projects")
    parser.add_argument(
        "--ablate", nargs="*", choices=ABLATED, default=[], help="one technique, and no other, left out"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=128)
    asked = parser.parse_args()
    processor = name_processor()
    kind = next((f"-{name}" for word, name in KINDS.items() if word in processor), "")
    path = HERE / "results" / f"stock-cpu{kind}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    rows = [row for row in kept if row["name"].split(":")[0] not in asked.tasks]
    for task in asked.tasks:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(Path(folder), task, asked)
        result = {
            "schema": 1,
            "what": "CPU seconds of a step on one thread: generated projects and scripts with default arguments",
            "device": f"{processor}, one thread, other programs beside it",
            "versions": {name: version(name) for name in ("torch", "transformers", "trl", "peft")},
            "rows": rows,
        }
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, task: str, asked: argparse.Namespace) -> list[dict]:
    """A row for the generated project and one for each stock script."""
    project = generate(folder / "project", task, asked)
    programs = {"generated": project}
    for name in asked.ablate:
        programs[f"generated without {name}"] = leave_out(
            folder / f"without-{len(programs)}", task, asked, ABLATED[name]
        )
    scripts = {name: script for name, script in SCRIPTS[task].items() if name in asked.scripts}
    for number, (name, script) in enumerate(scripts.items()):
        programs[name] = folder / f"stock-{number}"
        programs[name].mkdir()
        head = HEAD.format(project=str(project), steps=asked.steps, batch=asked.batch)
        (programs[name] / "train.py").write_text(head + script, encoding="utf-8")
    runs: dict[str, list[dict]] = {name: [] for name in programs}
    for number in range(asked.rounds):
        for name, program in programs.items():
            result = folder / f"{program.name}-{number}.json"
            runs[name].append((time_program if name in scripts else time_steps)(program, result))
            print(f"{task}, {name}: {runs[name][-1]}", flush=True)
    expected, rows = runs["generated"][0]["losses"], []
    choice = json.loads((project / "plan.json").read_text(encoding="utf-8"))["choice"]
    same_batches = choice.get("packing") != "group-by-length"  # else other examples in each, as many of them
    for name, measured in runs.items():
        of_sft = "bf16" if task in ("sft", "lora") and name == "stock" else "fp32"  # SFTConfig asks for bf16
        for run in measured:
            worst = max(abs(a - b) / b for a, b in zip(run["losses"], expected, strict=True))
            if same_batches and worst > max(TOLERANCE[choice["precision"]], TOLERANCE[of_sft]):
                sys.exit(f"{task}, {name}: losses {run['losses']}, generated {expected}")
        seconds = [run["seconds"][SETTLING:] for run in measured]
        best = statistics.mean(min(of_step) for of_step in zip(*seconds, strict=True))
        row = {"name": f"{task}: {name}", "model": Path(asked.model).name, "command": describe_command(task, asked)}
        row |= {"same_batches": same_batches, "losses": measured[0]["losses"]}
        if name not in scripts:
            row |= describe_memory(programs[name], folder / f"{programs[name].name}-0")
        rows.append(row | {"seconds": seconds, "best_seconds": best})
    for row in rows:
        row["generated_is_faster"] = row["best_seconds"] / rows[0]["best_seconds"]
        print(f"{row['name']}: {row['best_seconds']:.2f} s a step, {row['generated_is_faster']:.2f}", flush=True)
    return rows


def describe_memory(project: Path, output: Path) -> dict[str, float]:
    """GiB at the peak of a run, and what the plan said."""
    planned = json.loads((project / "plan.json").read_text(encoding="utf-8"))["estimate"]["peak_memory_gib"]
    measured = json.loads((output / "run.json").read_text(encoding="utf-8"))["peak_memory_gib"]
    return {"peak_memory_gib": measured, "predicted_peak_memory_gib": planned}


def describe_command(task: str, asked: argparse.Namespace) -> str:
    """What was asked for, without where model and data lie."""
    flags = f"--tasks {task} --rounds {asked.rounds} --steps {asked.steps} --batch {asked.batch}"
    flags += f" --seq-len {asked.seq_len}" if task == "pretraining" else ""
    return f"python benchmarks/stock.py MODEL --chats FILE --texts FILE {flags}" + "".join(
        f" --pin {pin}" for pin in asked.pin
    )


def leave_out(dest: Path, task: str, asked: argparse.Namespace, technique: str | tuple[str, str, str]) -> Path:
    """A project without a ``technique`` of ``ABLATED``."""
    if isinstance(technique, str):
        return generate(dest, task, asked, technique)
    generate(dest, task, asked)
    name, old, new = technique
    text = (dest / name).read_text(encoding="utf-8")
    assert old in text, name
    (dest / name).write_text(text.replace(old, new), encoding="utf-8")
    return dest


def generate(dest: Path, task: str, asked: argparse.Namespace, *pins: str) -> Path:
    data = {"pretraining": asked.texts, "classification": asked.labels}.get(task, asked.chats)
    name = {"pretraining": "causal-lm", "classification": "text-classification"}.get(task, "sft")
    request = {"--model": asked.model, "--data": data, "--task": name, "--eval": "none", "--max-steps": asked.steps}
    request |= {"--global-batch": asked.batch, "--train": "lora" if task == "lora" else "full"}
    if task == "pretraining":
        request |= {"--seq-len": asked.seq_len}
    words = [str(word) for pair in request.items() for word in pair]
    words += [word for pin in (*asked.pin, *pins) for word in ("--pin", pin)]
    command = [sys.executable, "-m", "generator.cli", "init", str(dest), *words, "--no-smoke", "--offline", "-q"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    config = dest / "config.yaml"  # dropout draws other numbers for batches of another shape
    config.write_text(config.read_text(encoding="utf-8").replace("lora_dropout: 0.05", "lora_dropout: 0.0"))
    return dest


if __name__ == "__main__":
    main()
