from generator.edits import Edits, argument
from generator.launch import link_environment, torchrun
from generator.layouts import data_parallel, one_device, uneven
from generator.technique import Published, Technique


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
        return one_device(case) or uneven(case, self.layouts(case))

    def layouts(self, case):
        return data_parallel(case, "ddp")

    def edits(self, case):
        none_unused = case.model.kind == "decoder"  # its every weight has a gradient in every step
        why = "every weight has a gradient: saves a search of the graph"
        return Edits(
            launcher=torchrun(case.layout),
            training_arguments=(argument("ddp_find_unused_parameters", False, why),) if none_unused else (),
            environment=link_environment(case),
        )
