from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits, argument
from generator.techniques.launch import launch_with_torchrun, restrict_links
from generator.techniques.layouts import explain_one_device, explain_uneven, list_data_parallel


class Ddp(Technique):
    """DistributedDataParallel: every device has the whole model and its part of the batch; gradients are averaged.

    The plain way to use several devices when everything fits on one. One reduction of the gradients an optimizer step, hidden
    in part behind the backward pass.
    """

    axis = "parallelism"
    name = "ddp"
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/v4.41.3/en/perf_train_gpu_many",
            "2 x TITAN RTX: 101 s with NVLink, 131 s without, for the same steps",
        ),
    )

    def obstacle(self, case):
        return explain_one_device(case) or explain_uneven(case, self.layouts(case))

    def layouts(self, case):
        return list_data_parallel(case, "ddp")

    def edits(self, case):
        none_unused = case.model.kind == "decoder"  # its every weight has a gradient in every step
        why = "every weight has a gradient: saves a search of the graph"
        return Edits(
            launcher=launch_with_torchrun(case.layout),
            training_arguments=(argument("ddp_find_unused_parameters", False, why),) if none_unused else (),
            environment=restrict_links(case),
        )
