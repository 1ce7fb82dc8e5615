"""What the parts of the memory estimate are made of, where scripts differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from generator.case.optimizer_states import pack_in_8_bits
from generator.cost.execution import Execution
from generator.cost.loss import HELD_LOGITS, compute_loss_bytes
from generator.cost.memory import compute_training_moments, count_embedding_copies
from generator.cost.shape import build_shape, count_lora_params
from generator.cost.static_memory import compute_static_memory
from generator.cost.weights import count_packed_params
from tests.cost.models import LLAMA2_7B, MISTRAL_7B, MIXTRAL, model, spec


def parts(cost, run) -> dict[str, float]:
    return {p.name: p.value for p in cost.estimate(run).memory}


def test_bitsandbytes_leaves_fused_experts_alone():
    """Transformers 5 holds the experts of a block in one tensor, which is no Linear; older releases held modules."""
    shape = build_shape(MIXTRAL, "causal-lm", 0)
    run = Execution(weights_dtype="bfloat16", quant="nf4", train="lora", lora_rank=8)
    assert count_packed_params(shape, run) < 0.05 * MIXTRAL.params
    assert count_packed_params(shape, replace(run, expert_loop=True)) > 0.95 * MIXTRAL.params


def test_the_upcast_of_what_is_not_quantized_costs_two_bytes_more():
    run = Execution(weights_dtype="bfloat16", quant="nf4", train="lora", lora_rank=8, lora_targets=("q_proj",))
    cost = model(MISTRAL_7B)
    more = parts(cost, replace(run, lora_upcast=True))["weights"] - parts(cost, run)["weights"]
    assert more == pytest.approx((MISTRAL_7B.params - MISTRAL_7B.linear_params) * 2 / 2**30, rel=0.01)


def test_fsdp1_with_frozen_blocks_keeps_inputs_and_gradients_and_fsdp2_does_not():
    run = Execution(
        micro_batch=8,
        seq_len=4096,
        weights_dtype="bfloat16",
        train="lora",
        lora_rank=16,
        checkpoint_every=1,
        strategy="fsdp_full_shard",
        dp=4,
    )
    cost = model(MISTRAL_7B)
    one, two = (cost.estimate(replace(run, fsdp_version=v)).peak_memory_gib for v in (1, 2))
    assert one > two + 5


def test_autocast_keeps_copies_of_trained_weights_but_not_of_frozen_16_bit_ones():
    cost = model(LLAMA2_7B)
    full = Execution(autocast_dtype="bfloat16", micro_batch=8, seq_len=4096, checkpoint_every=1)
    lora = replace(full, weights_dtype="bfloat16", train="lora", lora_rank=8)
    shape = build_shape(LLAMA2_7B, "causal-lm", 0)
    assert compute_static_memory(shape, full).cast_weights > 0 == compute_static_memory(shape, lora).cast_weights
    assert "weights" in parts(cost, full)


def test_the_peak_is_the_largest_moment_not_the_sum():
    shape = build_shape(LLAMA2_7B, "causal-lm", 0)
    run = Execution(weights_dtype="bfloat16", micro_batch=4, seq_len=4096, checkpoint_every=1)
    moments = compute_training_moments(shape, run, compute_static_memory(shape, run))
    estimate = model(LLAMA2_7B).estimate(run)
    assert estimate.allocator_peak_gib * 2**30 == pytest.approx(max(sum(m.values()) for m in moments.values()))


def test_accumulation_keeps_gradients_through_the_forward_pass():
    run = Execution(weights_dtype="bfloat16", micro_batch=8, seq_len=8192, checkpoint_every=1)
    cost = model(LLAMA2_7B)
    more = cost.estimate(replace(run, accumulation=2)).peak_memory_gib - cost.estimate(run).peak_memory_gib
    assert more == pytest.approx(2 * LLAMA2_7B.params / 2**30, rel=0.1)


def test_a_fused_loss_saves_the_logits():
    run = Execution(
        weights_dtype="bfloat16", micro_batch=8, seq_len=8192, checkpoint_every=1, train="lora", lora_rank=8
    )
    cost = model(LLAMA2_7B)
    plain, fused = (cost.estimate(replace(run, loss_kernel=k)).peak_memory_gib for k in ("plain", "fused"))
    assert fused < plain - 1


@pytest.mark.parametrize(("targets", "params"), [(("q_proj", "v_proj"), 4_194_304), ("all-linear", 19_988_480)])
def test_lora_parameters_as_peft_counts_them(targets, params):
    """Llama-2-7B, rank 8: figures that PEFT's print_trainable_parameters gives."""
    assert count_lora_params(build_shape(LLAMA2_7B, "causal-lm", 0), targets, 8) == params


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_adapters_of_fused_experts_as_peft_makes_them(model_type):
    """The router's among them."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    from generator.model import describe

    sizes = {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4}
    experts = {
        "mixtral": {"num_local_experts": 8},
        "qwen3_moe": {"num_experts": 8, "moe_intermediate_size": 192, "num_experts_per_tok": 2},
    }
    known = AutoConfig.for_model(
        model_type, **sizes, **experts[model_type], num_key_value_heads=2, head_dim=64, vocab_size=512
    )
    with torch.device("meta"):
        adapters = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = get_peft_model(AutoModelForCausalLM.from_config(known), adapters)
    made = sum(p.numel() for name, p in adapted.named_parameters() if "lora_" in name)
    shape = build_shape(describe(known.to_dict(), "experts"), "causal-lm", 0)
    assert count_lora_params(shape, "all-linear", 16) == made


def test_what_has_no_entry_is_an_error_not_a_guess():
    with pytest.raises(KeyError):
        model(LLAMA2_7B).estimate(Execution(weights_dtype="int3"))


def test_a_zero3_job_that_offloads_needs_the_host_instead_of_the_device():
    run = Execution(weights_dtype="bfloat16", strategy="zero3", dp=8, checkpoint_every=1, seq_len=2048)
    cost = model(LLAMA2_7B, host_memory_bytes=512 << 30)
    kept, moved = cost.estimate(run), cost.estimate(replace(run, offload_optimizer="cpu", offload_params="cpu"))
    assert moved.peak_memory_gib < kept.peak_memory_gib
    assert sum(p.value for p in moved.host_memory) > sum(p.value for p in kept.host_memory)
    assert moved.step_seconds > kept.step_seconds


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "embedding_gradient.json"
MEASURED_DTYPES = {"fp32": {}, "bf16": {"autocast_dtype": "bfloat16"}, "bf16-pure": {"weights_dtype": "bfloat16"}}


@pytest.mark.parametrize("row", json.loads(RESULTS.read_text(encoding="utf-8"))["rows"], ids=str)
def test_the_embeddings_gradient_comes_last(row):
    """Resident memory of real steps, in gradients of the embedding: those that stay, and those that come and go."""
    shape = build_shape(LLAMA2_7B, "causal-lm", 0)
    shape = replace(shape, head=0 if row["tied"] else shape.head)
    run = Execution(loss_kernel=row["loss"], **MEASURED_DTYPES[row["dtype"]])
    staying = 1 if row["tied"] else 2
    assert int(row["first"]) == staying + count_embedding_copies(shape, run)
    assert int(row["after"]) == staying + count_embedding_copies(shape, replace(run, accumulation=2))


def test_texts_one_after_the_other_hold_their_own_tokens():
    """Of a micro-batch of texts of a quarter of the length: a quarter, and what chance adds; never more than padded ones."""
    cost, run = model(LLAMA2_7B), Execution(micro_batch=64, seq_len=2048, length_shares=(0.25, 0.25))
    padded, flattened = (parts(cost, run.but(rows=rows))["kept activations"] for rows in ("batch", "sdpa"))
    assert flattened == pytest.approx((1.0 + 63 * 0.25) / 64 * padded, rel=0.01)  # one of them may be of full length
    ragged = parts(cost, run.but(rows="sdpa", length_shares=(0.0, 0.25, 0.5)))["kept activations"]
    assert flattened < ragged < padded
    full = parts(cost, run.but(rows="sdpa", length_shares=(1.0, 1.0)))["kept activations"]
    assert full == pytest.approx(padded)


def test_logits_of_trained_tokens_are_made_at_once_on_a_cpu_up_to_those_of_a_tile():
    shape = build_shape(LLAMA2_7B, "sft", 0)
    run = Execution(threads=2, loss_kernel="tiled", train="lora", lora_rank=8, weights_dtype="bfloat16")

    def count(run: Execution, tokens: float) -> float:
        return compute_loss_bytes(shape, run, tokens, 2.0, 2.0)

    per_token = (count(run, 2048) - count(run, 1024)) / 1024
    assert per_token == pytest.approx(12 * LLAMA2_7B.vocab, rel=0.15)  # three in float32, and hidden states
    tile = HELD_LOGITS / LLAMA2_7B.vocab
    assert count(run, tile) < count(run, 2 * tile) < 2 * count(run, tile)
    assert count(run, 1024) > 2 * count(run.but(threads=None), 1024)  # Triton folds its tiles in place


@pytest.mark.parametrize(("rank", "bytes_per_param"), [(2, 8.0), (8, 4.89), (16, 2.03)])
def test_states_of_adapters_that_are_too_small_to_pack(rank, bytes_per_param):
    """Of 2,048 elements each by rank 8, and of 8,192 in the feed-forward: the small ones keep 8 bytes of states."""
    sizes = spec("llama", 8, 256, 4, 4, 1024, 1000, 10_000_000)
    run = Execution(train="lora", lora_rank=rank, weights_dtype="bfloat16", optimizer=pack_in_8_bits(2))
    held = compute_static_memory(build_shape(sizes, "causal-lm", 0), run)
    assert held.states / held.trained == pytest.approx(bytes_per_param, rel=0.01)
