"""Schedule-free AdamW trains other weights than it has learned, their average: what is saved is the average."""

from transformers import TrainerCallback


class SaveAveragedWeights(TrainerCallback):
    """Puts the average in place before a save; Trainer does so before an evaluation alone, and undoes it in a step."""

    def on_step_end(self, args, state, control, optimizer, **kwargs):
        if control.should_save or state.global_step >= state.max_steps:
            optimizer.eval()
