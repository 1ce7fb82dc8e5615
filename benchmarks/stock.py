"""Training on a CPU: a generated project against a script with the library's default arguments.

python benchmarks/stock.py MODEL --chats FILE.jsonl --texts FILE.jsonl [--labels FILE] [--tasks sft lora pretraining classification]
                                                                           writes benchmarks/results/stock-cpu.json

Rows of tasks that are not measured anew stay. The stock scripts are those of the libraries' own guides: SFTTrainer with SFTConfig's
defaults, Trainer with TrainingArguments'. They get the tokens and labels that the project's data.py makes, the same weights, seed and
global batch. SFTConfig's defaults compute in bf16 and recompute activations, of which a CPU without bf16 instructions emulates the
first: "stock, fp32" has both switched off. Compared are CPU seconds of a step on one thread, the first one left out (it compiles, and
checks what it trains); losses must be equal.
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

from flattened import name_processor, time_program, time_steps

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TOLERANCE = {"fp32": 1e-3, "bf16": 0.02}
"""Of a loss, relative, over the first steps."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--chats", required=True)
    parser.add_argument("--texts", required=True)
    parser.add_argument("--labels")
    parser.add_argument("--tasks", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    parser.add_argument("--scripts", nargs="+", default=["stock", "stock, fp32"], help="of those that a task has")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=128)
    asked = parser.parse_args()
    path = HERE / "results" / "stock-cpu.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    rows = [row for row in kept if row["name"].split(":")[0] not in asked.tasks]
    for task in asked.tasks:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(Path(folder), task, asked)
        flags = f"--rounds {asked.rounds} --steps {asked.steps} --batch {asked.batch}"
        result = {
            "schema": 1,
            "what": "CPU seconds of a step on one thread: generated projects and scripts with default arguments",
            "device": f"{name_processor()}, one thread, other programs beside it",
            "versions": {name: version(name) for name in ("torch", "transformers", "trl", "peft")},
            "command": f"python benchmarks/stock.py MODEL --chats FILE --texts FILE {flags} --seq-len {asked.seq_len}",
            "model": Path(asked.model).name,
            "rows": rows,
        }
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(folder: Path, task: str, asked: argparse.Namespace) -> list[dict]:
    """A row for the generated project and one for each stock script."""
    project = generate(folder / "project", task, asked)
    programs = {"generated": project}
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
            runs[name].append((time_steps if name == "generated" else time_program)(program, result))
            print(f"{task}, {name}: {runs[name][-1]}", flush=True)
    expected, rows = runs["generated"][0]["losses"], []
    for name, measured in runs.items():
        bf16 = task in ("sft", "lora") and name == "stock"
        for run in measured:
            worst = max(abs(a - b) / b for a, b in zip(run["losses"], expected, strict=True))
            if worst > TOLERANCE["bf16" if bf16 else "fp32"]:
                sys.exit(f"{task}, {name}: losses {run['losses']}, generated {expected}")
        seconds = [second for run in measured for second in run["seconds"][1:]]
        row = {"name": f"{task}: {name}", "losses": measured[0]["losses"], "seconds": seconds}
        rows.append(row | {"median_seconds": statistics.median(seconds)})
    for row in rows:
        row["generated_is_faster"] = row["median_seconds"] / rows[0]["median_seconds"]
        print(f"{row['name']}: {row['median_seconds']:.2f} s a step, {row['generated_is_faster']:.2f}", flush=True)
    return rows


def generate(dest: Path, task: str, asked: argparse.Namespace) -> Path:
    data = {"pretraining": asked.texts, "classification": asked.labels}.get(task, asked.chats)
    name = {"pretraining": "causal-lm", "classification": "text-classification"}.get(task, "sft")
    request = {"--model": asked.model, "--data": data, "--task": name, "--eval": "none", "--max-steps": asked.steps}
    request |= {"--global-batch": asked.batch, "--train": "lora" if task == "lora" else "full"}
    if task == "pretraining":  # a run of so few steps is not compiled, one that is worth measuring is
        request |= {"--seq-len": asked.seq_len, "--pin": "compile=default"}
    words = [str(word) for pair in request.items() for word in pair]
    command = [sys.executable, "-m", "generator.cli", "init", str(dest), *words, "--no-smoke", "--offline", "-q"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    config = dest / "config.yaml"  # dropout draws other numbers for batches of another shape
    config.write_text(config.read_text(encoding="utf-8").replace("lora_dropout: 0.05", "lora_dropout: 0.0"))
    return dest


if __name__ == "__main__":
    main()
