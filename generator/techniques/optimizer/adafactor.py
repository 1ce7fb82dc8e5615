from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class Adafactor(Optimizer):
    """Adafactor: rows and columns of the second moment instead of all of it.

    What it does: the second moment as row and column means instead of a value per parameter: next to no state.
    When it loses: where memory is not short: it converges slower than AdamW in places.
    Known problems: another second-moment estimate than AdamW, so a learning rate tuned for AdamW may not suit.
    """

    name = "adafactor"
    optim = "adafactor"
    state = OptimizerState(
        factored=True, step_passes=9, source="without momentum: row and column means (Shazeer and Stern 2018)"
    )
    quality = 2
    quality_note = "another second-moment estimate than AdamW: check convergence"
    evidence = (
        Published(
            "https://arxiv.org/abs/1804.04235",
            "sublinear memory with results comparable to Adam on machine translation",
        ),
    )
