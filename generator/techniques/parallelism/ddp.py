from generator.case.case import Case
from generator.case.layout import Layout
from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, make_argument
from generator.techniques.launch import launch_with_torchrun, restrict_links
from generator.techniques.layouts import explain_one_device, explain_uneven, list_data_parallel
from generator.techniques.traits import Trait

GRADIENTLESS = frozenset(
    {
        *("afmoe", "ernie4_5_moe", "laguna"),  # the bias that balances experts is set, not learned
        *(
            "axk2",
            "deepseek_v32",
            "deepseek_v4",
            "dots3_note_text",
            "glm_moe_dsa",
            "hy_v4",
        ),  # indexers of sparse attention
        "hrm_text",  # the initial state
    }
)
"""Types of decoders with weights that full training leaves without a gradient, for which DDP waits in vain: of 131 types that
Transformers 5.23 makes from a small config, one backward pass each; dots3_note_text, which was not run, by its code."""


class Ddp(Technique):
    """DistributedDataParallel: every device has the whole model and its part of the batch; gradients are averaged.

    What it does: one reduction of the gradients per optimizer step, hidden in part behind the backward pass.
    When it loses: where weights, gradients and states do not fit one device, and over slow links.
    Known problems: takes buffers as large as the gradients; a quantized model must be loaded on each process's own
    device.
    """

    axis = "parallelism"
    name = "ddp"
    provides = frozenset({Trait.PACKED_SHARDS})
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/v4.41.3/en/perf_train_gpu_many",
            "2 x TITAN RTX: 101 s with NVLink, 131 s without, for the same steps",
        ),
    )

    def obstacle(self, case: Case) -> str | None:
        return explain_one_device(case) or explain_uneven(case, self.layouts(case))

    def layouts(self, case: Case) -> tuple[Layout, ...]:
        return list_data_parallel(case, "ddp")

    def edits(self, case: Case) -> Edits:
        trained = "every weight" if case.workload.train == "full" else "every adapter"
        reached = case.workload.train != "full" or case.model.model_type not in GRADIENTLESS
        why = f"{trained} has a gradient: saves a search of the graph" if reached else "some weights have no gradient"
        # of an encoder the pooler has one or not, by the task: Trainer's default looks
        known = case.model.kind == "decoder"
        return Edits(
            launcher=launch_with_torchrun(case),
            training_arguments=(make_argument("ddp_find_unused_parameters", not reached, why),) if known else (),
            environment=restrict_links(case),
        )
