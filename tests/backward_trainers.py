"""Small trainings of optimizers that update in the backward pass."""

from __future__ import annotations

import sys

from leaves import load_leaf

STEPS = 6


def update_in_backward(trainer) -> None:
    sys.modules.setdefault("backward_updates", load_leaf("backward_updates"))
    load_leaf("update_in_backward").update_in_backward(trainer)


def make_trainer(folder, *, in_backward: bool, tied: bool = False, **arguments):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, default_data_collator, set_seed

    set_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, tie_word_embeddings=tied))
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(2, 512, (24,), generator=generator) for _ in range(4 * STEPS)]
    args = TrainingArguments(
        output_dir=str(folder),
        learning_rate=1e-3,
        warmup_steps=2,
        weight_decay=0.1,
        **{"max_grad_norm": 0.0, "per_device_train_batch_size": 4, "num_train_epochs": 1, "logging_steps": 1}
        | {
            "optim": "paged_adamw_8bit",
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "save_strategy": "no",
        }
        | arguments,
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(model=model, args=args, train_dataset=data, data_collator=default_data_collator)
    if in_backward:
        update_in_backward(trainer)
    return trainer


def list_figures(trainer) -> list[tuple[float, float, float]]:
    return [(r["loss"], r["grad_norm"], r["learning_rate"]) for r in trainer.state.log_history if "loss" in r]


def list_weights(trainer) -> dict:
    return {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
