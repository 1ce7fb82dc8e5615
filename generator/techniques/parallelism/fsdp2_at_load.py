from dataclasses import replace

from generator.techniques.base import Published
from generator.techniques.edits import Code, Edits, argument
from generator.techniques.launch import launch_with_torchrun, restrict_links
from generator.techniques.layouts import list_sharded
from generator.techniques.parallelism.fsdp2 import Fsdp2


class Fsdp2AtLoad(Fsdp2):
    """FSDP2 while the checkpoint is read: every device reads its own shard, and the whole model is nowhere.

    For models that do not fit the memory of a host. Known problem: the Trainer then saves weights only, so a run that was
    interrupted starts again with a fresh optimizer, or from the beginning.
    """

    name = "fsdp2-at-load"
    request_only = "the Trainer cannot save its optimizer, so an interrupted run cannot be resumed"
    quality_note = "checkpoints hold weights only: an interrupted run starts anew"
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/fsdp",
            "DistributedConfig(fsdp_size=N): parameters are sharded as they are loaded",
        ),
    )

    def obstacle(self, case):
        if case.workload.from_scratch:
            return "there are no weights to load: the model starts from random ones"
        if case.workload.train != "full":
            return "adapters are added after the weights are sharded, and would be whole on every device"
        return super().obstacle(case)

    def clash(self, other, case):
        if other.axis == "checkpointing":
            return None  # the Trainer's own
        return super().clash(other, case)

    def layouts(self, case):
        return tuple(replace(x, at_load=True) for x in list_sharded(case, self.strategy))

    def edits(self, case):
        return Edits(
            imports=("from transformers.distributed import DistributedConfig",),
            launcher=launch_with_torchrun(case.layout),
            model_arguments=(
                argument(
                    "distributed_config",
                    Code(f"DistributedConfig(fsdp_size={case.layout.shard})"),
                    "each process reads its shard",
                ),
            ),
            training_arguments=(argument("save_only_model", True, "the optimizer of such a model cannot be saved"),),
            environment=restrict_links(case),
        )
