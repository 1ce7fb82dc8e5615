from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class Sgd(AdamW):
    """Stochastic gradient descent.

    No state without momentum. Rarely trains transformers well.
    """

    name = "sgd"
    optim = "sgd"
    quality = 3
    quality_note = "plain SGD: needs its own learning rate"

    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html", "the plain rule"),)
