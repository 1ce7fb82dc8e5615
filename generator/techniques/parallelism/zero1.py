from typing import ClassVar

from generator.case.case import Case
from generator.case.layout import Layout
from generator.case.strategies import STRATEGIES
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, make_argument
from generator.techniques.launch import launch_with_torchrun, restrict_links
from generator.techniques.layouts import explain_one_device, explain_uneven, list_sharded
from generator.techniques.precision.fp16 import explain_missing_fp16
from generator.techniques.traits import Trait


class Zero1(Technique):
    """ZeRO stage 1 (DeepSpeed): optimizer states are divided over the devices.

    What it does: every device keeps 16-bit weights and the float32 sums of all gradients, and updates its part of the
    float32 master weights: as much traffic as DDP for states of 12 bytes per parameter divided by the devices.
    When it loses: wherever DDP fits: it only adds a library.
    Known problems: a misspelt key at the top of deepspeed.json is silently accepted; bf16 gradients are summed in bf16
    unless it is told otherwise.
    """

    axis = "parallelism"
    name = "zero1"
    last_resort = 1  # R110: what fits without DeepSpeed does not use it
    adds = 3  # the library, its deepspeed.json, and its launcher
    provides = frozenset({Trait.DEEPSPEED_ENGINE})
    evidence = (
        Published("https://arxiv.org/abs/1910.02054", "stage 1: 4 times less memory for states, the traffic of DDP"),
    )
    stage: ClassVar[int] = 1
    least: ClassVar[int] = 2
    """devices: on one, a stage only serves to offload"""

    def obstacle(self, case: Case) -> str | None:
        single = None if self.least == 1 and not case.on_cpu and not case.portable else explain_one_device(case)
        return single or case.stack.why_missing("deepspeed") or explain_uneven(case, self.layouts(case))

    def rate_resort(self, case: Case) -> int:
        """DeepSpeed scales the loss of what it divides; FSDP2 does not, and would leave the tensor cores of a V100 or T4 idle."""
        return 0 if case.workload.mode == "train" and explain_missing_fp16(case) is None else self.last_resort

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return list_sharded(case, self.name, least=self.least)

    def edits(self, case: Case) -> Edits:
        settings = Code('str(HERE / "deepspeed.json")')
        return Edits(
            launcher=launch_with_torchrun(case),
            training_arguments=(make_argument("deepspeed", settings, f"ZeRO stage {self.stage}"),),
            deepspeed=tuple(
                (FILLED_BY_TRAINER | {"zero_optimization.stage": self.stage} | self.settings() | self.release()).items()
            ),
            environment=restrict_links(case),
            requirements=("deepspeed",),
        )

    def release(self) -> dict[str, object]:
        """What frees 16-bit gradients as they come: their float32 sums, of the whole model at stage 1, have them already."""
        return {"bf16.immediate_grad_update": True} if self.stage == 1 else {}

    def settings(self) -> dict[str, object]:
        """Of this stage, under ``zero_optimization``."""
        elements = int(STRATEGIES[self.name].bucket_elements)
        return {
            "zero_optimization.overlap_comm": True,
            "zero_optimization.contiguous_gradients": True,
            "zero_optimization.reduce_bucket_size": elements,
            "zero_optimization.allgather_bucket_size": elements,
        }


FILLED_BY_TRAINER = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16.enabled": "auto",
    "fp16.enabled": "auto",
}
"""Copied from TrainingArguments, so that its flags keep working: a value here that differs ends the run."""
