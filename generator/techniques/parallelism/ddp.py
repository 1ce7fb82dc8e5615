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
        "mllama",  # gates of the layers that attend to images
    }
)
"""Types of decoders with weights that full training leaves without a gradient, for which DDP waits in vain: of 131 types that
Transformers 5.23 makes from a small config, one backward pass each; dots3_note_text, which was not run, by its code."""


UNREACHED = frozenset(
    {"fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "got_ocr2", "moss_transcribe_diarize", "phi4_multimodal"}
)
"""Types with layers for images or sounds beside the text model (Transformers 5.23: AutoModelForCausalLM of a multimodal config): no text
reaches them, nor a gradient their weights or adapters."""
UNREACHED_CLASSIFIERS = UNREACHED | {"lilt", "modernvbert", "qwen3_5", "t5gemma2", "ultravbert"}
"""The same of AutoModelForSequenceClassification; in LiLT it is the last layer of boxes."""


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
        model_type, workload = case.model.model_type, case.workload
        whole = workload.train == "full"
        beside = UNREACHED_CLASSIFIERS if workload.task_facts.classifies else UNREACHED
        reached = model_type not in beside and not (whole and model_type in GRADIENTLESS)
        trained = "weight" if whole else "adapter"
        searched = f"some {trained}s have no gradient"
        why = f"every {trained} has a gradient: saves a search of the graph" if reached else searched
        # of other encoders the pooler has one or not, by the task: Trainer's default looks
        known = case.model.kind == "decoder" or not reached
        return Edits(
            launcher=launch_with_torchrun(case),
            training_arguments=(make_argument("ddp_find_unused_parameters", not reached, why),) if known else (),
            environment=restrict_links(case),
        )
