"""Flags of a training with a loop of its own: each name of TrainingArguments is read, read by something else, or refused."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from leaves import FRAGMENTS

transformers = pytest.importorskip("transformers")

ELSEWHERE = {
    *("tf32", "use_cpu", "ddp_backend", "ddp_timeout", "local_rank", "log_level", "log_level_replica"),  # itself
    *("gradient_checkpointing", "gradient_checkpointing_kwargs"),  # itself: older names of activation_checkpointing
    *("logging_strategy", "logging_first_step"),  # DefaultFlowCallback
    *("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),  # trackers
    *("torch_compile_backend", "torch_compile_mode"),  # set torch_compile, which is refused
    *("hub_private_repo", "hub_model_id", "hub_always_push"),  # of push_to_hub, which is refused
    *("do_train", "do_eval", "do_predict"),  # of scripts, and read by none
    *(
        "disable_tqdm",
        "logging_nan_inf_filter",
        "log_on_each_node",
        "save_on_each_node",
    ),  # the loop prints and saves once
    *("per_device_eval_batch_size", "prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object"),
    *("eval_accumulation_steps", "remove_unused_columns", "length_column_name", "dataloader_in_order", "use_cache"),
}
"""Names without an effect on what is trained, or read by what the loop calls."""


def test_no_name_is_silently_without_effect(load):
    loop = load("loop_arguments")
    leaves = [*FRAGMENTS.glob("*.py"), *FRAGMENTS.glob("division/*.py"), *FRAGMENTS.glob("wrapping/*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in leaves)
    names = {field.name for field in fields(transformers.TrainingArguments)}
    unread = {name for name in names if not re.search(rf"\b(args|arguments|self|values)\.{name}\b", code)}
    assert unread - ELSEWHERE - {*loop.ONLY_OF_TRAINER} == set()
    assert names >= ELSEWHERE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("debug", "underflow_overflow"),
        ("ddp_bucket_cap_mb", 10),
        ("dataloader_drop_last", True),
        ("skip_memory_metrics", False),
        ("accelerator_config", {"split_batches": True}),
        ("label_smoothing_factor", 0.1),
    ],
)
def test_what_only_trainer_does_is_refused(load, tmp_path, name, value):
    loop = load("loop_arguments")
    loop.LoopArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(ValueError, match=f"--{name} is Trainer's"):
        loop.LoopArguments(output_dir=str(tmp_path), use_cpu=True, **{name: value})


def test_a_rate_that_follows_evaluations_is_refused(load, tmp_path):
    """Of the rates of --lr_scheduler_type it is the only one whose steps take a metric."""
    asked = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2}
    with pytest.raises(ValueError, match="rate is of the step alone"):
        load("loop_arguments").LoopArguments(output_dir=str(tmp_path), use_cpu=True, **asked)
