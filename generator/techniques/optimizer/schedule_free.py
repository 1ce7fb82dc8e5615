from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class ScheduleFree(AdamW):
    """Schedule-free AdamW: weight averaging in place of a schedule.

    For runs whose length is not known. Wants lr_scheduler_type constant.
    """

    name = "schedule-free"
    optim = "schedule_free_adamw"
    quality = 2
    quality_note = "no learning-rate schedule: another training recipe"
    requires = "schedulefree"
    request_only = "it replaces the learning-rate schedule"
    evidence = (
        Published("https://arxiv.org/abs/2405.15682", "matches cosine schedules without knowing the number of steps"),
    )
