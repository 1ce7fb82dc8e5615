from generator.techniques.base import Published
from generator.techniques.parallelism.pipeline import Pipeline
from generator.techniques.traits import Trait


class PipelineFsdp2(Pipeline):
    """Copies of a pipeline whose stages are sharded over the copies (FSDP2), weights kept from forward to backward pass.

    What it does: divides a stage's gradients and states over the copies, as ZeRO-2 does; weights are gathered once a step.
    When it loses: wherever pipeline-ddp fits, and against FSDP2 alone over fast links.
    Known problems: those of a pipeline: its first and last stage hold the embedding and the output layer.
    """

    name = "pipeline-fsdp2"
    strategy = "fsdp_shard_grad_op"
    provides = frozenset({Trait.DTENSOR})
    evidence = (
        Published(
            "https://arxiv.org/abs/2407.21783",
            "Llama 3: FSDP with pipeline stages, weights not resharded after the forward pass",
        ),
    )
