from generator.case.case import Case
from generator.case.strategies import STRATEGIES
from generator.techniques.base import Published
from generator.techniques.edits import Edits, merge_edits
from generator.techniques.parallelism.zero1 import Zero1
from generator.techniques.traits import Trait

MEETING = Edits(
    imports=("from deepspeed import init_distributed",),
    setup=(
        'init_distributed("gloo")  # before the model is read in parts: on CPUs Accelerate leaves it to the engine',
    ),
)
"""Where use_cpu is set Accelerate 1.15 begins the processes' group by torch alone (PartialState), and DeepSpeed takes a process for
the only one: zero.Init ends in "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size"."""


class Zero3(Zero1):
    """ZeRO stage 3 (DeepSpeed): weights, gradients and optimizer states are all divided over the devices.

    What it does: every layer's weights are gathered when they are used and let go again: memory falls with the number
    of devices. Weights, too, can be offloaded to the host or its disk.
    When it loses: wherever a lower stage fits: 1.5 times the traffic of DDP.
    Known problems: as stage 1; small parameters stay whole on every device; the model must be made after
    TrainingArguments; with the optimizer offloaded gradients go to the host and back in every micro-batch.
    """

    name = "zero3"
    stage = 3
    least = 1
    provides = frozenset({Trait.OPTIMIZER_OFFLOAD, Trait.WEIGHTS_OFFLOAD, Trait.NVME_OFFLOAD})
    evidence = (
        Published(
            "https://arxiv.org/abs/1910.02054",
            "stage 3: memory for states divided by the devices, 1.5 times the traffic",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        if case.workload.mode == "train" and case.model.quantization:
            return (
                f"Transformers reads a packed checkpoint ({case.model.quantization}) past its sharded read (get_init_context, 5.23): "
                "every process would hold the whole unpacked model"
            )
        return super().obstacle(case)

    def edits(self, case: Case) -> Edits:
        edits = super().edits(case)
        return merge_edits([("stage", edits), ("meeting", MEETING)]) if case.on_cpu else edits

    def settings(self) -> dict[str, object]:
        elements = int(STRATEGIES[self.name].live_elements)
        return {
            "zero_optimization.overlap_comm": True,
            "zero_optimization.contiguous_gradients": True,
            "zero_optimization.reduce_bucket_size": "auto",
            "zero_optimization.stage3_prefetch_bucket_size": "auto",
            "zero_optimization.stage3_param_persistence_threshold": "auto",
            "zero_optimization.stage3_max_live_parameters": elements,
            "zero_optimization.stage3_max_reuse_distance": elements,
            "zero_optimization.stage3_gather_16bit_weights_on_model_save": True,
        }
