from dataclasses import replace

from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published
from generator.techniques.edits import Code, Edits, make_argument
from generator.techniques.launch import launch_with_torchrun, restrict_links
from generator.techniques.layouts import list_sharded
from generator.techniques.sharding import Fsdp


class Fsdp2AtLoad(Fsdp):
    """FSDP2 while the checkpoint is read: every device reads its own shard, and the whole model is nowhere.

    What it does: loads models that do not fit the memory of a host; activations are recomputed by the Trainer, not by
    FSDP.
    When it loses: wherever a host can hold the model: fsdp2 can then be resumed.
    Known problems: the Trainer then saves weights only, so a run that was interrupted starts again with a fresh
    optimizer, or from the beginning.
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

    def obstacle(self, case: Case) -> str | None:
        if case.workload.from_scratch:
            return "there are no weights to load: the model starts from random ones"
        if case.workload.train != "full":
            return "adapters are added after the weights are sharded, and would be whole on every device"
        return super().obstacle(case)

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return tuple(replace(x, at_load=True) for x in list_sharded(case, self.strategy))

    def edits(self, case: Case) -> Edits:
        return Edits(
            imports=("from transformers.distributed import DistributedConfig",),
            launcher=launch_with_torchrun(case),
            model_arguments=(
                make_argument(
                    "distributed_config",
                    Code(f"DistributedConfig(fsdp_size={case.layout.shard})"),
                    "each process reads its shard",
                ),
            ),
            training_arguments=(
                make_argument("save_only_model", True, "the optimizer of such a model cannot be saved"),
            ),
            environment=restrict_links(case),
        )
