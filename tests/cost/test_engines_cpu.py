"""Engines on a CPU: what the cost model says of each configuration that was measured (benchmarks/results/engines_cpu.json)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.engine_errors import RESULTS, Figure, describe_machine, describe_run, describe_shape, list_figures
from benchmarks.engines import time_answer
from generator.cost import CostModel

ZEN5 = RESULTS.with_name("engines_cpu_zen5.json")
AVX2 = RESULTS.with_name("engines_cpu_avx2.json")
AMX = RESULTS.with_name("engines_cpu_amx.json")
SPEEDS = ("decode", "decode of 8", "prompt")


def read_rows(path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["rows"]


def list_all(rows: list[dict]) -> list[Figure]:
    return [figure for row in rows for figure in list_figures(row)]


ROWS = read_rows(RESULTS)
FIGURES = list_all(ROWS)
FIGURES_OF_ZEN5 = list_all(read_rows(ZEN5))
FURTHER = {
    ("smollm2-135m", "ctranslate2", "int8", "decode of 8"): 0.3,
    ("llama-87m", "onnxruntime-genai", "int4", "decode of 8"): 0.25,
}
"""Speeds that are further off than 20 %; all others are within. CTranslate2 in 8 bits is slow with SmolLM2's narrow products."""
FURTHER_ON_ZEN5 = {
    # what Python takes of a step is priced as on Zen 4
    ("smollm2-135m", "transformers", "bfloat16", "decode"): 0.4,
    # slower with some widths than with smaller and larger ones; taken on request alone
    ("llama-87m", "ctranslate2", "float32", "prompt"): 0.45,
    ("qwen2.5-0.5b", "ctranslate2", "int8", "prompt"): 0.75,
    ("llama-87m", "ctranslate2", "int8", "decode of 8"): 0.21,
    ("smollm2-135m", "ctranslate2", "int8", "decode"): 0.21,
}
MEMORY_FURTHER = {
    ("smollm2-135m", "ctranslate2", "int8"): 0.18,
    ("llama-87m", "ctranslate2", "int8"): 0.16,
    # its cache is touched block by block, in the order of their use: after three rounds more of it than one prompt fills
    ("smollm2-135m", "openvino-genai", "float32"): 0.17,
    ("llama-87m", "openvino-genai", "float32"): 0.21,
    ("llama-87m", "openvino-genai", "int8"): 0.2,
    ("llama-87m", "openvino-genai", "int4"): 0.23,
}


def name_figure(figure: Figure) -> str:
    return "-".join((figure.row["model"], figure.row["engine"], figure.row["weights"], figure.what))


@pytest.mark.parametrize("figure", [f for f in FIGURES if f.what in SPEEDS], ids=name_figure)
def test_speed_on_a_cpu_is_predicted(figure):
    name = (figure.row["model"], figure.row["engine"], figure.row["weights"], figure.what)
    assert abs(figure.error) < FURTHER.get(name, 0.2)


@pytest.mark.parametrize("figure", [f for f in FIGURES_OF_ZEN5 if f.what in SPEEDS], ids=name_figure)
def test_speed_on_a_wider_cpu_is_predicted(figure):
    """Two threads of Zen 5, at rest, by the same figures as Zen 4. When what a thread reads was a number of bytes and not a share of
    what it copies: 6 of 39 speeds of decoding within 15 %, 34 now."""
    name = (figure.row["model"], figure.row["engine"], figure.row["weights"], figure.what)
    assert abs(figure.error) < FURTHER_ON_ZEN5.get(name, 0.205)


@pytest.mark.parametrize("path", (RESULTS, ZEN5, AMX), ids=lambda path: path.stem)
def test_most_speeds_are_within_15_percent(path):
    figures = list_all(read_rows(path))
    for what, least in {"decode": 0.85, "decode of 8": 0.73, "prompt": 0.84}.items():
        errors = [abs(figure.error) for figure in figures if figure.what == what]
        assert sum(error < 0.15 for error in errors) >= least * len(errors), what


WITHOUT_VNNI = [row for row in read_rows(AVX2) if row["machine"]["threads"] == 1]
OTHERS = [f for f in list_all(WITHOUT_VNNI) if f.what in SPEEDS]


@pytest.mark.parametrize("figure", OTHERS, ids=name_figure)
def test_speed_on_a_cpu_without_vnni_is_predicted(figure):
    """One thread of Zen 3, beside other work: products of 8 bits had been priced as those of VNNI are, 1.3 to 1.8 times too fast."""
    further = {("llama-cpp", "float32", "prompt"): 0.4}
    assert abs(figure.error) < further.get((figure.row["engine"], figure.row["weights"], figure.what), 0.32)


WITH_TILES = list_all(read_rows(AMX))
FURTHER_WITH_TILES = {
    ("smollm2-135m", "ctranslate2", "int8", "decode of 8"): 0.47,
    ("qwen2.5-0.5b", "ctranslate2", "int8", "decode of 8"): 0.25,
    ("qwen2.5-0.5b", "llama-cpp", "int4", "decode"): 0.21,
    ("qwen2.5-0.5b", "openvino-genai", "int8", "prompt"): 0.19,
    ("llama-87m", "ctranslate2", "int8", "memory"): 0.26,
    ("llama-87m", "ctranslate2", "int8", "longer memory"): 0.34,
    # blocks of its cache, as in MEMORY_FURTHER
    ("llama-87m", "openvino-genai", "float32", "longer memory"): 0.21,
    ("llama-87m", "openvino-genai", "int4", "longer memory"): 0.23,
}


@pytest.mark.parametrize("figure", WITH_TILES, ids=name_figure)
def test_speed_and_memory_with_tiles_are_predicted(figure):
    """Two threads of a Xeon with AMX, at rest. Without rates of its own: prompts up to 3.2 times too fast, 11 of 42 within 15 %; half of
    the tiles' bf16 was taken for float32, which engines without tiles compute in."""
    name = (figure.row["model"], figure.row["engine"], figure.row["weights"], figure.what)
    assert abs(figure.error) < FURTHER_WITH_TILES.get(name, 0.19 if figure.what.endswith("memory") else 0.165)


@pytest.mark.parametrize("path", (RESULTS, ZEN5, AMX), ids=lambda path: path.stem)
def test_the_engine_that_is_taken_is_nearly_the_fastest(path):
    """Of those in the format that is asked for, within a tenth, or an eighth (Qwen2.5's shape in float32 on Zen 5)."""
    rows = read_rows(path)
    for model, weights in {(row["model"], row["weights"]) for row in rows}:
        measured, predicted = {}, {}
        for row in rows:
            # llama.cpp reads prompts three times as slowly, CTranslate2 is taken on request alone
            if (row["model"], row["weights"]) == (model, weights) and row["engine"] not in ("ctranslate2", "llama-cpp"):
                expected = {figure.what: figure.predicted for figure in list_figures(row)}
                rates = {"decode_tokens_per_s": expected["decode"], "prefill_tokens_per_s": expected["prompt"]}
                measured[row["engine"]], predicted[row["engine"]] = time_answer(row["best"]), time_answer(rates)
        taken = min(predicted, key=lambda engine: predicted[engine])
        assert measured[taken] <= 1.125 * min(measured.values()), (model, weights, measured, predicted)


@pytest.mark.parametrize("figure", [f for f in FIGURES if f.what.endswith("memory")], ids=name_figure)
def test_memory_on_a_cpu_is_predicted(figure):
    name = (figure.row["model"], figure.row["engine"], figure.row["weights"])
    assert abs(figure.error) < MEMORY_FURTHER.get(name, 0.15)


def test_a_checkpoint_that_is_cast_fills_no_more_than_there_is():
    """Its pages are the system's to take back: a model that fits without them fits."""
    row = next(row for row in ROWS if (row["engine"], row["weights"]) == ("transformers", "bfloat16"))
    run, shape = describe_run(row), describe_shape(row["model"])
    for memory in (24 << 30, 1 << 30, 1000 << 20):
        estimate = CostModel(describe_machine(row), shape, device_memory_bytes=memory, cpu_budget=1).estimate(run)
        assert estimate.fits and {item.name for item in estimate.memory} >= {"weights", "interpreter"}
    assert not CostModel(describe_machine(row), shape, device_memory_bytes=700 << 20, cpu_budget=1).estimate(run).fits


def test_packed_weights_of_openvino_are_slower_than_those_of_onnx_runtime():
    """35.1, 48.1 and 42.6 tokens/s of SmolLM2-135M in 32, 8 and 4 bits, and 36.2, 86.2 and 124 (this project, two AVX2 cores)."""
    row = next(row for row in ROWS if (row["engine"], row["weights"]) == ("openvino-genai", "float32"))
    machine = describe_machine(row)
    fp32 = tuple(rate for rate in machine.peak_flops if rate[0] == "fp32")
    machine = replace(machine, peak_flops=fp32, memory_bytes_per_s=25e9)  # as its 35.1 tokens/s in 32 bits need
    cost = CostModel(machine, describe_shape(row["model"]), device_memory_bytes=24 << 30, cpu_budget=1)

    def time_token(engine: str, quant: str) -> float:
        return cost.estimate(describe_run(row).but(engine=engine, quant=quant)).seconds_per_token

    openvino = [time_token("openvino-genai", quant) for quant in ("none", "int8", "int4")]
    assert 1.2 < openvino[0] / openvino[1] < 1.7 and 1.0 < openvino[0] / openvino[2] < 1.7
    assert time_token("onnxruntime-genai", "int4") < time_token("onnxruntime-genai", "int8") < openvino[1]


def test_a_compiled_step_gains_what_it_did():
    """1.16 to 1.26 times, SmolLM2-135M in float32 against eager decoding (this project, two cores)."""
    row = next(row for row in ROWS if (row["engine"], row["weights"]) == ("transformers", "float32"))
    cost = CostModel(describe_machine(row), describe_shape(row["model"]), device_memory_bytes=24 << 30, cpu_budget=1)
    run = describe_run(row).but(direct_step=False)
    eager, compiled = (cost.estimate(run.but(compile=how)).seconds_per_token for how in (None, "default"))
    assert 1.16 < eager / compiled < 1.26
    prompts = [cost.estimate(run.but(compile=how)).ttft_seconds for how in (None, "default")]
    assert prompts[0] == prompts[1]
