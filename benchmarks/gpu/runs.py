"""Training steps, generation, and whole emitted projects on the device that is here: what they took.

A run's settings are the names of generator.cost.execution.Execution, so that the cost model costs the same words.
Each function runs in a process of its own.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.measurements import CUDA_GRAPHS, config_of

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
STEPS, WARMUP = 5, 2
REPEATS = 3
OPTIM = {
    ("adamw", True): "adamw_torch_fused",
    ("adamw", False): "adamw_torch",
    ("adamw-8bit", True): "adamw_bnb_8bit",
    ("adafactor", True): "adafactor",
}


def make_model(model: str, tiny: bool, device: str, dtype: str, attention: str = "sdpa"):
    """Random weights, made where they are used."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**config_of(model, tiny))
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation=attention)


def forget_peak(device: str) -> None:
    """What an earlier run of this process held and kept."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: str) -> dict:
    if device == "cuda":
        return {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        }
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    resident = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return {"peak_resident_bytes": int(resident.split()[1]) * 1024}


def measure_train(row: dict, device: str, tiny: bool, _: Path) -> dict:
    """A few optimizer steps through the Trainer, called as the emitted train.py calls it, on random tokens."""
    import transformers

    run = row["run"]
    transformers.set_seed(0)
    model = make_model(row["model"], tiny, device, run["weights_dtype"], run.get("attention", "sdpa"))
    if run.get("loss_kernel") == "chunked":
        load_fragment("chunked_loss").chunk_loss(model)
    if run.get("rows") == "varlen":
        load_fragment("varlen_attention").attend_within_rows(model)
    if run.get("train") == "lora":
        model = add_adapter(model, run["lora_rank"])
    clock: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if device == "cuda":
                torch.cuda.synchronize()
            clock.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(output_dir=folder, **arguments_of(run, device))
        trainer = transformers.Trainer(
            model=model,
            args=args,
            train_dataset=random_rows(run, model.config.vocab_size),
            data_collator=choose_collator(run),
            callbacks=[Clock()],
        )
        trainer.train()
    seconds = [after - before for before, after in zip(clock[WARMUP - 1 :], clock[WARMUP:], strict=False)]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    timed = {"step_seconds": seconds, "median_step_seconds": statistics.median(seconds)}
    return {**timed, **peak_bytes(device), "trained_parameters": trained}


def arguments_of(run: dict, device: str) -> dict:
    """TrainingArguments of an Execution, under the names that the installed Transformers has."""
    import transformers

    names = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    renamed = "activation_checkpointing" in names
    checkpointing = "activation_checkpointing" if renamed else "gradient_checkpointing"
    arguments = {
        "max_steps": STEPS + WARMUP,
        "per_device_train_batch_size": run["micro_batch"],
        "gradient_accumulation_steps": run.get("accumulation", 1),
        "optim": OPTIM[run.get("optimizer", "adamw"), run.get("optimizer_fused", True)],
        "bf16": run.get("autocast_dtype") == "bfloat16",
        "torch_compile": run.get("compile") is not None,
        "torch_compile_mode": run["compile"] if run.get("compile") in CUDA_GRAPHS else None,
        "use_liger_kernel": run.get("fused_kernels") == "liger",
        checkpointing: bool(run.get("checkpoint_every")),
        "dataloader_num_workers": run.get("dataloader_workers", 0),
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1000,
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
    }
    if run.get("checkpoint_every"):
        arguments[f"{checkpointing}_kwargs"] = {"use_reentrant": False}
        if run["checkpoint_every"] > 1:
            arguments[f"{checkpointing}_kwargs"]["every_n_layers"] = run["checkpoint_every"]
    if device == "cuda":
        arguments["tf32"] = run.get("tf32", False)
    return arguments


def add_adapter(model, rank: int):
    """LoRA on every linear layer, as the emitted config has it; float32 adapters on a 16-bit base."""
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(
        task_type="CAUSAL_LM", target_modules="all-linear", r=rank, lora_alpha=2 * rank, lora_dropout=0.05
    )
    return get_peft_model(model, adapter)


def load_fragment(name: str):
    """A module that perfgen emits beside train.py."""
    import importlib

    folder = str(ROOT / "templates" / "fragments")
    if folder not in sys.path:
        sys.path.append(folder)  # it may import another
    return importlib.import_module(name)


def choose_collator(run: dict):
    """Rows of one length are stacked; ragged ones are padded on the right, without a mask, or put one after the other."""
    import transformers

    if run.get("rows") == "varlen":
        return transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    if not run.get("length_shares"):
        return transformers.default_data_collator

    def pad(rows: list[dict]) -> dict:
        longest = max(len(row["input_ids"]) for row in rows)
        filled = {"input_ids": 0, "labels": -100}
        return {
            name: torch.tensor([row[name] + [filling] * (longest - len(row[name])) for row in rows])
            for name, filling in filled.items()
        }

    return pad


def random_rows(run: dict, vocabulary: int) -> list[dict]:
    """Enough sequences for all steps, as lists of numbers, which is what the emitted data.py yields."""
    rows = run["micro_batch"] * run.get("accumulation", 1) * (STEPS + WARMUP)
    tokens = torch.randint(0, vocabulary, (rows, run["seq_len"]), generator=torch.Generator().manual_seed(0)).tolist()
    shares = run.get("length_shares") or [1.0]
    lengths = [max(2, round(shares[place % len(shares)] * run["seq_len"])) for place in range(rows)]
    return [{"input_ids": row[:n], "labels": row[:n]} for row, n in zip(tokens, lengths, strict=True)]


def measure_generate(row: dict, device: str, tiny: bool, _: Path) -> dict:
    """generate() as infer.py calls it: the first token alone, then all, so that prefill and decoding come apart."""
    run = row["run"]
    model = make_model(row["model"], tiny, device, run["weights_dtype"], run.get("attention", "sdpa")).eval()
    tokens = torch.randint(2, model.config.vocab_size, (run["micro_batch"], run["seq_len"]), device=device)
    settings = {"attention_mask": torch.ones_like(tokens), "do_sample": False, "pad_token_id": 0}
    if run["cache"] == "static":
        settings["cache_implementation"] = "static"

    def generate(count: int) -> float:
        started = time.perf_counter()
        output = model.generate(tokens, max_new_tokens=count, min_new_tokens=count, **settings)
        output.cpu()
        return time.perf_counter() - started

    new = run["new_tokens"]
    started = time.perf_counter()
    generate(new)
    first = time.perf_counter() - started
    for count in (new, 1):
        generate(count)
    prefill = [generate(1) for _ in range(REPEATS)]
    all_tokens = [generate(new) for _ in range(REPEATS)]
    decode = (statistics.median(all_tokens) - statistics.median(prefill)) / (new - 1)
    return {
        "first_call_seconds": first,
        "prefill_seconds": prefill,
        "batch_seconds": all_tokens,
        "median_prefill_seconds": statistics.median(prefill),
        "median_batch_seconds": statistics.median(all_tokens),
        "decode_seconds_per_token": decode,
        **peak_bytes(device),
    }


def measure_project(row: dict, device: str, tiny: bool, work: Path) -> dict:
    """An emitted project as it stands: train.py for a few steps, then infer.py on what it saved."""
    inputs, project = work / "inputs" / row["project"], work / "projects" / row["project"]
    copy_project(inputs / "project", project)
    plan = json.loads((project / "plan.json").read_text(encoding="utf-8"))
    point_config(project, inputs, weights_of(row, plan, device, tiny, work, inputs))
    measured = {}
    try:
        if plan["project"]["mode"] == "train":
            measured["train"] = train_project(project, row["steps"], measured)
        measured["infer"] = infer_project(project, plan)
    except subprocess.CalledProcessError as error:
        return {**measured, "error": last_lines(error.output), "failed": " ".join(error.cmd[1:3])}
    finally:
        shutil.rmtree(project / "runs", ignore_errors=True)
    return measured


def copy_project(source: Path, project: Path) -> None:
    """Its links stay: they name data and model where it was written, which may be another machine."""
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(source, project, symlinks=True)


def list_train_words(steps: int) -> list[str]:
    return ["train.py", "--max_steps", str(steps), "--save_strategy", "no", "--logging_steps", "1"]


def train_project(project: Path, steps: int, measured: dict) -> dict:
    started = time.perf_counter()
    run_script(project, list_train_words(steps))
    seconds = time.perf_counter() - started
    report = json.loads((project / "runs" / "run.json").read_text(encoding="utf-8"))
    return {"process_seconds": seconds, **report}


def infer_project(project: Path, plan: dict) -> dict:
    """What infer.py wrote to infer.json, or where it writes none, what it printed."""
    started = time.perf_counter()
    output = run_script(project, ["infer.py", "--prompt", "the first of many", "--max_new_tokens", "64"])
    seconds = time.perf_counter() - started
    files = sorted(project.rglob("infer.json"))
    figures = (
        json.loads(files[0].read_text(encoding="utf-8")) if files else {"printed": output.strip().splitlines()[-2:]}
    )
    return {"process_seconds": seconds, **figures}


def run_script(project: Path, words: list[str]) -> str:
    """Standard output. Raises ``CalledProcessError`` with both streams as its output."""
    done = subprocess.run([sys.executable, *words], cwd=project, capture_output=True, text=True, check=False)
    if done.returncode:
        both = f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        raise subprocess.CalledProcessError(done.returncode, [sys.executable, *words], both)
    return done.stdout


def weights_of(row: dict, plan: dict, device: str, tiny: bool, work: Path, inputs: Path) -> Path:
    """The model folder of a project: as prepared where it trains from scratch, else with random weights saved once."""
    if plan["project"].get("from_scratch"):
        return inputs / "model"
    folder = work / "weights" / row["model"]
    if not (folder / "config.json").exists():
        maker = multiprocessing.get_context("spawn").Process(
            target=save_weights, args=(row["model"], tiny, device, folder, inputs / "model")
        )
        maker.start()  # another process: this one must hold nothing on the device while the project runs
        maker.join()
    return folder


def save_weights(model: str, tiny: bool, device: str, folder: Path, source: Path) -> None:
    draft = folder.with_name(f"{folder.name}.draft")
    make_model(model, tiny, device, "bfloat16").save_pretrained(draft)
    for file in source.iterdir():
        if file.name != "config.json":
            shutil.copy(file, draft)
    draft.rename(folder)


def point_config(project: Path, inputs: Path, model: Path) -> None:
    """config.yaml's own fields, which are the user's: where model and data lie here."""
    import yaml

    path = project / "config.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    config["model"] = str(model.resolve())
    if "draft_model" in config:
        config["draft_model"] = str((model.parent / "draft").resolve())
    if "data" in config:
        config["data"] = str(next(inputs.glob("data.*")).resolve())
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


def last_lines(text: str | None, count: int = 25) -> str:
    return "\n".join((text or "").strip().splitlines()[-count:])


MEASURES = {"train": measure_train, "generate": measure_generate, "project": measure_project}
