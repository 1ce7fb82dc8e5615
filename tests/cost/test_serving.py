"""A served model: throughput at full load, time to the first token, and what fits, beside what was published."""

from __future__ import annotations

import math
import statistics

import pytest

from generator.cost import CostModel
from generator.cost import constants as c
from generator.cost.comm import Group, compute_all_reduce_seconds, compute_served_all_reduce_seconds
from generator.cost.decode import compute_step
from generator.cost.device import compute_rates
from generator.cost.engines import ENGINES
from generator.cost.execution import Execution
from generator.cost.infer import count_accepted_tokens
from generator.cost.served_memory import (
    compute_filled_bytes,
    compute_sequence_bytes,
    compute_step_bytes,
    compute_widest_bytes,
    count_cached_sequences,
    count_grouped_layers,
    find_kept_gib,
)
from generator.cost.shape import build_shape
from generator.cost.weights import FORMATS, compute_stored_bytes
from generator.estimate.table import estimate_row, read_row
from generator.model.catalog import load_catalog
from generator.model.description import describe
from hwdetect import catalog
from tests.cost.models import GIB, LLAMA2_7B, LLAMA2_70B, MISTRAL_7B, MIXTRAL, model, spec

LLAMA3_8B = spec("llama", 32, 4096, 32, 8, 14336, 128256, 8_030_261_248)
H100 = catalog.load("h100-sxm-80gb")


def serve(what=LLAMA3_8B, device=H100, **changes) -> tuple[CostModel, Execution]:
    run = Execution(mode="infer", engine="vllm", weights_dtype="bfloat16", attention="flash", cache="static")
    cost = CostModel(device, what, device_memory_bytes=device.memory_bytes, devices_per_node=8)
    return cost, run.but(**changes)


LENGTHS = (
    *((128, 128), (128, 2048), (128, 4096), (500, 2000), (1000, 1000)),
    *((1000, 2000), (2048, 128), (2048, 2048), (5000, 500), (20000, 2000)),
)
SIZES = {
    "8B": ("8.03", "32", "4096", "14336", "32"),
    "70B": ("70.554", "80", "8192", "28672", "64"),
    "405B": ("405.85", "126", "16384", "53248", "128"),
}
PUBLISHED = [
    ("8B", "h200-sxm-141gb", "fp8", 1, (27911, 26221, 18027, 20770, 17744, 16828, 3538, 12194, 3902, 1804)),
    ("70B", "h200-sxm-141gb", "fp8", 1, (3803, 4336, 2872, 3666, 2909, 2994, 442, 2003, 566, 283)),
    ("405B", "h200-sxm-141gb", "fp8", 8, (3814, 5348, 4741, 4724, 3330, 3722, 456, 2948, 650, 505)),
    ("70B", "b200-sxm-180gb", "nvfp4", 1, (11147, 9922, 6831, 7762, 7007, 6271, 1339, 4783, 1459, 665)),
    ("405B", "b200-sxm-180gb", "nvfp4", 4, (6281, 8020, 6345, 6244, 5209, 4933, 749, 4212, 1048, 672)),
    ("70B", "rtx-pro-6000-blackwell-server", "nvfp4", 1, (3264, 2422, 1349, 1856, 1787, 1594, 393, 1074, 401, 142)),
]


def predict_at_full_load(
    size: str, device: str, quant: str, speeds: tuple[int, ...], tp: int = 1, pp: int = 1
) -> list[float]:
    """Over what was published, by ``LENGTHS``."""
    params, layers, hidden, ffn, heads = SIZES[size]
    ratios = []
    for (prompt, answer), published in zip(LENGTHS, speeds, strict=True):
        row = {
            **{"phase": "infer", "model": f"Llama-{size}", "params_b": params, "n_layers": layers, "hidden": hidden},
            **{"ffn_hidden": ffn, "n_heads": heads, "n_kv_heads": "8", "vocab": "128256", "device": device},
            **{
                "gpus_per_node": str(tp * pp),
                "nodes": "1",
                "strategy": "tensor_pipeline_data",
                "dp": "1",
                "tp": str(tp),
                "pp": str(pp),
            },
            **{"in_len": str(prompt), "out_len": str(answer), "quant": quant, "framework": "TensorRT-LLM"},
            "notes": "at max throughput",
        }
        ratios.append(estimate_row(read_row(row), {}).tokens_per_second / published)
    return ratios


@pytest.mark.parametrize(("size", "device", "quant", "tp", "speeds"), PUBLISHED, ids=lambda x: str(x)[:14])
def test_throughput_at_full_load_on_boards_that_fitted_nothing(size, device, quant, tp, speeds):
    """TensorRT-LLM's perf-overview.md (00f37686), output tokens/s of all devices; none of these rows is in a table of ours."""
    ratios = predict_at_full_load(size, device, quant, speeds, tp=tp)
    assert statistics.median(abs(ratio - 1) for ratio in ratios) < 0.15
    assert max(abs(ratio - 1) for ratio in ratios) < 0.36


@pytest.mark.parametrize(
    ("stages", "speeds"),
    [
        (2, (6172, 4993, 2893, 4114, 3707, 2993, 813, 2336, 812, 319)),
        (4, (9641, 7922, 4978, 6939, 5961, 5274, 1511, 3870, 1511, 630)),
        (8, (11881, 9833, 7352, 9435, 8166, 6943, 2495, 6078, 2491, 1148)),
    ],
)
def test_stages_of_a_server_compute_different_users(stages, speeds):
    """The same source, 70B in nvfp4; STAGE_WAIT is theirs."""
    ratios = predict_at_full_load("70B", "rtx-pro-6000-blackwell-server", "nvfp4", speeds, pp=stages)
    assert statistics.median(abs(ratio - 1) for ratio in ratios) < 0.15
    one = predict_at_full_load("70B", "rtx-pro-6000-blackwell-server", "nvfp4", speeds)
    assert all(many > few for many, few in zip(ratios, one, strict=True))


def test_more_users_wait_longer_and_are_served_more():
    cost, run = serve(seq_len=1024, new_tokens=256)
    few, many = (cost.serve(run.but(micro_batch=users)) for users in (1, 64))
    assert many.tokens_per_second > 20 * few.tokens_per_second
    assert many.seconds_per_token > few.seconds_per_token
    assert many.ttft_seconds > few.ttft_seconds
    # of one user nothing is to be waited for: the next step begins at once, with the prompt in it
    assert few.ttft_seconds == pytest.approx(cost.estimate(run).ttft_seconds, rel=1.0)


def test_a_batch_and_a_server_answer_as_many_in_the_long_run():
    """Prompts in the steps of others find the weights read: a server is no slower, and not by much faster, than whole batches."""
    cost, run = serve(seq_len=512, new_tokens=256, micro_batch=32)
    batch, server = (cost.estimate(run.but(continuous=each)) for each in (False, True))
    assert 1.0 <= server.tokens_per_second / batch.tokens_per_second < 1.35
    assert server.tokens_per_second == pytest.approx(cost.serve(run).tokens_per_second)


def test_long_prompts_leave_users_waiting():
    """Steps of 8,192 tokens: 512 users with 8,000 tokens of prompt for 100 of answer cannot all decode."""
    cost, run = serve(seq_len=8000, new_tokens=100, micro_batch=512)
    serving = cost.serve(run)
    assert serving.decoding == pytest.approx(8192 / 81, rel=0.01)
    # Little's law: requests there = requests per second x seconds that each is there
    seconds = serving.ttft_seconds + 100 * serving.seconds_per_token
    assert serving.tokens_per_second / 100 * seconds == pytest.approx(512, rel=0.01)


def test_copies_of_a_model_serve_each_their_own():
    cost, run = serve(seq_len=128, new_tokens=64, micro_batch=8)
    assert cost.estimate(run.but(dp=2)).tokens_per_second == pytest.approx(2 * cost.estimate(run).tokens_per_second)


# --- limits ---------------------------------------------------------------------------------------------------------
def test_pages_are_those_that_vllm_printed():
    """Llama-3-8B on an A100-40GB (github.com/vllm-project/vllm/issues/12330): of 39.50 GiB x 0.90, beside 14.96 of weights, 9.37 of
    activations and 0.10 of others, 11.12 GiB are left, which are 5,691 blocks of 16 tokens: 11.12 sequences of 8,192."""
    cost, run = serve()
    left = (39.50 * 0.90 - 14.96 - 9.37 - 0.10) * GIB
    assert left / compute_sequence_bytes(cost.shape, run, 16) == pytest.approx(5691, abs=5)
    assert left // compute_sequence_bytes(cost.shape, run, 8192) == 11
    assert compute_stored_bytes(cost.shape, run) / GIB == pytest.approx(14.96, abs=0.01)


def count(cost: CostModel, run: Execution, tokens: int, gib: float = 80.0) -> int:
    return count_cached_sequences(cost.shape, run, gib * GIB, tokens, context_gib=0.5)


@pytest.mark.parametrize("tokens", [1024, 2048, 5000])
def test_cached_sequences_by_hand(tokens):
    cost, run = serve()
    # vLLM's max_num_batched_tokens and max_num_seqs on such a device
    step = compute_step_bytes(cost.shape, run, 8192, 1024)
    left = 80 * GIB * 0.92 - compute_stored_bytes(cost.shape, run) - step - (0.5 + find_kept_gib(run)["graphs"]) * GIB
    token = 2 * 32 * 8 * 128 * 2
    assert count(cost, run, tokens) == int(left // (16 * math.ceil(tokens / 16) * token))


def test_what_bounds_the_cached_sequences():
    cost, run = serve()
    assert count(cost, run, 16) == 1024  # as many as vLLM takes, and not the 26,000 that its cache would hold
    large, same = serve(LLAMA2_70B)
    assert count(large, same, 4096) == 0  # nothing is left beside the weights
    assert count(large, same.but(tp=4), 4096) > 0


def test_an_8_bit_cache_holds_twice_as_much():
    cost, run = serve()
    plain, packed = (count(cost, run.but(cache_dtype=each), 4096) for each in (None, "float8"))
    assert packed in (2 * plain, 2 * plain + 1)


# --- engines ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_priced(engine):
    run = Execution(mode="infer", weights_dtype="float16", engine=engine, seq_len=256, new_tokens=64, micro_batch=4)
    estimate = model(LLAMA2_7B).estimate(run)
    least = 13.2e9 / 2.039e12  # of reading the weights once
    assert least < estimate.seconds_per_token < 20 * least
    assert estimate.ttft_seconds > 0
    assert all(item.source for item in estimate.time)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_few_bytes_are_reduced_at_once(ranks):
    """vLLM's custom all-reduce in a replayed graph on H100 (aiconfigurator-core 0.12.0), microseconds by bytes."""
    measured = {2: {8192: 4.4, 65536: 4.5, 524288: 6.3}, 4: {8192: 4.8, 65536: 5.2, 524288: 11.4}}
    measured[8] = {8192: 5.1, 65536: 6.4, 524288: 12.0}
    rates = compute_rates(H100, None, (), None)
    group = Group(Execution(tp=ranks), ranks)
    for size, microseconds in measured[ranks].items():
        assert compute_served_all_reduce_seconds(size, group, rates) * 1e6 == pytest.approx(microseconds, rel=0.25)
    # many bytes go round a ring, and so do those of boards that do not read each other's memory
    assert compute_served_all_reduce_seconds(1e8, group, rates) == compute_all_reduce_seconds(1e8, group, rates)
    apart = compute_rates(catalog.load("l40s"), None, (), None)
    assert compute_served_all_reduce_seconds(8192, group, apart) == compute_all_reduce_seconds(8192, group, apart)


def test_no_board_reads_the_memory_of_another_node_at_once():
    """vLLM's custom all-reduce is off there, also where a rack's switches join the nodes (all in_the_same_node_as)."""
    rack = compute_rates(catalog.load("gb200"), None, (), 400e9, 4)
    inside, over = Group(Execution(nodes=2, tp=4, dp=2), 4), Group(Execution(nodes=2, tp=8), 8)
    assert over.is_linked(rack) and over.run.per_node == 4
    assert compute_served_all_reduce_seconds(8192, over, rack) == compute_all_reduce_seconds(8192, over, rack)
    assert compute_served_all_reduce_seconds(8192, inside, rack) < compute_all_reduce_seconds(8192, inside, rack)


@pytest.mark.parametrize(
    ("quant", "bits"),
    [
        *(("gptq-4bit", 4.156), ("int8", 8.008), ("int4", 5.125), ("torchao-int4", 4.25), ("torchao-int4-g32", 5.0)),
        *(("mxfp4", 4.25), ("nvfp4", 4.5), ("gguf-4bit", 4.85), ("gguf-8bit", 8.5)),
    ],
)
def test_bits_of_a_packed_weight(quant, bits):
    """Scales and zeros included: 4 + (16 + 4) / 128 for GPTQ, 4 + (32 + 4) / 32 for MatMulNBits, and so on."""
    assert 8 * sum(FORMATS[quant]) == pytest.approx(bits, rel=1e-3)


def test_formats_of_all_tensors_pack_the_embedding_too():
    """SmolLM2-135M in ONNX Runtime GenAI's int4 is a file of 112 MB, a fifth of it the output layer in 8 bits; larger models have
    less of that."""
    smollm = spec("llama", 30, 576, 9, 3, 1536, 49152, 134_515_008, tied_embeddings=True)
    run = Execution(mode="infer", engine="onnxruntime-genai", quant="int4")
    assert compute_stored_bytes(build_shape(smollm, "causal-lm", 0), run) / 1e6 == pytest.approx(112, rel=0.08)


@pytest.mark.parametrize(("proposed", "acceptance", "tokens"), [(4, 0.8, 3.3616), (5, 0.0, 1.0), (3, 1.0, 4.0)])
def test_accepted_tokens_of_a_pass(proposed, acceptance, tokens):
    """Equation 1 of arXiv 2211.17192: (1 - a^(g + 1)) / (1 - a)."""
    assert count_accepted_tokens(proposed, acceptance) == pytest.approx(tokens)


def test_speculation_pays_where_proposals_are_cheap_and_accepted():
    cost, run = serve(LLAMA2_70B, seq_len=512, new_tokens=256, tp=4)
    plain = cost.estimate(run).seconds_per_token
    good, poor = (
        cost.estimate(run.but(draft_tokens=4, draft_acceptance=share, draft_cost=cost_of_one)).seconds_per_token
        for share, cost_of_one in ((0.8, 0.05), (0.1, 0.3))
    )
    assert 2.0 < plain / good < 3.3616 and poor > plain
    # a full batch multiplies as long as it reads: what is proposed and refused costs
    full = run.but(micro_batch=256)
    gain = (
        cost.estimate(full).seconds_per_token
        / cost.estimate(full.but(draft_tokens=4, draft_acceptance=0.8, draft_cost=0.05)).seconds_per_token
    )
    assert gain < plain / good


def test_experts_that_a_batch_goes_to_are_read():
    mixtral = spec(
        "mixtral", 32, 4096, 32, 8, 14336, 32000, 46_702_792_704, experts=8, experts_per_token=2, expert_ffn=14336
    )
    cost, run = serve(mixtral, device=catalog.load("h200-sxm-141gb"))
    shape = cost.shape
    one, many = (compute_step(shape, run.but(micro_batch=n), cost.rates, 0.0).busy for n in (1, 32))
    assert many / one == pytest.approx(46.7 / 12.9, rel=0.1)


def test_a_single_expert_takes_what_a_dense_feed_forward_does():
    """A crash once: experts were known by their number alone, and one of them looked like none."""
    one = spec(
        "mixtral", 32, 4096, 32, 8, 14336, 32000, 7_241_732_096, experts=1, experts_per_token=1, expert_ffn=14336
    )
    dense = spec("mistral", 32, 4096, 32, 8, 14336, 32000, 7_241_732_096)
    routed, plain = (serve(what)[0].peak_gib(serve(what)[1]) for what in (one, dense))
    assert routed == pytest.approx(plain, rel=0.02)


def test_experts_over_the_devices_of_all_copies():
    """Eight copies of attention, one of the experts: each device holds the dense weights and an eighth of the experts, and reads as
    much of those for eight times as many tokens; whole copies would not fit."""
    mixtral = spec(
        "mixtral", 32, 4096, 32, 8, 14336, 32000, 46_702_792_704, experts=8, experts_per_token=2, expert_ffn=14336
    )
    cost, run = serve(mixtral, micro_batch=32, seq_len=256, new_tokens=64)
    experts = 32 * 8 * 3 * 4096 * 14336
    held = {
        name: next(item.value for item in cost.estimate(each).memory if item.name == "weights") * GIB
        for name, each in {"whole": run, "divided": run.but(dp=8, ep=8)}.items()
    }
    assert held["whole"] == pytest.approx(2 * 46_702_792_704)
    assert held["divided"] == pytest.approx(2 * (46_702_792_704 - experts * 7 / 8), rel=1e-6)
    whole, divided = (cost.estimate(each).seconds_per_token for each in (run, run.but(dp=8, ep=8)))
    read = experts * 2 * 7 / 8 / cost.rates.read_bytes_per_s
    exchanged = 2 * 32 * (c.ONE_SHOT_SECONDS + 32 * 4096 * 2 * 2 * 7 / 8 / (450e9 * c.ONE_SHOT_REALISED))
    assert whole - divided == pytest.approx(read - exchanged, rel=0.05)


@pytest.mark.parametrize("quant", ["gptq-4bit", "int8"])
def test_engines_multiply_packed_weights_as_they_are(quant):
    """In a batch too, where Transformers' kernels of GPTQ write 16-bit weights first; compiled or not, which is theirs to choose."""
    cost, run = serve(quant=quant, micro_batch=16, seq_len=256, new_tokens=64)
    served, compiled = (cost.estimate(run.but(compile=mode)).seconds_per_token for mode in (None, "reduce-overhead"))
    assert served == compiled < cost.estimate(run.but(quant="none")).seconds_per_token
    slower = cost.estimate(run.but(engine="", quant="gptq-4bit")).seconds_per_token
    assert served < 0.5 * slower


def test_a_captured_step_does_not_depend_on_the_host():
    """Transformers issues some fifty operators a block; a replayed graph of the same model has ten kernels."""
    run = Execution(mode="infer", weights_dtype="float16", seq_len=64, new_tokens=64)
    by_host, replayed = (
        {item.name: item.value for item in model(MISTRAL_7B).estimate(run.but(engine=engine)).time}["launch"]
        for engine in ("", "gpt-fast")
    )
    assert replayed < 0.2 * by_host


# --- an engine that takes its share ---------------------------------------------------------------------------------
def test_windows_are_counted_by_the_kind_of_layer():
    """gpt-oss-20b: 12 layers keep all tokens, 12 keep 128 and what two steps bring."""
    oss = describe(load_catalog()["openai/gpt-oss-20b"].config, "oss")
    shape = build_shape(oss, "causal-lm", 0)
    run = Execution(mode="infer", weights_dtype="bfloat16", engine="vllm", seq_len=65536, new_tokens=0)
    token = 2 * 8 * 64 * 2 * 12
    assert compute_filled_bytes(shape, run, 4, 65536) == token * (4 * 65536 + 4 * 128 + 2 * 8192)
    assert compute_filled_bytes(shape, run, 4, 128) == token * 2 * 4 * 128


def test_groups_of_layers_are_padded_to_the_same_size():
    """gemma-3-27b: 52 layers with a window and 10 without make 6 groups of 10 and one."""
    gemma = describe(load_catalog()["google/gemma-3-27b-it"].config, "gemma")
    shape = build_shape(gemma, "causal-lm", 0)
    run = Execution(mode="infer", weights_dtype="bfloat16", engine="vllm")
    assert count_grouped_layers(shape) == 10
    assert compute_filled_bytes(shape, run, 64, 1024) == 64 * 1024 * (60 + 10) * 2 * 16 * 128 * 2


def test_what_tensor_parts_cannot_divide_each_has_whole():
    spec = describe(load_catalog()["deepseek-ai/DeepSeek-V3"].config, "deepseek")
    shape = build_shape(spec, "causal-lm", 0)
    run = Execution(mode="infer", weights_dtype="bfloat16", engine="vllm")
    one, eight = (compute_sequence_bytes(shape, run.but(tp=tp), 4096) for tp in (1, 8))
    assert one == eight == 4096 * 61 * 576 * 2  # a latent has no heads
    grouped = build_shape(LLAMA2_70B, "causal-lm", 0)
    two, eight, sixteen = (compute_sequence_bytes(grouped, run.but(tp=tp), 4096) for tp in (2, 8, 16))
    assert two == 4 * eight and eight == sixteen


def test_the_largest_step_is_counted_however_short_the_prompts_are():
    """vLLM runs it as it starts, with as many sequences as are allowed: of one user and of a hundred tokens too."""
    cost, run = serve(seq_len=16, new_tokens=16)
    short, long, many = (cost.estimate(r) for r in (run, run.but(seq_len=4096), run.but(micro_batch=512)))
    steps = [next(i.value for i in e.memory if i.name == "prefill activations") for e in (short, long, many)]
    assert steps[0] == steps[1] < steps[2]
    assert steps[2] * GIB == 8192 * 4096 * 2 + 512 * 128256 * 14
    assert {"graphs", "context", "weights", "kv cache"} <= {i.name for i in short.memory}


def test_tensor_parts_divide_what_experts_make_of_a_token():
    """Mixtral's two experts have 14,336 gates, ups and products each; the residual and its norm every part has whole."""
    shape = build_shape(MIXTRAL, "causal-lm", 0)
    one, two = (compute_widest_bytes(shape, Execution(mode="infer", tp=tp), 1.0) for tp in (1, 2))
    whole = 2 * 4096 * 4
    assert one == whole + 2 * 3 * 14336 * 4
    assert one - whole == 2 * (two - whole)
