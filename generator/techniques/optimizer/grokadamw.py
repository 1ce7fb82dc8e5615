from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class GrokAdamW(AdamW):
    """GrokAdamW: AdamW that amplifies slow gradients.

    For models that generalize late.
    """

    name = "grokadamw"
    optim = "grokadamw"
    quality = 2
    quality_note = "another update rule"
    requires = "grokadamw"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://github.com/cognitivecomputations/grokadamw", "based on Grokfast, arXiv 2405.20233"),)
