from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class Adafactor(AdamW):
    """Adafactor: rows and columns of the second moment instead of all of it.

    About 4 bytes of state a parameter with momentum, next to none without. Slower convergence than AdamW in places.
    """

    name = "adafactor"
    optim = "adafactor"
    quality = 2
    quality_note = "another second-moment estimate than AdamW: check convergence"

    evidence = (
        Published(
            "https://arxiv.org/abs/1804.04235",
            "sublinear memory with results comparable to Adam on machine translation",
        ),
    )
