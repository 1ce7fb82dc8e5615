"""Real training runs on this machine's CPU, through the Trainer as the emitted projects call it, beside the prediction.

python benchmarks/oracles.py        writes benchmarks/results/cpu_runs.json (about four minutes)

Every configuration is a process of its own: its peak is the largest resident size the kernel saw (VmHWM). Time is both: the
wall's, and the process's CPU time over its threads, because the machine may be shared with others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from generator.case.devices import describe_cpu
from generator.cost import CostModel
from generator.cost.execution import Execution
from generator.estimate.optimizers import list_optimizer_states
from generator.model import describe
from hwdetect import detect

RESULTS = Path(__file__).resolve().parent / "results" / "cpu_runs.json"
STEPS, WARMUP = 3, 1
MODELS = {
    "llama-17m": {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 6},
    "llama-60m": {"hidden_size": 640, "intermediate_size": 1728, "num_hidden_layers": 10, "num_attention_heads": 10},
}
VOCABULARY = 8192
RUNS = (
    ("llama-17m", {"micro_batch": 4, "seq_len": 256}),
    ("llama-17m", {"micro_batch": 8, "seq_len": 512}),
    ("llama-17m", {"micro_batch": 8, "seq_len": 512, "checkpoint_every": 1}),
    ("llama-17m", {"micro_batch": 2, "seq_len": 1024, "optimizer": "adafactor"}),
    ("llama-60m", {"micro_batch": 4, "seq_len": 256}),
    ("llama-60m", {"micro_batch": 8, "seq_len": 512, "checkpoint_every": 1}),
    ("llama-60m", {"micro_batch": 4, "seq_len": 512, "optimizer": "sgd"}),
)
OPTIM = {"adamw": "adamw_torch_fused", "adafactor": "adafactor", "sgd": "sgd"}


def make_config(name: str) -> dict:
    import transformers

    return transformers.LlamaConfig.from_dict({"vocab_size": VOCABULARY, **MODELS[name]}).to_dict()


def read_sizes(name: str) -> dict:
    """Numbers that the cost model needs, by the names of a ModelSpec."""
    spec = describe(make_config(name), name)
    names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "params")
    return {field: getattr(spec, field) for field in names}


def make_execution(threads: int, optimizer: str = "adamw", **more) -> Execution:
    state = list_optimizer_states()[optimizer]
    return Execution(threads=threads, optimizer=state, optimizer_fused=optimizer == "adamw", **more)


def train(name: str, run: dict, threads: int) -> dict:
    """In a process of its own: a few steps, and what they took."""
    import time

    import psutil
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    imported = psutil.Process().memory_info().rss
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.LlamaConfig.from_dict(make_config(name)), dtype=torch.float32, attn_implementation="sdpa"
    )
    accumulation = run.get("accumulation", 1)
    rows = run["micro_batch"] * accumulation * (STEPS + WARMUP)
    tokens = torch.randint(0, VOCABULARY, (rows, run["seq_len"]))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    clock: list[tuple[float, float]] = []

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            clock.append((time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=STEPS + WARMUP,
            per_device_train_batch_size=run["micro_batch"],
            gradient_accumulation_steps=accumulation,
            gradient_checkpointing=bool(run.get("checkpoint_every")),
            optim=OPTIM[run.get("optimizer", "adamw")],
            report_to="none",
            save_strategy="no",
            logging_steps=1000,
            disable_tqdm=True,
        )
        collate = transformers.default_data_collator
        trainer = transformers.Trainer(
            model=model, args=args, train_dataset=data, data_collator=collate, callbacks=[Clock()]
        )
        trainer.train()
    walls = [b[0] - a[0] for a, b in zip(clock[WARMUP - 1 :], clock[WARMUP:], strict=False)]
    cpus = [b[1] - a[1] for a, b in zip(clock[WARMUP - 1 :], clock[WARMUP:], strict=False)]
    status = Path("/proc/self/status").read_text()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024
    return {
        "imported_bytes": imported,
        "peak_bytes": peak,
        "step_seconds": sorted(walls)[len(walls) // 2],
        "fastest_step_seconds": min(walls),
        "cpu_seconds": sorted(cpus)[len(cpus) // 2],
    }


def predict(name: str, run: dict, device, cores: int, memory_bytes: int) -> dict:
    spec = describe(make_config(name), name)
    cost = CostModel(device, spec, device_memory_bytes=memory_bytes, host_memory_bytes=memory_bytes, cpu_budget=cores)
    estimate = cost.estimate(make_execution(cores, **run))
    return {"peak_bytes": estimate.peak_memory_gib * 2**30, "step_seconds": estimate.step_seconds}


def main() -> None:
    if len(sys.argv) > 1:
        name, run, threads = json.loads(sys.argv[1])
        print(json.dumps(train(name, run, threads)))
        return
    machine = detect(measure=True)  # on a busy machine this measures its load: run it alone
    device, memory_bytes = describe_cpu(machine)
    cores = min(n for n in (machine.cpu.budget, machine.cpu.cores) if n)
    rows = []
    for name, run in RUNS:
        command = [sys.executable, __file__, json.dumps([name, run, cores])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        measured = json.loads(done.stdout.strip().splitlines()[-1])
        predicted = predict(name, run, device, cores, memory_bytes)
        rows.append(
            {"model": name, "sizes": read_sizes(name), "run": run, "measured": measured, "predicted": predicted}
        )
        memory = predicted["peak_bytes"] / measured["peak_bytes"] - 1
        time = predicted["step_seconds"] / measured["fastest_step_seconds"] - 1
        print(f"{name} {run}: memory {memory:+.1%}, time {time:+.1%}", flush=True)
    known = {
        "vendor": device.vendor,
        "name": device.name,
        "peak_flops": dict(device.peak_flops),
        "memory_bytes_per_s": device.memory_bytes_per_s,
        "basis": device.basis,
        "memory_bytes": memory_bytes,
        "cores": cores,
        "shared": "nothing else may run beside this: rates and steps are both timed",
    }
    result = {
        "schema": 1,
        "what": "Trainer on CPU, float32, sdpa: peak resident size and seconds of a step, measured and predicted then",
        "command": "python benchmarks/oracles.py",
        "machine": known,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
