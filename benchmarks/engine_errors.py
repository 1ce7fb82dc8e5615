"""What the cost model says of benchmarks/results/engines_cpu.json, beside what was measured there.

python benchmarks/engine_errors.py [FILE]

Rates of the machine are those that were measured beside each engine; lengths and batches are the benchmark's own.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.engine_shapes import CONTEXT, PREFILL, PROMPT, PROMPTS, SHAPES
from generator.cost import CostModel
from generator.cost.execution import Execution
from generator.model import ModelSpec, describe
from hwdetect.catalog.cpu import compute_lane_flops
from hwdetect.types import Cpu, Device

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "engines_cpu.json"
MEMORY_BYTES = 24 << 30
ENGINES = {"transformers": ""}
"""The cost model's word, where it is another."""
IN_ONE_PROCESS = {"openvino-genai": 0.05}
"""GiB that its server's process holds since its steps have one of their own, beside what both held as one when these rows were
measured: 1.35 GiB of the two, where 1.30 were planned by these rows (FINDINGS.md, 2026-11-28). Rows that name the processor's
instructions have the memory of both."""


class Figure(NamedTuple):
    row: dict
    what: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def describe_shape(name: str) -> ModelSpec:
    if name in SHAPES:
        kind = {"model_type": "qwen2" if name.startswith("qwen") else "llama"}
        return describe(kind | SHAPES[name] | {"torch_dtype": "float32"}, name)
    config = json.loads((HERE.parent / "examples" / "models" / f"{name}.json").read_text(encoding="utf-8"))
    return describe(config | {"torch_dtype": "float32"}, name)  # as it was saved for this


def describe_machine(row: dict) -> Device:
    best = row["machine"]["best"]
    rates = {"fp32": best["fp32"], "bf16": best["bf16"]}
    if best["bf16"] > best["fp32"]:  # what has instructions for bf16 has VNNI
        rates["int8"] = best["bf16"]
    vendor = "AuthenticAMD" if "AMD" in row["machine"]["cpu"] else "GenuineIntel"
    cpu = Cpu(isa_features=tuple(row["machine"].get("instructions", ())), vendor=vendor)
    return Device(
        id="cpu",
        vendor="unknown",
        name=row["machine"]["cpu"],
        kind="cpu",
        memory_bytes=MEMORY_BYTES,
        memory_bytes_per_s=best["host_memory_bandwidth"],
        peak_flops=tuple(rates.items()),
        vector_flops=tuple(compute_lane_flops(cpu, rates).items()),
        basis="measured",
    )


def describe_run(row: dict) -> Execution:
    packed = row["weights"] if row["weights"].startswith("int") else "none"
    engine, best = ENGINES.get(row["engine"], row["engine"]), row["machine"]["best"]
    return Execution(
        mode="infer",
        engine=engine,
        weights_dtype="float32" if packed != "none" else row["weights"],
        quant=packed,
        cache="static",
        packed_cache_dtype="bfloat16" if engine == "openvino-genai" and best["bf16"] > best["fp32"] else None,
        packed_copies=2.0 if engine == "ctranslate2" and "Intel" in row["machine"]["cpu"] else 1.0,
        direct_step=row.get("step") == "direct",
        seq_len=PROMPT,
        new_tokens=row["new_tokens"],
        threads=row["machine"]["threads"],
    )


def list_figures(row: dict) -> Iterator[Figure]:
    cost = CostModel(
        describe_machine(row),
        describe_shape(row["model"]),
        device_memory_bytes=MEMORY_BYTES,
        cpu_budget=row["machine"]["threads"],
    )
    run, best = describe_run(row), row["best"]
    yield Figure(row, "decode", best["decode_tokens_per_s"], 1 / cost.estimate(run).seconds_per_token)
    together = cost.estimate(run.but(micro_batch=PROMPTS))
    yield Figure(row, "decode of 8", best["decode_together_tokens_per_s"], PROMPTS / together.seconds_per_token)
    prompt = cost.estimate(run.but(seq_len=PREFILL))
    yield Figure(row, "prompt", best["prefill_tokens_per_s"], PREFILL / prompt.ttft_seconds)
    if "peak_gib" not in best:  # memory was not measured
        return
    beside = 0.0 if "instructions" in row["machine"] else IN_ONE_PROCESS.get(row["engine"], 0.0)
    yield Figure(row, "memory", row["peak_gib_of_one_prompt"] + beside, estimate_memory_gib(cost, run))
    longer = run.but(seq_len=PREFILL, micro_batch=1)
    yield Figure(row, "longer memory", best["peak_gib"] + beside, estimate_memory_gib(cost, longer))


def estimate_memory_gib(cost: CostModel, run: Execution) -> float:
    """With all rows of keys and values, where an engine writes them as it starts."""
    estimate = cost.estimate(run)
    if not (slots := cost.compute_slots_gib(run.but(micro_batch=PROMPTS), CONTEXT)):
        return estimate.peak_memory_gib
    return estimate.peak_memory_gib + slots - next(item.value for item in estimate.memory if item.name == "kv cache")


def show_figures(rows: list[dict]) -> None:
    """Measured, predicted, and how far from it: tokens per second, and GiB."""
    figures = [figure for row in rows for figure in list_figures(row)]
    print(f"{'':46}{'':13}{'measured':>9}{'predicted':>10}")
    for figure in figures:
        name = " ".join(figure.row[key] for key in ("model", "engine", "weights"))
        print(f"{name:46}{figure.what:13}{figure.measured:9.2f}{figure.predicted:10.2f}{figure.error:9.0%}")
    for what in dict.fromkeys(figure.what for figure in figures):
        errors = sorted(abs(figure.error) for figure in figures if figure.what == what)
        within = sum(error <= 0.15 for error in errors)
        print(
            f"{what}: median {statistics.median(errors):.0%}, most {errors[-1]:.0%}, {within} of {len(errors)} within 15 %"
        )


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    show_figures(json.loads(path.read_text(encoding="utf-8"))["rows"])


if __name__ == "__main__":
    main()
