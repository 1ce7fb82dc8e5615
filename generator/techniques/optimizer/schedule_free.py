from dataclasses import replace

from generator.case.case import Case
from generator.case.optimizer_states import OptimizerState
from generator.techniques.base import Published
from generator.techniques.edits import Edits
from generator.techniques.optimizers import Optimizer


class ScheduleFree(Optimizer):
    """Schedule-free AdamW: weight averaging in place of a schedule.

    What it does: averages weights in place of a learning-rate schedule: for runs whose length is not known.
    When it loses: where the length is known and a schedule was tuned.
    Known problems: wants lr_scheduler_type constant (config.yaml has it); what is evaluated and saved must be the average.
    """

    name = "schedule-free"
    optim = "schedule_free_adamw"
    state = OptimizerState(full_states=2, step_passes=8, source="AdamWScheduleFree: z and one moment")
    quality = 2
    quality_note = "no learning-rate schedule: another training recipe"
    requires = "schedulefree"
    scheduler = "constant"
    request_only = "it replaces the learning-rate schedule"
    evidence = (
        Published("https://arxiv.org/abs/2405.15682", "matches cosine schedules without knowing the number of steps"),
    )

    def edits(self, case: Case) -> Edits:
        return replace(
            super().edits(case),
            imports=("from averaged_weights import SaveAveragedWeights",),
            fragments=("averaged_weights",),
            callbacks=("SaveAveragedWeights()",),
        )
