"""The flags of train.py: TrainingArguments, less what only Trainer does."""

import os
from dataclasses import dataclass, field, fields
from typing import ClassVar

from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig

ONLY_OF_TRAINER = (
    *("accelerator_config", "auto_find_batch_size", "average_tokens_across_devices", "batch_eval_metrics"),
    *("bf16_full_eval", "dataloader_drop_last", "dataloader_multiprocessing_context"),
    *("ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_static_graph"),
    *("debug", "deepspeed", "enable_jit_checkpoint", "eval_delay", "fp16", "fp16_full_eval", "fsdp"),
    *("fsdp_config", "full_determinism", "hub_strategy", "ignore_data_skip", "include_for_metrics"),
    *("include_num_input_tokens_seen", "label_names", "label_smoothing_factor", "liger_kernel_config"),
    *("neftune_noise_alpha", "optim_target_modules", "parallelism_config", "push_to_hub"),
    *("restore_callback_states_from_checkpoint", "save_only_model", "skip_memory_metrics", "torch_compile"),
    *("torch_empty_cache_steps", "use_liger_kernel"),
)
"""Names that loop.py does not read: a run that silently did without them would be another one."""


@dataclass
class LoopArguments(TrainingArguments):
    """``world_size`` counts copies of the model, each with rows of its own; ``sharers`` are the processes of a copy."""

    copies: ClassVar[int] = 1
    async_save: bool = field(
        default=False,
        metadata={"help": "Write checkpoints while the training goes on, from a copy of the states in host memory."},
    )

    def __post_init__(self):
        super().__post_init__()
        defaults = {field.name: field.default for field in fields(TrainingArguments)}
        defaults["accelerator_config"] = AcceleratorConfig()
        for name in ONLY_OF_TRAINER:
            if getattr(self, name) not in (defaults.get(name), None, [], {}):
                raise ValueError(f"--{name} is Trainer's, and this plan trains with a loop of its own (loop.py)")
        if self.lr_scheduler_type == "reduce_lr_on_plateau":
            raise ValueError("--lr_scheduler_type reduce_lr_on_plateau: this plan's rate is of the step alone")
        if self.train_sampling_strategy != "random":
            raise ValueError("--train_sampling_strategy: this plan's rows come in random order (row_order.py)")

    @property
    def world_size(self) -> int:
        return self.copies

    @property
    def sharers(self) -> int:
        return int(os.environ["WORLD_SIZE"]) // self.copies
