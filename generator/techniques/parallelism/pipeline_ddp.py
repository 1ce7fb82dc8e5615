from generator.techniques.base import Published
from generator.techniques.parallelism.pipeline import Pipeline


class PipelineDdp(Pipeline):
    """Copies of a pipeline, each with its part of the batch; gradients are summed over the copies after the last pass.

    What it does: uses more devices than the model has cuts, with one reduction of each stage's gradients a step.
    When it loses: where a stage's weights, gradients and states do not fit one device; over few micro-batches.
    Known problems: those of a pipeline: its first and last stage hold the embedding and the output layer.
    """

    name = "pipeline-ddp"
    strategy = "summed_copies"
    evidence = (Published("https://arxiv.org/abs/2104.04473", "pipeline with data parallelism, on up to 3072 A100"),)
