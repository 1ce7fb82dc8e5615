"""Very large runs on paper: what is planned for thousands of GPUs, beside the layouts that were published.

Llama 3 report (https://arxiv.org/abs/2407.21783), table 4: 8,192 and 16,384 H100, TP 8, PP 16, DP 64 and 128, no activation
checkpointing; at 131,072 tokens CP 16 beside them. DeepSeek-V3 report (https://arxiv.org/abs/2412.19437), section 3.2: 2,048 H800,
PP 16, EP 64 over 8 nodes, ZeRO-1, no tensor parallelism. MLPerf Training 5.0, NVIDIA's 405B in fp8 (training_results_v5.0,
eos-dfw_n64 and eos-dfw_n1024, config_DGXH100_*.sh and result_0.txt): TP 8, PP 8 in 8 interleaved pieces, CP 2; on 512 H100 1,152
sequences of 8,192 tokens a step in 288 micro-batches, 55.1 s, on 8,192 1,536 in 24. FINDINGS.md says where the plans differ, and why.
"""

from __future__ import annotations

import json
import time

import pytest

from generator import pipeline
from generator.case.request import Request
from generator.decide.space import find_usable_gib
from generator.decide.unemitted import check_emittable
from generator.emit.document import build_document

LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-405B", "deepseek-ai/DeepSeek-V3"
MOST_SECONDS = 5.0
"""of CPU time for a plan"""
LARGE = {"task": "causal-lm", "offline": True, "data": "allenai/c4", "from_scratch": True}


def plan(hardware: str, model: str, seq_len: int, global_batch: int, form: str | None = None):
    pins = (("parallelism", form),) if form else ()
    asked = Request(**LARGE, hardware=hardware, model=model, seq_len=seq_len, global_batch=global_batch, pins=pins)
    begun = time.process_time()
    planned = pipeline.plan_request(asked)
    document = build_document(planned, name="large")
    return planned, document, time.process_time() - begun


@pytest.mark.parametrize(("nodes", "copies"), [(1024, 64), (2048, 128)])
def test_llama_405b_is_divided_nearly_as_it_was(nodes, copies):
    """Table 4: 16 M tokens a step, 8 tensor parts, 16 stages, 64 and 128 copies, 400 TFLOP/s a GPU, no recomputing, for which
    1F1B has no room here. Tensor parts that divide the tokens leave room for eight stages, and those idle less than sixteen."""
    planned, document, _ = plan(f"{nodes}x8xh100-sxm-80gb", LLAMA, 8192, 2048, "tensor-pipeline")
    layout, best = document.layout, planned.plan.best
    assert (layout.tp, layout.pp, layout.cp, layout.replicate * layout.shard) == (8, 8, 1, 2 * copies)
    run = best.execution
    usable = find_usable_gib(best.cost, run)
    assert run.micro_batch == 1
    step, peak = document.estimate.step_seconds, document.estimate.peak_memory_gib
    sixteen = run.but(pp=16, dp=run.dp // 2, accumulation=run.accumulation * 2)
    assert step < price(best, sixteen)[0] < 1.1 * step
    assert price(best, sixteen.but(checkpoint_every=0))[1] > usable > peak
    assert (
        price(best, run.but(sequence_parallel=False))[1] > usable > price(best, sixteen.but(sequence_parallel=False))[1]
    )
    published = 2048 * 8192 * 3 * planned.plan.case.model.flops_per_token / (layout.devices * 400e12)
    idle = 1 + (layout.pp - 1) / run.accumulation
    assert published < step < 1.3 * published * idle
    check_emittable(planned)


def test_llama_405b_is_divided_nearly_as_mlperf_has_it():
    """Its sequence parts are none of ours beside tensor parts and stages: without them its stages have no room but by recomputing,
    as the plan does, for whose fourth pass and half the rate of fp8 it then takes longer."""
    planned, document, _ = plan("64x8xh100-sxm-80gb", LLAMA, 8192, 1152, "tensor-pipeline")
    layout, best = document.layout, planned.plan.best
    run, usable, step = best.execution, find_usable_gib(best.cost, best.execution), document.estimate.step_seconds
    assert (layout.tp, layout.pp, layout.replicate * layout.shard, run.accumulation) == (4, 16, 8, 144)
    as_published = run.but(tp=8, pp=8)
    assert step < price(best, as_published)[0] < 1.1 * step
    assert price(best, as_published)[1] < usable < price(best, as_published.but(checkpoint_every=0))[1]
    assert step == pytest.approx(55.1 * 2 * 4 / 3, rel=0.1)
    large = plan("1024x8xh100-sxm-80gb", LLAMA, 8192, 1536, "tensor-pipeline")[1].layout
    assert (large.tp, large.pp, large.replicate * large.shard) == (8, 8, 128)


def price(best, run) -> tuple[float, float]:
    """Seconds of a step, and the peak in GiB."""
    estimate = best.cost.estimate(run)
    return sum(item.value for item in estimate.time), estimate.peak_memory_gib


def test_shards_over_many_nodes_are_slower_than_over_few():
    """7B by FSDP on H100, two sequences of 4,096 tokens each: from 128 to 2,048 of them a device loses 37 % of its speed
    (https://arxiv.org/abs/2411.13055, for gathers have rings alone)."""
    best = plan("16x8xh100-sxm-80gb", "meta-llama/Llama-2-7b-hf", 4096, 256, "fsdp2")[0].plan.best
    few, many = (best.execution.but(nodes=nodes, dp=8 * nodes, micro_batch=2, accumulation=1) for nodes in (16, 256))
    assert 0.2 < 1 - price(best, few)[0] / price(best, many)[0] < 0.4


@pytest.mark.slow
@pytest.mark.parametrize("model", [LLAMA, DEEPSEEK])
@pytest.mark.parametrize("nodes", [128, 512, 2048])
def test_a_plan_for_thousands_of_gpus_takes_seconds(model, nodes):
    _, document, seconds = plan(f"{nodes}x8xh100-sxm-80gb", model, 8192, 2048)
    assert seconds < MOST_SECONDS
    assert document.layout.devices >= 1024 and document.estimate.peak_memory_gib < 80


def test_deepseek_v3_is_divided_by_experts_unasked():
    """The report's form, experts over nodes within stages, is none of ours. Experts over 16 nodes of 8, all else in shards, is;
    ZeRO-3 alone takes three times as long. Each process reads its part of the random weights: 2.5 TiB lie on no host."""
    planned, document, seconds = plan("256x8xh800-sxm-80gb", DEEPSEEK, 4096, 15360)
    layout = document.layout
    assert document.choice["parallelism"] == "expert-fsdp2" and layout.ep == 128 and layout.shard == layout.devices
    zero3 = plan("256x8xh800-sxm-80gb", DEEPSEEK, 4096, 15360, "zero3")[1]
    assert zero3.estimate.step_seconds > 2.5 * document.estimate.step_seconds
    check_emittable(planned)
    assert seconds < MOST_SECONDS


def test_deepseek_v3_in_stages_is_far_from_what_nobody_divides_by_experts():
    """Of tensor parts and stages: every part has attention whole, as Transformers' plan for it leaves it."""
    planned, document, seconds = plan("256x8xh800-sxm-80gb", DEEPSEEK, 4096, 15360, "tensor-pipeline")
    layout = document.layout
    assert layout.pp >= 16 and layout.tp > 1 and layout.ep == 1 and layout.shard > 1
    # 14.8 T tokens in 2.664 M H800 hours of 2,048 GPUs: 3,160,000 tokens/s
    published = 14.8e12 / (2.664e6 * 3600) * 2048
    assert 0.15 * published < document.estimate.tokens_per_second < published
    other = planned.plan.best.cost.estimate(planned.plan.best.execution.but(own_loop=False))  # as Megatron divides it
    assert 1.4 < document.estimate.step_seconds / sum(item.value for item in other.time) < 2
    assert planned.plan.case.model.params == pytest.approx(671e9, rel=0.002)
    assert seconds < MOST_SECONDS


def test_a_model_with_code_of_its_own_is_sized_by_its_config(tmp_path):
    """auto_map names files that nobody loads: the type is known."""
    source = {
        **{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280},
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        **{"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61},
        **{"num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1},
        **{"num_experts_per_tok": 8, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536},
        **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840},
        **{"tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    }
    (tmp_path / "config.json").write_text(json.dumps(source))
    planned, _, _ = plan("256x8xh800-sxm-80gb", str(tmp_path / "config.json"), 4096, 15360)
    assert planned.plan.case.model.params == pytest.approx(671e9, rel=0.002)
    assert planned.plan.case.model.quantization is None  # of new weights
