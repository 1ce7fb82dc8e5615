from generator.case.strategies import STRATEGIES
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Code, Edits, argument
from generator.techniques.launch import launch_with_torchrun, restrict_links
from generator.techniques.layouts import explain_one_device, explain_uneven, list_sharded


class Zero1(Technique):
    """ZeRO stage 1 (DeepSpeed): optimizer states are divided over the devices.

    Every device keeps 16-bit weights and all gradients, and updates its part of the float32 master weights. As much traffic as
    DDP for states of 12 bytes a parameter divided by the devices.
    """

    axis = "parallelism"
    name = "zero1"
    resort = 1  # R110: what fits without DeepSpeed does not use it
    adds = 3  # the library, its deepspeed.json, and its launcher
    evidence = (
        Published("https://arxiv.org/abs/1910.02054", "stage 1: 4 times less memory for states, the traffic of DDP"),
    )
    stage = 1
    least = 2

    def obstacle(self, case):
        single = None if self.least == 1 and not case.on_cpu and not case.portable else explain_one_device(case)
        return single or case.stack.why_missing("deepspeed") or explain_uneven(case, self.layouts(case))

    def clash(self, other, case):
        return deepspeed_clash(other)

    def layouts(self, case):
        return list_sharded(case, self.name) or list_sharded(
            case, self.name, least=self.least
        )  # one device: only to offload

    def edits(self, case):
        settings = Code('str(HERE / "deepspeed.json")')
        return Edits(
            launcher=launch_with_torchrun(case.layout),
            training_arguments=(argument("deepspeed", settings, f"ZeRO stage {self.stage}"),),
            deepspeed=tuple((FILLED_BY_TRAINER | {"zero_optimization.stage": self.stage} | self.settings()).items()),
            environment=restrict_links(case),
            requirements=("deepspeed",),
        )

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


def deepspeed_clash(other) -> str | None:
    if (other.axis == "optimizer" and not other.name.startswith("adamw")) or other.name.startswith("adamw-torchao"):
        return "DeepSpeed has tested its stages with AdamW only (it asks for zero_allow_untested_optimizer)"
    if other.id in ("optimizer=adamw-8bit", "optimizer=paged-adamw-8bit"):
        return "DeepSpeed has tested its stages with 32-bit AdamW only (it asks for zero_allow_untested_optimizer)"
    if other.id == "compile=default":
        return "DeepSpeed's hooks on every module break the compiled graph"
    if other.id == "precision=bf16-pure":
        return "DeepSpeed keeps float32 master weights beside 16-bit ones by itself: that is precision=bf16"
    if other.id == "trained=qlora":
        return "adapters have too few states to be worth dividing, and DeepSpeed cannot divide packed 4-bit weights"
    return None
