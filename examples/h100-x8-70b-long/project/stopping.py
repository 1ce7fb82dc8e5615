"""When a run ends before its last step: on a signal, after a save; at a loss that is no number, without one."""

import errno
import math
import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from transformers import TrainerCallback

from evaluation import EvaluationStopped
from masking import mask_messages
from seals import cancel_checkpoint
from terminal import keep_streams


def run_main(main: Callable[[], None]) -> None:
    """A line in place of a traceback for what lies outside: a full disk, a denied model, Ctrl-C before step 1."""
    keep_streams()
    mask_messages()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the imports are over
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        line = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if is_disk_full(error):
            advice = "What was saved before is complete: free some space and run again."
            sys.exit(f"{line}\nThe disk is full, or it fails. {advice}")
        if WORKER in str(error):  # raised by a signal, in whatever line was at work
            advice = "What was saved before is complete: run again, with fewer of them (--dataloader_num_workers)."
            sys.exit(f"{line}\nA process that reads rows is gone: out of memory? {advice}")
        if not isinstance(error, OSError):
            raise
        sys.exit(line)


def is_disk_full(error: BaseException | None) -> bool:
    """Each library has an error of its own for it, some with the system's beneath."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or any(text in str(error) for text in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


WORKER = "DataLoader worker (pid"
"""In PyTorch's message about one that was killed; an error of the rows themselves has another, and its traceback."""
FULL = (
    os.strerror(errno.ENOSPC),
    os.strerror(errno.EDQUOT),
    *("PytorchStreamWriter failed", "unexpected pos", "iostream error"),  # torch.save keeps the system's to itself
)


def leave_terminal() -> None:
    """It is closed: a line that is written there, or to a program that went with it, would end the run unsaved."""
    for descriptor in (1, 2):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


class SaveOnSignal(TrainerCallback):
    """SIGTERM (the machine is taken back), Ctrl-C, a closed terminal: finish the step, save, exit 143, 130 or 129.

    An evaluation is not finished: it may take longer than whoever sent it waits.
    """

    def __init__(self, advice: str = "run again to go on"):
        self.advice = advice
        self.requested = 0  # by the handler, at any moment
        self.signum = 0  # decided at the end of a step, or of a batch of an evaluation
        self.leaves_work = False  # steps, or an evaluation, to the run that goes on

    def on_train_begin(self, args, state, control, **kwargs):
        self.saved_step = self.first_step = state.global_step
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self.request_stop)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
            signal.signal(signal.SIGHUP, self.leave_and_stop)

    def request_stop(self, signum, frame):
        if signum == signal.SIGINT:
            signal.signal(signum, signal.SIG_DFL)  # a second one ends it at once. SIGTERM comes twice of itself, ...
        self.requested = signum  # ... to the group and to the process, or ahead of a time limit and at it

    def leave_and_stop(self, signum, frame):
        """The shell and the system may both send it."""
        leave_terminal()
        self.requested = signum

    def on_prediction_step(self, args, state, control, **kwargs):
        self.signum = self.decide_signal()
        if not self.signum:
            return
        if state.global_step == self.first_step:  # nothing has been trained since this run began
            if state.is_world_process_zero:
                step = state.global_step
                place = f"after step {step}: {self.advice}" if step else "before step 1: nothing is lost"
                print(f"stopped by {signal.Signals(self.signum).name} {place}")
            sys.exit(128 + self.signum)
        control.should_save, control.should_training_stop = self.saved_step != state.global_step, True
        self.leave_work(args, state, control)
        raise EvaluationStopped

    def on_step_end(self, args, state, control, **kwargs):
        self.signum = self.decide_signal()
        if self.signum:
            control.should_save = control.should_training_stop = True
            self.leave_work(args, state, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        """It also follows a step that ended the training, within an epoch: that step is saved already."""
        if self.signum:
            self.leave_work(args, state, control)
            control.should_save &= not self.leaves_work

    def leave_work(self, args, state, control) -> None:
        """Whoever sent it waits: the best model, too, is for the end of training."""
        self.leaves_work |= control.should_evaluate or state.global_step < state.max_steps
        if self.leaves_work:
            args.load_best_model_at_end = control.should_evaluate = False

    def decide_signal(self) -> int:
        return self.requested

    def on_save(self, args, state, control, **kwargs):
        self.saved_step = state.global_step

    def on_train_end(self, args, state, control, **kwargs):
        if not self.leaves_work:  # it is trained: the model and its report follow
            return
        if state.is_world_process_zero:
            saved = self.saved_step == state.global_step  # not where the disk had no room
            advice = self.advice if saved else f"nothing was saved since step {self.saved_step}"
            print(f"stopped by {signal.Signals(self.signum).name} after step {state.global_step}: {advice}")
        sys.exit(128 + self.signum)


class StopOnBadLoss(TrainerCallback):
    """Ends the run at the first loss or gradient that is not a number: nothing after it can be used."""

    def on_log(self, args, state, control, **kwargs):
        logs = kwargs["logs"]
        gradients = () if args.fp16 else ("grad_norm",)  # fp16's loss scaler skips overflowing steps itself
        watched = ("loss", "eval_loss", *gradients)
        for name in watched:
            if not math.isfinite(logs.get(name, 0.0)):
                if state.is_world_process_zero:
                    cancel_checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}")
                sys.exit(
                    f"step {state.global_step}: non-finite {name} ({logs[name]}). Earlier checkpoints are good; "
                    "look at this step's data, or lower learning_rate in config.yaml."
                )
