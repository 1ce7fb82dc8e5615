"""``perfgen estimate``: every row of a table is answered, with a cost or with why not."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from generator.cli import perfgen
from generator.cost.memory import compute_training_moments
from generator.cost.shape import build_shape
from generator.cost.static_memory import compute_static_memory
from generator.errors import DestinationError, SourceError
from generator.estimate import rows as reader
from generator.estimate.table import ADDED, Uncostable, estimate_table, read_row

MEASURED = Path(__file__).resolve().parents[2] / "../shared/measured"
needs_tables = pytest.mark.skipif(
    not MEASURED.is_dir(), reason="the measured tables lie beside the repository, not in it"
)

ROW = {
    "phase": "train",
    "model": "example-7b",
    "params_b": "6.738",
    "n_layers": "32",
    "hidden": "4096",
    "ffn_hidden": "11008",
    "n_heads": "32",
    "n_kv_heads": "32",
    "vocab": "32000",
    "device": "a100-sxm-80gb",
    "device_memory_gb": "80",
    "weights_dtype": "bfloat16",
    "autocast_dtype": "none",
    "strategy": "none",
    "dp": "1",
    "micro_batch": "4",
    "grad_accum": "1",
    "seq_len": "1024",
    "activation_checkpointing": "full",
    "attention": "flash_attention_2",
    "optimizer": "adamw",
    "train": "full",
    "quant": "none",
    "oom": "false",
}


def write(path: Path, rows: list[dict]) -> Path:
    columns = sorted({key for row in rows for key in row})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def answers(tmp_path: Path, rows: list[dict]) -> list[dict]:
    out = tmp_path / "out.csv"
    estimate_table(write(tmp_path / "in.csv", rows), out)
    with out.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_gets_all_columns(tmp_path):
    (answer,) = answers(tmp_path, [ROW])
    assert answer["error"] == ""
    assert float(answer["predicted_peak_mem_gb"]) == pytest.approx(8 * 6.738, rel=0.05)
    assert float(answer["predicted_tokens_per_s_per_gpu"]) > 1000
    assert answer["predicted_fits"] == "true"
    assert answer["basis"] in ("derived", "published", "measured", "assumed")


BAD = [
    ({"device": ""}, "device is not stated"),
    ({"device": "b9000"}, "not in the catalogue"),
    ({"device": "8x H20"}, "not in the catalogue"),
    ({"device": "h100-mig-1g.10gb"}, "not in the catalogue"),
    ({"precision_text": "posit8", "weights_dtype": ""}, "posit8"),
    ({"phase": "dance"}, "phase"),
    ({"n_layers": ""}, "n_layers is not stated"),
    ({"n_layers": "many"}, "not a number"),
    ({"hidden": "-3"}, "out of range"),
    ({"micro_batch": "nan"}, "micro_batch"),
    ({"seq_len": "inf"}, "seq_len"),
    ({"pp": "1.5"}, "pp is no whole number"),
    ({"n_layers": "31.5"}, "n_layers is no whole number"),
    ({"seq_len": ""}, "seq_len is not stated"),
    ({"seq_len": "4,0"}, "seq_len is not a number"),
    ({"micro_batch": "4k"}, "micro_batch is not a number"),
    ({"quant": "telepathy"}, "telepathy"),
    ({"weights_dtype": "int3"}, "int3"),
    ({"optimizer": "magic"}, "magic"),
    ({"strategy": "hope"}, "hope"),
    ({"train": "other"}, "other"),
    ({"params_b": "seven"}, "params_b"),
    ({"params_b": "-1"}, "params_b"),
    ({"device_memory_gb": "lots"}, "device_memory_gb"),
]


@pytest.mark.parametrize(("change", "why"), BAD, ids=[next(iter(c)) + "=" + next(iter(c.values())) for c, _ in BAD])
def test_a_bad_row_says_why_and_stops_nothing(tmp_path, change, why):
    first, second = answers(tmp_path, [{**ROW, **change}, ROW])
    assert why in first["error"]
    assert first["predicted_fits"] == ""
    assert second["error"] == ""


def test_a_mean_batch_of_less_than_one_sequence_is_one(tmp_path):
    """It was rounded to none, and the table ended in a division by it."""
    answer = answers(tmp_path, [{**ROW, "micro_batch": "0.5"}])
    assert answer == answers(tmp_path, [{**ROW, "micro_batch": "0.5"}]) and answer[0]["error"] == ""
    assert (
        answer[0]["predicted_peak_mem_gb"]
        == answers(tmp_path, [{**ROW, "micro_batch": "1"}])[0]["predicted_peak_mem_gb"]
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"seq_len": "4k"}, {"seq_len": "4096"}),
        ({"seq_len": "131,072"}, {"seq_len": "131072"}),
        ({"phase": "Pre-training"}, {}),
        ({"optimizer": "PagedAdamW8bit"}, {"optimizer": "paged-adamw-8bit"}),
    ],
)
def test_numbers_and_words_as_tables_write_them(written, read):
    assert read_row(ROW | written) == read_row(ROW | read)


@pytest.mark.parametrize(
    ("model", "device", "known", "as_known"),
    [
        ("Llama-2-7B", "A100-40G", "meta-llama/Llama-2-7b-hf", "a100-sxm-40gb"),
        ("LLAMA3-8B", "H100 80GB HBM3", "meta-llama/Meta-Llama-3-8B", "h100-sxm-80gb"),
        ("Llama3.1 8B", "DGX-H100", "meta-llama/Llama-3.1-8B", "h100-sxm-80gb"),
    ],
)
def test_names_as_tables_write_them_are_the_catalogue_s(model, device, known, as_known):
    sizes = {"n_layers": "", "device_memory_gb": ""}
    row, same = (read_row({**ROW, **sizes, "model": m, "device": d}) for m, d in ((model, device), (known, as_known)))
    assert row.device == same.device and replace(row.spec, name="") == replace(same.spec, name="")


def test_columns_that_are_missing_altogether(tmp_path):
    (answer,) = answers(tmp_path, [{"phase": "train", "model": "x"}])
    assert answer["error"]


def test_a_table_that_excel_wrote_begins_with_its_first_column(tmp_path):
    path = write(tmp_path / "in.csv", [ROW])
    path.write_text(path.read_text(encoding="utf-8"), encoding="utf-8-sig")
    first, *_ = estimate_table(path, tmp_path / "out.csv")
    assert not first["error"] and not any(name.startswith("\ufeff") for name in first)
    assert not (tmp_path / "out.csv").read_text(encoding="utf-8").startswith("\ufeff")


def test_a_short_line_and_a_long_line(tmp_path):
    path = write(tmp_path / "in.csv", [ROW])
    with path.open("a", encoding="utf-8") as file:
        file.write("only,three,cells\n" + ",".join(["x"] * 60) + "\n")
    assert sum(not row["error"] for row in estimate_table(path, tmp_path / "out.csv")) == 1


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00bad", b"a,b\n1,2\n"])
def test_a_table_that_cannot_be_read_is_the_users_error(tmp_path, content):
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError):
        estimate_table(path, tmp_path / "out.csv")


def test_a_missing_table_is_the_users_error(tmp_path):
    with pytest.raises(SourceError):
        estimate_table(tmp_path / "no.csv", tmp_path / "out.csv")


def test_an_answer_that_cannot_be_written_is_the_users_error(tmp_path):
    with pytest.raises(DestinationError):
        estimate_table(write(tmp_path / "in.csv", [ROW]), tmp_path / "no" / "folder" / "out.csv")


def test_progress_is_told(tmp_path):
    lines = []
    bad = {**ROW, "device": ""}
    estimate_table(write(tmp_path / "in.csv", [ROW, bad]), tmp_path / "out.csv", lines.append)
    assert lines == ["2 of 2 rows, 1 costed"]


def test_a_checkpoint_that_is_called_gptq_is_quantized():
    row = read_row({**ROW, "model": "someone/Model-7B-GPTQ", "phase": "infer", "out_len": "8", "in_len": "8"})
    assert row.execution.quant == "gptq-4bit"


@pytest.mark.parametrize(
    ("stated", "micro_batch", "accumulation"),
    [
        ({"dp": "4", "global_batch": "64", "micro_batch": "2"}, 2, 8),
        ({"dp": "4", "global_batch": "64", "grad_accum": "4"}, 4, 4),
        ({"dp": "4", "global_batch": "64"}, 16, 1),
        ({"dp": "4", "pp": "8", "global_batch": "64"}, 1, 16),
        ({"dp": "4", "pp": "8", "micro_batch": "2"}, 2, 1),
    ],
)
def test_a_global_batch_is_divided(stated, micro_batch, accumulation):
    run = read_row({**ROW, "micro_batch": "", "grad_accum": "", **stated}).execution
    assert (run.micro_batch, run.accumulation) == (micro_batch, accumulation)


@pytest.mark.parametrize(("dtype", "bytes_per_param"), [("float16", 20), ("bfloat16", 18)])
@pytest.mark.parametrize("dp", [1, 4])
def test_megatron_keeps_masters_and_their_gradients_on_every_copy(dtype, bytes_per_param, dp):
    """Megatron-LM's Float16OptimizerWithFloat16Params: 16-bit weights, float32 weights and two moments (2 + 12 bytes), gradients
    of fp16 in 16 bits and cast for the update (2 + 4), those of bf16 summed in float32 (4)."""
    row = {**ROW, "framework": "megatron", "weights_dtype": dtype, "strategy": "tensor_pipeline_data", "dp": str(dp)}
    run = read_row({**row, "tp": "2", "grad_accum": "8"})
    static = compute_static_memory(build_shape(run.spec, run.task, 0), run.execution)
    held = static.weights + static.gradients + static.states + static.step_temporary
    assert held == pytest.approx(bytes_per_param * run.spec.params / 2)


def test_tensor_parts_repeat_hidden_states_before_sequence_parallelism():
    """Of a block's 34 bytes per hidden element 10 are every part's (arXiv 2205.05198, equation 2)."""
    row = {**ROW, "tp": "4", "strategy": "tensor_pipeline_data", "activation_checkpointing": "none"}
    old = read_row({**row, "framework": "megatron-deepspeed"})
    new = replace(old.execution, sequence_parallel=True)
    shape = build_shape(old.spec, old.task, 0)
    kept = [
        compute_training_moments(shape, run, compute_static_memory(shape, run))["last block"]["kept activations"]
        for run in (old.execution, new)
    ]
    assert kept[0] - kept[1] == pytest.approx(10 * 4096 * 32 * 4 * 1024 * 3 / 4)


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ({"weights_dtype": "float32", "precision_text": "amp"}, ("float32", "float16")),
        ({"weights_dtype": "float32", "precision_text": "bf16 mixed (fp32 params)"}, ("float32", "bfloat16")),
        ({"weights_dtype": "float32", "precision_text": "fp8 mixed (fp32 params)"}, ("float32", "float8")),
        ({"weights_dtype": "float32", "precision_text": "fp32"}, ("float32", None)),
        ({"weights_dtype": "float32", "autocast_dtype": "none", "precision_text": "amp"}, ("float32", None)),
        ({"weights_dtype": "", "precision_text": "16-mixed"}, ("float32", "float16")),
        ({"weights_dtype": "", "precision_text": "32-true"}, ("float32", None)),
        ({"weights_dtype": "", "precision_text": "float16 AMP"}, ("float32", "float16")),
        ({"weights_dtype": "", "precision_text": "BFloat16 mixed"}, ("float32", "bfloat16")),
        ({"weights_dtype": "", "precision_text": "bf16-true"}, ("bfloat16", None)),
    ],
)
def test_a_dtype_of_storage_alone_does_not_hide_mixed_precision(stated, read):
    run = read_row({**ROW, "autocast_dtype": "", **stated}).execution
    assert (run.weights_dtype, run.autocast_dtype) == read


@pytest.mark.parametrize(
    ("stated", "targets"),
    [
        ({}, ("q_proj", "v_proj")),
        ({"model": "bigscience/bloom-7b1"}, ("query_key_value",)),
        ({"peft_text": "lora(r=8,q+k+v)"}, ("q_proj", "k_proj", "v_proj")),
        ({"peft_text": "lora(r=8,ALL linear)"}, "all-linear"),
        ({"framework": "torchtune"}, "all-linear"),
        ({"lora_targets": "o_proj"}, ("o_proj",)),
    ],
)
def test_unstated_lora_targets_are_those_of_peft(stated, targets):
    assert read_row({**ROW, "train": "lora", **stated}).execution.lora_targets == targets


FOUR = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize(
    ("written", "targets"),
    [
        ("all-linear", "all-linear"),
        ("All_Linear", "all-linear"),
        ("q_proj,v_proj", ("q_proj", "v_proj")),
        ("['q_proj', \"v_proj\"]", ("q_proj", "v_proj")),
        ("q+v", ("q", "v")),
        ("q_proj; k_proj; v_proj; o_proj", FOUR),
        ("attention", FOUR),
        ("attn+mlp", (*FOUR, "gate_proj", "up_proj", "down_proj")),
        ("self_attn.q_proj self_attn.v_proj", ("q_proj", "v_proj")),
        ("c_attn c_proj", ("c_attn", "attn.c_proj", "mlp.c_proj")),
        ("Wqkv", ("Wqkv",)),
    ],
)
def test_lora_targets_are_read_as_people_write_them(written, targets):
    assert read_row({**ROW, "train": "lora", "lora_targets": written}).execution.lora_targets == targets


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ("lora_targets", "q_porj"),
        ("lora_targets", "lm_head"),
        ("lora_targets", "q_proj,frob"),
        ("padding_free", "frob"),
    ],
)
def test_a_word_that_nothing_reads_is_refused_by_its_column(column, word):
    with pytest.raises(Uncostable, match=column):
        read_row({**ROW, "train": "lora", column: word})


def test_targets_that_the_model_has_not_are_refused():
    gpt2 = {**ROW, "model": "openai-community/gpt2", "train": "lora", "lora_targets": "gate_proj"}
    with pytest.raises(Uncostable, match="none of these"):
        read_row(
            {**gpt2, "params_b": "0.124", "n_layers": "12", "hidden": "768", "ffn_hidden": "3072", "n_heads": "12"}
        )


def test_all_linears_are_adapted_however_they_are_named():
    """A comma and a blank, a word and its seven projections, are one cost."""
    written = ("all-linear", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "attn mlp")
    trained = []
    for text in (*written, "q_proj,v_proj"):
        row = read_row({**ROW, "train": "lora", "lora_rank": "64", "lora_targets": text})
        trained.append(compute_static_memory(build_shape(row.spec, row.task, 0), row.execution).trained)
    assert trained[0] == trained[1] == trained[2] > trained[3] > 0


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "gemma", "bloom", "falcon", "gpt_neox"])
def test_pefts_own_defaults(model_type):
    """peft.utils.constants, as PEFT is installed."""
    constants = pytest.importorskip("peft.utils.constants")
    known = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[model_type]
    assert read_row({**ROW, "train": "lora", "model": model_type}).execution.lora_targets == tuple(known)


@pytest.mark.parametrize(
    ("stated", "bytes_per_s"),
    [
        ({}, None),
        ({"network_gbit_s": "800"}, 100e9),
        ({"notes": "4x100Gb RoCE per node"}, 50e9),
        ({"notes": "a x 100Gb", "group": "internlm/tp1"}, 50e9),
    ],
)
def test_the_network_of_a_node_is_read(stated, bytes_per_s):
    assert read_row({**ROW, **stated}).network_bytes_per_s == bytes_per_s


def test_a_slower_network_makes_the_row_slower(tmp_path):
    nodes = {**ROW, "nodes": "4", "gpus_per_node": "8", "dp": "32", "strategy": "zero1"}
    rows = [{**nodes, "network_gbit_s": rate} for rate in ("1600", "100")]
    fast, slow = estimate_table(write(tmp_path / "in.csv", rows), None)
    assert slow["predicted_tokens_per_s_per_gpu"] < 0.9 * fast["predicted_tokens_per_s_per_gpu"]


QLORA = {**ROW, "train": "lora", "quant": "bnb-nf4", "activation_checkpointing": "none"}


@pytest.mark.parametrize(
    ("stated", "keeps"),
    [
        ({"software_date": "2024-06"}, "inputs"),
        ({"software_date": "2024-09"}, ""),
        ({"framework": "litgpt 8641822, torch 2.1.0, bnb 0.41.1"}, "inputs"),
        ({"quant": "gptq-4bit", "framework": "HF Trainer (optimum-benchmark)"}, "weights"),
        ({"quant": "gptq-4bit", "software_date": "2024-06"}, ""),
        ({"train": "full", "quant": "none", "software_date": "2024-06"}, ""),
    ],
)
def test_what_packed_products_kept_by_date(stated, keeps):
    assert read_row({**QLORA, **stated}).execution.packed_keeps == keeps


def sum_moment(row: dict, moment: str) -> float:
    case = read_row(row)
    shape = build_shape(case.spec, case.task, 0)
    static = compute_static_memory(shape, case.execution)
    return sum(compute_training_moments(shape, case.execution, static)[moment].values())


def test_bitsandbytes_kept_the_inputs_of_its_products():
    """Of every block: both norms' outputs and the product of gate and up, in 16 bits."""
    before, after = (sum_moment({**QLORA, "software_date": date}, "loss") for date in ("2024-06", "2024-09"))
    assert before - after == pytest.approx(4 * 1024 * 32 * 2 * (2 * 4096 + 11008))


def test_auto_gptq_without_kernels_keeps_unpacked_weights():
    row = {**QLORA, "quant": "gptq-4bit"}
    stock = sum_moment({**row, "framework": "HF Trainer (optimum-benchmark)"}, "loss")
    assert stock - sum_moment(row, "loss") == pytest.approx(2 * 32 * (4 * 4096**2 + 3 * 4096 * 11008))


def test_fabric_sums_gradients_of_frozen_weights_on_every_device():
    """litgpt's fine-tuning of Llama-2-7B on 2 devices takes 22.18 GB (torch.cuda.max_memory_allocated): 6.7 of weights, 13.5 of
    gradients that were never reduced."""
    row = {
        **ROW,
        "train": "lora",
        "dp": "2",
        "strategy": "fsdp_full_shard",
        "grad_accum": "64",
        "micro_batch": "1",
        "seq_len": "1304",
    }
    fabric = {**row, "framework": "litgpt 8641822, torch 2.1.0", "peft_text": "lora(r=8,q+v)", "lora_rank": "8"}
    assert sum_moment(fabric, "last block") == pytest.approx(22.18e9, rel=0.02)
    assert sum_moment(row, "last block") < 10e9


def test_eager_attention_keeps_copies_beside_the_cache_that_is_returned():
    """Traced with Transformers 4.35.2 and PEFT 0.6.2: 16 bits of keys and of values more per block until the output is let go."""
    row = {
        **ROW,
        "train": "lora",
        "activation_checkpointing": "none",
        "framework": "HF Trainer",
        "software_date": "2023-12",
    }
    kept = [
        sum_moment({**row, **other}, "loss")
        for other in ({"attention": "eager"}, {"attention": "eager", "framework": "other"})
    ]
    assert kept[0] - kept[1] == pytest.approx(4 * 1024 * 32 * 2 * 2 * 4096)
    assert sum_moment(row, "loss") == sum_moment({**row, "framework": "other"}, "loss")


def test_flagperf_divides_its_optimizer():
    """Its Llama-2-7B takes 67.6 GB of each of 8 boards: 16 bytes a parameter would be 107."""
    row = {**ROW, "strategy": "tensor_pipeline_data", "dp": "8", "framework": "megatron-deepspeed"}
    assert read_row({**row, "group": "flagperf/llama2_7b-megatron-deepspeed"}).execution.strategy == "zero1"
    assert read_row(row).execution.strategy == "undivided_masters"


def test_megatron_of_before_pytorch_1_12_multiplies_float32_in_tf32():
    """FlagPerf's GPT-2 of 345M in float32 trains at 14,541 tokens/s on an A100, 31 TFLOP/s of 19.5."""
    row = {**ROW, "weights_dtype": "float32"}
    assert read_row({**row, "framework": "megatron"}).execution.tf32 and not read_row(row).execution.tf32


def test_shards_of_a_group_are_averaged_with_those_of_the_others(tmp_path):
    """ZeRO within nodes sends across them a part of the gradients only, and no weights."""
    row = {**ROW, "dp": "64", "nodes": "8", "gpus_per_node": "8", "strategy": "zero1", "network_gbit_s": "100"}
    of_all, of_eight = estimate_table(
        write(tmp_path / "in.csv", [row | {"parallelism_text": f"zero=1(shard group {n})"} for n in ("all", "8")]), None
    )
    assert of_eight["predicted_tokens_per_s_per_gpu"] > of_all["predicted_tokens_per_s_per_gpu"]
    assert of_eight["predicted_peak_mem_gb"] > of_all["predicted_peak_mem_gb"]


SERVED = {**ROW, "phase": "infer", "micro_batch": "1", "out_len": "64", "in_len": "32"}


def test_unstated_batch_and_lengths_of_a_served_batch_are_refused():
    with pytest.raises(Uncostable, match="length"):
        read_row({**ROW, "phase": "infer", "micro_batch": "8"})
    with pytest.raises(Uncostable, match="batch"):
        read_row({**SERVED, "micro_batch": ""})
    # one sequence's speed hardly depends on them, unless the prompt's time is in it
    alone = {**SERVED, "in_len": "", "out_len": ""}
    assert read_row(alone).execution.new_tokens
    with pytest.raises(Uncostable, match="prompt's time"):
        read_row({**alone, "notes": "5-20 new tokens, includes prefill"})


@pytest.mark.parametrize(
    ("change", "engine", "quant"),
    [
        ({"framework": "HF transformers generate", "quant": "int4"}, "", "nf4"),
        ({"framework": "llama.cpp (May 2024)", "quant": "gguf-Q4_K_M"}, "llama-cpp", "gguf-4bit"),
        ({"framework": "llama.cpp", "quant": "int8"}, "llama-cpp", "gguf-8bit"),
        ({"framework": "gpt-fast (torch.compile)", "quant": "int4wo-g32"}, "gpt-fast", "torchao-int4-g32"),
        ({"framework": "TensorRT-LLM 1.0", "quant": "fp8"}, "tensorrt-llm", "float8"),
        ({"framework": "vLLM", "quant": "awq"}, "vllm", "gptq-4bit"),
        ({"framework": "vLLM 0.9.1", "software_date": "2025-06"}, "vllm-0.8", "none"),
        ({"framework": "vLLM", "software_date": "2024-10"}, "vllm-0.6", "none"),
        ({"framework": "vLLM", "software_date": "2023-09"}, "vllm-0", "none"),
    ],
)
def test_engine_and_format_in_the_words_of_the_source(change, engine, quant):
    run = read_row({**SERVED, **change}).execution
    assert (run.engine, run.quant) == (engine, quant)


def test_full_load_is_as_many_requests_as_the_cache_holds():
    row = {**SERVED, "micro_batch": "", "in_len": "1000", "out_len": "24", "framework": "TensorRT-LLM"}
    run = read_row({**row, "notes": "at max throughput; batch unconstrained"}).execution
    cached = 2 * 32 * 32 * 128 * 2 * 1024
    left = 0.99 * 80 * 2**30 * 0.9 - 2 * 6.738e9
    assert run.continuous and 0.9 * left / cached < run.micro_batch < left / cached


def test_a_server_of_another_maker_holds_its_own_runtime_beside_the_cache():
    """An MI300X was counted with CUDA's context: a tight board holds fewer requests beside ROCm's."""
    row = {
        **SERVED,
        "micro_batch": "",
        "in_len": "1000",
        "out_len": "24",
        "notes": "at max throughput",
        "device_memory_gb": "17",
    }
    nvidia, amd = (read_row({**row, "device": name}).execution.micro_batch for name in ("h100-sxm-80gb", "mi300x"))
    assert amd < nvidia


def test_experts_in_the_words_of_the_source():
    spec = read_row({**SERVED, "params_b": "46.703", "notes": "MoE, 2 of 8 experts active", "ffn_hidden": "14336"}).spec
    assert (spec.experts, spec.experts_per_token) == (8, 2)


def test_kernels_without_a_formula_are_refused():
    with pytest.raises(Uncostable, match="cuda-old"):
        read_row({**SERVED, "quant": "gptq-4bit", "quant_text": "gptq-int4 cuda-old"})


AIMS = {
    "mem_median": 0.03,
    "mem_p95": 0.10,
    "false_fit": 0.01,
    "false_refuse": 0.02,
    "tput_median": 0.10,
    "tput_p95": 0.30,
    "regret_mean": 0.02,
    "regret_p95": 0.08,
}


@needs_tables
def test_the_measured_tables_are_met(tmp_path):
    """All five tables together, by the tables' own scorer."""
    loader = importlib.util.spec_from_file_location("score", MEASURED / "score.py")
    scorer = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(scorer)
    truth, predicted = [], []
    for table in sorted(MEASURED.glob("*.csv")):
        out = tmp_path / table.name
        estimate_table(table, out)
        for path, rows in ((table, truth), (out, predicted)):
            with path.open(newline="", encoding="utf-8") as file:
                rows += list(csv.DictReader(file))
    result = scorer.score(truth, predicted)
    assert result["costed"] > 0.9
    assert {name: result[name] for name, aim in AIMS.items() if result[name] > aim} == {}
    assert result["rank_corr"] >= 0.95


@needs_tables
def test_every_row_of_every_table_is_answered(tmp_path):
    for table in sorted((MEASURED / "more").glob("*.csv")):
        with table.open(newline="", encoding="utf-8") as file:
            if "phase" not in (csv.DictReader(file).fieldnames or ()):
                continue
        out = tmp_path / table.name
        estimate_table(table, out)
        with out.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                assert row["error"] or all(row[name] for name in ADDED if name != "error")


def test_json_has_the_rows_of_the_table_as_values(tmp_path):
    table, out = write(tmp_path / "in.csv", [ROW, ROW | {"device": "hal9000"}]), tmp_path / "out.csv"
    done = CliRunner().invoke(perfgen, ["estimate", "--cases", str(table), "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["schema"] == 1 and len(told["rows"]) == 2
    estimate_table(table, out)
    for row, line in zip(told["rows"], csv.DictReader(out.open(newline="", encoding="utf-8")), strict=True):
        assert {name: row[name] for name in ROW} == {name: line[name] for name in ROW}
        assert str(row["predicted_fits"]).lower() in (line["predicted_fits"], "none")
        assert (row["predicted_peak_mem_gb"] or 0) == float(line["predicted_peak_mem_gb"] or 0)
        assert (row["error"] or "") == line["error"]
    assert "hal9000" in told["rows"][1]["error"] and told["rows"][0]["predicted_tokens_per_s_per_gpu"] > 0


def test_the_help_names_every_column_that_is_read(tmp_path):
    """Each that a row is asked for, but those that words of others stand for (spellings.toml)."""
    files = sorted(Path(reader.__file__).parent.glob("*.py"))
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    read = set(re.findall(r'get\("([a-z_0-9]+)"|read_[a-z]+\(get, "([a-z_0-9]+)"', source))
    names = {name for pair in read for name in pair if name and not name.startswith("read_")}
    assert len(names) > 35
    text = CliRunner().invoke(perfgen, ["estimate", "--help"]).output
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []
    assert all(name in text for name in ADDED)


def test_without_out_and_json_there_is_nowhere_to_write(tmp_path):
    done = CliRunner().invoke(perfgen, ["estimate", "--cases", str(write(tmp_path / "in.csv", [ROW]))])
    assert done.exit_code == 2 and "--out" in done.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("there", [None, "an earlier table\n"])
def test_a_full_disk_leaves_what_stood_there(tmp_path, monkeypatch, there):
    """Before, the table was cut to nothing first, also where --out is --cases."""
    out = tmp_path / "out.csv"
    if there:
        out.write_text(there)

    open_file = Path.open

    def open_full(self: Path, mode: str = "r", *words, **more):
        file = open_file(self, mode, *words, **more)
        if mode != "xb":
            return file
        file.close()
        return open_file(Path("/dev/full"), "wb")

    cases = write(tmp_path / "in.csv", [ROW])
    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(DestinationError, match="No space left"):
        estimate_table(cases, out)
    assert {p.name for p in tmp_path.iterdir()} == {"in.csv"} | ({"out.csv"} if there else set())
    assert not there or out.read_text() == there


def test_a_row_is_read_as_its_source_says_elsewhere():
    """No forward pass of vTrain's single-node runs is repeated, and the vocabulary is its own, whatever the table says."""
    stated = {**ROW, "vocab": "51200", "activation_checkpointing": "full"}
    corrected = read_row({**stated, "source": "VIA-Research/vTrain@f8dda847:data/ground_truth_single.csv"})
    assert (corrected.execution.checkpoint_every, corrected.spec.vocab) == (0, 50257)
    other = read_row({**stated, "source": "VIA-Research/vTrain@f8dda847:data/ground_truth_multi.csv"})
    assert (other.execution.checkpoint_every, other.spec.vocab) == (1, 51200)


MIXTURE = {
    **ROW,
    "model": "Qwen/Qwen3-30B-A3B",
    "params_b": "30.53",
    "n_layers": "48",
    "hidden": "2048",
    "ffn_hidden": "768",
    "n_kv_heads": "4",
    "vocab": "151936",
    "n_experts": "128",
    "experts_per_token": "8",
    "gpus_per_node": "8",
    "dp": "8",
    "strategy": "zero1",
}


@pytest.mark.parametrize(
    ("stated", "loops"),
    [
        ({}, False),
        ({"framework": "HF Trainer"}, True),
        ({"framework": "HF Trainer", "software_date": "2024-06"}, True),
        ({"framework": "HF Trainer", "software_date": "2026-01"}, False),
        ({"framework": "Megatron Bridge", "software_date": "2024-06"}, False),
        ({"framework": "vLLM", "software_date": "2024-06"}, False),
    ],
)
def test_experts_one_by_one_are_those_of_an_earlier_transformers(stated, loops):
    assert read_row({**MIXTURE, **stated}).execution.expert_loop is loops


def test_experts_over_copies_are_held_once_by_them_together():
    """Megatron-core's expert parallelism: of 8 copies each holds an eighth of the experts, and all of the rest."""
    held = []
    for ep in ("1", "8"):
        row = read_row({**MIXTURE, "ep": ep})
        shape = build_shape(row.spec, row.task, 0)
        held.append(compute_static_memory(shape, row.execution))
    experts = 2 * shape.expert_params * shape.layers  # bf16
    assert held[0].weights - held[1].weights == pytest.approx(experts * 7 / 8)
    assert held[0].states == held[1].states  # ZeRO divides them over the copies either way


def test_eight_bits_of_gptq_are_not_those_of_bitsandbytes():
    """GPTQ's kernels multiply 8 bits as those of 4; LLM.int8() quantizes what it multiplies with, and the host waits for it."""
    served = {
        **ROW,
        "phase": "infer",
        "in_len": "64",
        "out_len": "64",
        "micro_batch": "1",
        "framework": "HF Transformers",
    }
    runs = {word: read_row({**served, "quant": word}).execution for word in ("gptq-int8", "GPTQ 8", "int8")}
    assert runs["gptq-int8"].quant == runs["GPTQ 8"].quant == "gptq-8bit"
    assert runs["int8"].quant == "int8"


GENERATED = {
    "phase": "infer",
    "model": "Qwen2.5-7B-Instruct",
    "params_b": "7.616",
    "n_layers": "28",
    "hidden": "3584",
    "ffn_hidden": "18944",
    "n_heads": "28",
    "n_kv_heads": "4",
    "vocab": "152064",
    "device": "a100-sxm-80gb",
    "weights_dtype": "bfloat16",
    "autocast_dtype": "none",
    "strategy": "none",
    "micro_batch": "1",
    "in_len": "30720",
    "out_len": "2048",
    "attention": "flash_attention_2",
    "framework": "HF Transformers",
    "software_date": "2024-11",
}


def test_flash_attention_of_grouped_heads_had_them_repeated_for_each_new_token(tmp_path):
    """18.8 tokens/s in Qwen2.5's own table (speed_benchmark.md at c7f51a1a). Qwen2FlashAttention2 repeated keys and values until 4.48."""
    then, now = (
        float(x["predicted_tokens_per_s_per_gpu"])
        for x in answers(tmp_path, [GENERATED, {**GENERATED, "software_date": "2025-06"}])
    )
    assert then == pytest.approx(18.8, rel=0.1)
    assert now > 1.8 * then


QWEN_7B = {
    **ROW,
    "model": "Qwen-7B",
    "params_b": "7.721",
    "vocab": "151936",
    "strategy": "zero3",
    "gpus_per_node": "2",
    "nodes": "1",
    "dp": "2",
    "micro_batch": "1",
    "grad_accum": "8",
    "framework": "HF Trainer",
    "software_date": "2023-12",
}


@pytest.mark.parametrize(("tokens", "tokens_per_s"), [(256, 512), (512, 1024), (1024, 1820)])
def test_hooks_of_zero_3_take_the_host_longer_than_short_rows_take_the_device(tmp_path, tokens, tokens_per_s):
    """Qwen's README at 712d922e: full training on two A100, 4.0, 4.0 and 4.5 s a step. The constant comes from its 1.8B on one."""
    (answer,) = answers(tmp_path, [{**QWEN_7B, "seq_len": str(tokens)}])
    assert float(answer["predicted_tokens_per_s_per_gpu"]) == pytest.approx(tokens_per_s, rel=0.15)


def test_a_named_model_has_its_published_sizes_unless_the_row_has_others():
    row = {**GENERATED, "model": "Qwen3-0.6B", "params_b": "0.596", "n_heads": "16", "n_kv_heads": "8"}
    row |= {"hidden": "1024", "ffn_hidden": "3072", "vocab": "151936"}
    published = read_row(row).spec
    assert (published.head_dim, published.model_type, published.tied_embeddings) == (128, "qwen3", True)
    assert read_row({**row, "n_layers": "24"}).spec.layers == 24, "a shorter one of somebody's own"


def test_heads_are_as_wide_as_the_stated_number_of_parameters_says():
    row = {**GENERATED, "model": "my-0.6b", "params_b": "0.596", "n_heads": "16", "n_kv_heads": "8"}
    row |= {"hidden": "1024", "ffn_hidden": "3072", "vocab": "151936"}
    spec = read_row(row).spec
    assert (spec.head_dim, spec.gated, spec.tied_embeddings) == (128, True, True)
    assert read_row({**row, "params_b": "0.65"}).spec.head_dim == 64, "no width comes near enough"
