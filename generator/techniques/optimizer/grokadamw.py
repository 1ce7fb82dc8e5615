from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class GrokAdamW(Optimizer):
    """GrokAdamW: AdamW that amplifies slow gradients.

    What it does: AdamW that amplifies slow gradients, for models that generalize late.
    When it loses: in memory: a third state per parameter.
    Known problems: little is published of it beyond small tasks.
    """

    name = "grokadamw"
    optim = "grokadamw"
    quality = 2
    quality_note = "another update rule"
    requires = "grokadamw"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://github.com/cognitivecomputations/grokadamw", "based on Grokfast, arXiv 2405.20233"),)
