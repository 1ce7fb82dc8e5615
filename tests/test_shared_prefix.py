"""What texts begin with in common, computed once: the loss and the gradients of whole texts, and who takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from leaves import load_leaf
from making import H100, case, cpu_device, llama
from test_flattened import build_model, learn

from generator.cost.memory import count_held_tokens
from generator.decide.serving import plan_case
from generator.emit.first_step import expect_first_step
from generator.techniques.base import find_technique
from generator.techniques.packing.flattened import FLATTENED

SHARED = 6
QUICK = ("llama", "qwen3", "mistral", "phi3")


def make_rows(shared: int = SHARED, trained_from: int = SHARED + 2, tokens: int = 96) -> list[dict]:
    """Texts of 9, 12 and 17 tokens with a common beginning, of which nothing before ``trained_from`` is learned."""
    import torch

    generator = torch.Generator().manual_seed(1)
    common = list(range(2, 2 + shared))
    rows = []
    for place, length in enumerate((9, 12, 17)):
        rest = torch.randint(20, tokens, (length - shared,), generator=generator).tolist()
        rest[0] = 80 + place  # there they part
        rows.append({"input_ids": [*common, *rest], "labels": [-100] * trained_from + [*common, *rest][trained_from:]})
    return rows


def collate(rows: list[dict], *, shares: bool) -> dict:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(rows)
    return load_leaf("shared_prefix").drop_repeated(batch) if shares else batch


def check_equal(model_type: str, **more) -> None:
    import torch

    model = build_model(model_type, **more)
    load_leaf("row_attention").attend_within_rows(model)
    whole, shared = collate(make_rows(), shares=False), collate(make_rows(), shares=True)
    assert shared["input_ids"].shape[1] == whole["input_ids"].shape[1] - 2 * SHARED
    loss, gradients = learn(model, whole)
    shared_loss, shared_gradients = learn(model, shared)
    assert shared_loss == pytest.approx(loss, abs=1e-5)
    assert gradients.keys() == shared_gradients.keys() and gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(shared_gradients[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model_type", QUICK)
def test_equal_to_whole_texts(model_type):
    assert model_type in FLATTENED
    check_equal(model_type)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(FLATTENED - set(QUICK)))
def test_equal_to_whole_texts_for_every_type(model_type):
    check_equal(model_type)


def test_equal_to_whole_texts_with_a_window_and_recomputation():
    check_equal("mistral", sliding_window=4)


def test_texts_that_see_less_than_they_share_have_another_loss():
    """What the comparison would see: the rest of a text without its beginning."""
    import torch

    model = build_model("llama")
    load_leaf("row_attention").attend_within_rows(model)
    loss, _ = learn(model, collate(make_rows(), shares=False))
    shared = collate(make_rows(), shares=True)
    blind, _ = learn(model, shared | {"cu_seq_lens_k": shared["cu_seq_lens_q"]})
    assert not torch.isclose(torch.tensor(blind), torch.tensor(loss), atol=1e-3)


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        (make_rows(trained_from=SHARED), SHARED - 1),  # the last of them would predict what is learned
        (make_rows(trained_from=3), 2),
        (make_rows(trained_from=1), 0),
        (make_rows()[:1], 0),
        ([{"input_ids": list(range(2, 2 + n)), "labels": [-100] * n} for n in (4, 7)], 3),  # one begins the other
    ],
    ids=["learned next", "learned within", "all learned", "one text", "one begins the other"],
)
def test_what_is_learned_from_stays_in_every_text(rows, kept):
    whole, shared = collate(rows, shares=False), collate(rows, shares=True)
    assert whole["input_ids"].shape[1] - shared["input_ids"].shape[1] == kept * (len(rows) - 1)
    assert (shared["labels"] != -100).sum() == (whole["labels"] != -100).sum()
    assert shared["cu_seq_lens_q"][-1] == shared["input_ids"].shape[1] == shared["position_ids"].shape[1]
    assert shared["cu_seq_lens_k"].tolist() == whole["cu_seq_lens_k"].tolist()


SHARES = (0.1, 0.12, 0.15, 0.2, 0.3)
CPU = {"task": "sft", "fill_shares": SHARES, "seq_len": 512, "loss_on": "assistant", "shared_tokens": 34}
MODEL = llama(hidden=512, layers=8, heads=8, kv_heads=8, ffn=1408, vocab=32000)


def test_a_cpu_takes_it_where_texts_begin_with_the_same_and_prices_it():
    shared = plan_case(case(cpu_device(), MODEL, **CPU))
    alone = plan_case(case(cpu_device(), MODEL, **CPU | {"shared_tokens": 0}))
    assert shared.best.choice["packing"] == "shared-prefix" and alone.best.choice["packing"] == "flattened"
    assert shared.best.execution.shared_tokens == 34 and "share_prefix(trainer)" in shared.edits.after_trainer
    assert {"row_attention", "shared_prefix"} <= set(shared.edits.fragments)
    # 34 of 84 tokens, and not of the first text
    assert 0.6 < shared.best.estimate.step_seconds / alone.best.estimate.step_seconds < 0.95
    assert shared.best.estimate.tokens_per_step == alone.best.estimate.tokens_per_step
    assert shared.best.estimate.peak_memory_gib <= alone.best.estimate.peak_memory_gib
    assert expect_first_step(shared, None).shared_tokens == 34


def test_the_first_of_a_micro_batch_keeps_what_is_shared():
    run = plan_case(case(cpu_device(), MODEL, **CPU)).best.execution
    held = [count_held_tokens(run.but(shared_tokens=n, micro_batch=4)) for n in (0, 34)]
    assert held[0] - held[1] == pytest.approx(3 * 34)


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (case(cpu_device(), MODEL, **CPU | {"shared_tokens": 0}), "not seen to begin"),
        (case(H100, MODEL, **CPU), "off the CPU"),
        (case(cpu_device(), replace(MODEL, model_type="mixtral", experts=8), **CPU), "balances experts"),
        (case(cpu_device(), replace(MODEL, model_type="gpt2"), **CPU), "dropout"),
        (case(cpu_device(), MODEL, **CPU | {"train": "lora", "lora_dropout": 0.1}), "dropout of adapters"),
    ],
    ids=["nothing", "gpu", "experts", "dropout", "adapter dropout"],
)
def test_who_cannot_take_it(of, words):
    assert words in find_technique("packing", "shared-prefix").obstacle(of)


# ---- the first step


@pytest.mark.parametrize(("planned", "words"), [(SHARED, ""), (SHARED + 9, "texts share 6 tokens, planned 15")])
def test_the_first_step_sees_whole_texts_and_what_they_share(load, tmp_path, capsys, planned, words):
    from transformers import Trainer, TrainingArguments
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    load("model_states/plain", "model_states")
    load("terminal")
    load("arguments")
    first_step = load("first_step")
    model = build_model("llama")
    load("row_attention").attend_within_rows(model)
    args = TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        max_steps=2,
        per_device_train_batch_size=3,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    trainer = Trainer(model=model, args=args, train_dataset=make_rows(), data_collator=collator)
    load("shared_prefix").share_prefix(trainer)
    facts = {"trained": "float32", "attention": "row_by_row", "dense_mask": False, "shared_tokens": planned, "gib": {}}
    trainer.add_callback(first_step.CheckFirstStep(trainer, {"first_step": facts}))
    trainer.train()
    printed = capsys.readouterr().out
    assert f"shared tokens {planned}" in printed and words in printed
    assert ("slower than planned" in printed) == bool(words)
