from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class Sgd(Optimizer):
    """Stochastic gradient descent.

    What it does: one step along the gradient; no state without momentum.
    When it loses: in what it learns: it rarely trains transformers well.
    Known problems: needs a learning rate of its own.
    """

    name = "sgd"
    optim = "sgd"
    state = OptimizerState(step_passes=3, foreach=True, source="torch.optim.SGD without momentum keeps nothing")
    quality = 3
    quality_note = "plain SGD: needs its own learning rate"
    request_only = "it is another optimizer than AdamW"
    evidence = (Published("https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html", "the plain rule"),)
