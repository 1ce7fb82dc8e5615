"""Texts one after the other have the loss and the gradients of padded ones, for every model type that is trained so."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from leaves import load_leaf
from making import H100, T4, case, cpu_device, gpu, llama
from test_padding import LENGTHS, SIZES, build_tiny_model

from generator import pipeline
from generator.case.case import Case
from generator.case.request import Request
from generator.cost.lengths import bound_sum
from generator.decide.serving import plan_case
from generator.emit.document import build_document
from generator.emit.first_step import expect_attention
from generator.techniques.base import find_technique
from generator.techniques.packing.flattened import BALANCE, FLATTENED, WINDOW_IN_MASK

QUICK = ("llama", "qwen3", "gpt2", "mixtral", "opt")
WINDOWED = (
    "cohere2",
    "exaone4",
    "gemma3_text",
    "ministral",
    "ministral3",
    "mistral",
    "mixtral",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
    "starcoder2",
)
EVEN_DRAWS = dict.fromkeys(
    (
        *("attention_dropout", "hidden_dropout", "dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "layerdrop"),
        *("activation_dropout", "residual_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob"),
    ),
    0.0,
)
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_intermediate_size": 16}


def build_model(model_type: str, **more):
    return build_tiny_model(model_type, **EVEN_DRAWS, **EXPERTS, num_experts_per_tok=2, **more)


def make_batch(padding_free: bool, tokens: int = 96) -> dict:
    """As TRL's collator puts it together, with the first tokens of each text not learned from."""
    import torch
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(2, tokens, (length,), generator=generator).tolist() for length in LENGTHS]
    examples = [{"input_ids": row, "labels": [-100, -100, *row[2:]]} for row in rows]
    return DataCollatorForLanguageModeling(pad_token_id=0, padding_free=padding_free)(examples)


def learn(model, batch: dict) -> tuple[float, dict]:
    model.zero_grad()
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_equal(model_type: str, **more) -> None:
    import torch

    model = build_model(model_type, **more)
    for name, value in more.items():
        assert getattr(model.config, name) == value
    loss, gradients = learn(model, make_batch(padding_free=False))
    load_leaf("row_attention").attend_within_rows(model)
    assert model.config._attn_implementation == "row_by_row"
    flat_loss, flat_gradients = learn(model, make_batch(padding_free=True))
    assert flat_loss == pytest.approx(loss, abs=1e-5)
    assert gradients.keys() == flat_gradients.keys() and gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(flat_gradients[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model_type", QUICK)
def test_equal_to_padding(model_type):
    assert model_type in FLATTENED
    check_equal(model_type)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(FLATTENED - set(QUICK)))
def test_equal_to_padding_for_every_type(model_type):
    check_equal(model_type)


def read_window_fields(model_type: str) -> dict:
    """What gives each layer a window of 4 tokens; empty for a type that has none."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(model_type).to_dict()
    if "sliding_window" not in known:
        return {}
    every = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 0}
    layers = {"layer_types": ["sliding_attention"] * SIZES["num_hidden_layers"]} if known.get("layer_types") else {}
    return {name: value for name, value in every.items() if name in known} | layers


def check_window(model_type: str) -> None:
    """Padded texts have another loss without the window, and rows the same with it."""
    window, batch = read_window_fields(model_type), make_batch(padding_free=False)
    assert learn(build_model(model_type, **window), batch)[0] != learn(build_model(model_type), batch)[0]
    check_equal(model_type, **window)


@pytest.mark.parametrize("model_type", WINDOWED[:2])
def test_equal_to_padding_with_a_window(model_type):
    check_window(model_type)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", WINDOWED[2:])
def test_equal_to_padding_with_a_window_for_every_type(model_type):
    check_window(model_type)


def test_every_type_with_a_window_is_compared():
    assert {name for name in FLATTENED if read_window_fields(name)} == {*WINDOWED, *WINDOW_IN_MASK}


@pytest.mark.parametrize("model_type", WINDOW_IN_MASK)
def test_a_window_that_the_mask_alone_knows_is_another_loss(model_type):
    with pytest.raises(AssertionError, match="comparison failed"):
        check_window(model_type)


@pytest.mark.parametrize("model_type", ["nemotron", "stablelm"])
def test_a_model_that_does_not_say_where_texts_begin_is_left_out(model_type):
    """What the comparison above would see: texts that see each other have another loss."""
    assert model_type not in FLATTENED
    with pytest.raises(AssertionError):
        check_equal(model_type)


def test_generation_is_what_it_was():
    import torch

    model = build_model("llama").eval()
    ids, mask = torch.tensor([[0, 0, 5, 6], [7, 8, 9, 4]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    before = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    load_leaf("row_attention").attend_within_rows(model)
    assert torch.equal(model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False), before)


SHARES = (0.05, 0.1, 0.15, 0.2, 1.0)
_DRAWN = random.Random(3)
SKEWED = tuple(sorted(min(1.0, 0.1 * _DRAWN.lognormvariate(0, 1)) for _ in range(101)))
CPU = {"task": "sft", "fill_shares": SHARES, "seq_len": 512}


def plan_packing(of: Case):
    plan = plan_case(of)
    return plan, plan.best.choice["packing"]


def test_a_cpu_takes_it_where_lengths_differ():
    of = case(cpu_device(), llama(hidden=512, layers=8, heads=8, kv_heads=8, ffn=1408, vocab=32000), **CPU)
    plan, chosen = plan_packing(of)
    assert chosen == "flattened" and plan.best.execution.rows == "sdpa"
    names = {argument.name: argument.code for argument in plan.edits.training_arguments}
    assert names["padding_free"] == "True" and names["max_length"] == "None"
    assert expect_attention(plan)["attention"] == "row_by_row"
    assert plan_packing(case(cpu_device(), of.model, **CPU | {"fill_shares": (1.0, 1.0)}))[1] == "padded"


def test_a_cpu_with_bf16_instructions_takes_it_with_autocast_and_prices_the_trained_tokens():
    smol = Path(__file__).parent.parent / "examples" / "models" / "smollm2-135m.json"
    request = Request(model=str(smol), task="sft", tokenizer="any/name", hardware="cpu:16+bf16", offline=True)
    of = pipeline.plan_request(request).plan.case
    every, quarter = (
        plan_case(replace(of, workload=replace(of.workload, fill_shares=SHARES, trained_share=share)))
        for share in (1.0, 0.25)
    )
    names = {argument.name: argument.code for argument in quarter.edits.training_arguments}
    assert quarter.best.choice["packing"] == "flattened" and quarter.best.choice["precision"] == "bf16"
    assert names["bf16"] == names["padding_free"] == "True"
    assert "score_trained_tokens(trainer.model)" in quarter.edits.after_trainer
    assert quarter.best.execution.trained_share == 0.25
    assert quarter.best.estimate.step_seconds < every.best.estimate.step_seconds


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (case(H100, **CPU), "off the CPU"),
        (case(cpu_device(), **CPU | {"task": "causal-lm"}), "plain text is one stream"),
        (case(cpu_device(), **CPU | {"task": "text-classification"}), "its own label"),
        (case(cpu_device(), llama(model_type="nemotron"), **CPU), "models of type nemotron"),
    ],
    ids=["gpu", "causal-lm", "classification", "nemotron"],
)
def test_who_cannot_take_it(of, words):
    assert words in find_technique("packing", "flattened").obstacle(of)


def test_a_gpu_takes_its_kernel():
    of = case(H100, **CPU)
    plan, chosen = plan_packing(of)
    assert chosen == "varlen" and expect_attention(plan) == {
        "attention": "varlen",
        "dense_mask": False,
        "kernel": expect_attention(plan)["kernel"],
    }
    assert {"varlen_attention", "row_attention"} <= set(plan.edits.fragments)
    assert "8.0 or more" in find_technique("packing", "varlen").obstacle(case(T4, **CPU))
    odd = case(H100, llama(hidden=4096 + 32 * 4), **CPU)
    assert "heads of up to 256" in find_technique("packing", "varlen").obstacle(odd)


@pytest.mark.parametrize("packing", ["varlen", "padded"])
def test_nothing_is_added_behind_texts_one_after_the_other(packing):
    """SFTTrainer's collator makes texts of one token of it, which a mixture would balance its experts over."""
    smol = Path(__file__).parent.parent / "examples" / "models" / "smollm2-135m.json"
    asked = {"task": "sft", "hardware": "1xrtx-4090", "pins": (("packing", packing),), "offline": True}
    planned = pipeline.plan_request(Request(model=str(smol), tokenizer="any/name", **asked))
    names = {argument.name for argument in build_document(planned, name="p").fixed}
    assert ("pad_to_multiple_of" in names) == (packing == "padded")


def test_several_gpus_deal_its_rows_out():
    """Each step waits for the one with the most tokens."""
    # pinned: of boards that no link joins a pipeline is ten times as fast
    plan, chosen = plan_packing(case(H100, devices=8, pins=(("parallelism", "fsdp2"),), **CPU))
    assert plan.best.layout.dp > 1 and chosen == "varlen" and plan.best.execution.row_order == "dealt"
    assert "balanced_processes" in plan.edits.fragments and BALANCE in plan.edits.callbacks
    one, _ = plan_packing(case(H100, devices=1, **CPU))
    assert "balanced_processes" not in one.edits.fragments and not one.edits.callbacks


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (replace(llama(), model_type="gpt2"), "drop attention out"),
        (replace(llama(), head_dim=208), None),
        (llama(), None),
    ],
)
def test_what_its_kernel_cannot_do(model, says):
    why = find_technique("packing", "varlen").obstacle(case(H100, model, **CPU))
    assert says in why if says else why is None
    ada = find_technique("packing", "varlen").obstacle(case(gpu("8.9"), model, **CPU))
    assert (model.head_dim == 208) == ("no backward pass for heads of 208" in (ada or ""))


@pytest.mark.parametrize("shares", [SKEWED, tuple(i / 100 for i in range(101)), (0.1,) * 90 + (1.0,) * 11])
@pytest.mark.parametrize("draws", [2, 4, 16, 64])
def test_a_sum_of_lengths_is_passed_as_seldom_as_it_is_said(shares, draws):
    """Mean and four deviations, of a normal distribution once in 30,000, were passed once in 300 to 3,000 batches."""
    drawn, chance, times = random.Random(1), 1e-3, 40_000
    most = bound_sum(shares, draws, chance)
    passed = sum(sum(drawn.choices(shares, k=draws)) > most + 1e-9 for _ in range(times))
    assert passed <= 2 * chance * times
    assert most == draws or passed >= 0.1 * chance * times or most < 1.02 * draws * max(shares)


# ---- the first step


@pytest.fixture
def first_step(load):
    load("model_states/plain", "model_states")
    load("terminal")
    load("arguments")
    load("row_attention")
    return load("first_step")


def train_flattened(first_step, folder, spoil) -> None:
    """Two steps of a tiny model whose attention is by row; ``spoil`` then changes it."""
    import sys

    from transformers import Trainer, TrainingArguments
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    model = build_model("llama")
    sys.modules["row_attention"].attend_within_rows(model)
    spoil(model)
    rows = [{"input_ids": list(range(2, 2 + length)), "labels": list(range(2, 2 + length))} for length in LENGTHS]
    args = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        max_steps=2,
        per_device_train_batch_size=len(rows),
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    trainer = Trainer(model=model, args=args, train_dataset=rows, data_collator=collator)
    planned = {"trained": "float32", "attention": "row_by_row", "dense_mask": False, "gib": {}}
    trainer.add_callback(first_step.CheckFirstStep(trainer, {"first_step": planned}))
    trainer.train()


def test_the_first_step_sees_each_text_by_itself(first_step, tmp_path, capsys):
    train_flattened(first_step, tmp_path, lambda model: None)
    assert "attention row_by_row" in capsys.readouterr().out


def join_rows(model) -> None:
    """One layer that is not told where texts begin."""
    forward = model.model.layers[1].self_attn.forward
    model.model.layers[1].self_attn.forward = lambda **inputs: forward(**inputs | {"cu_seq_lens_q": None})


def test_the_first_step_stops_where_texts_see_each_other(first_step, tmp_path):
    with pytest.raises(SystemExit, match=r"1 x 32 tokens, planned rows of 5 to 16 tokens"):
        train_flattened(first_step, tmp_path, join_rows)
