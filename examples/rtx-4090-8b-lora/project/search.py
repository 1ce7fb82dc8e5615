"""Look for better values of what is yours: each trial is train.py with other flags, judged by what is held out.

python search.py learning_rate=1e-5..1e-3 warmup_steps=0,0.03,0.1 --trials 20 -- --max_steps 200 --eval_steps 50

What stands behind -- goes to train.py in every trial. The first trial has the values of config.yaml. A second start
goes on, also beside the first one, on another device of this machine. Trials that are worse than half of the others
there are ended.
"""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import signal
import sys
from pathlib import Path

import optuna
from optuna.trial import TrialState

from config_file import read_config
from finished_runs import STUDY
from masking import mask_messages
from search_report import describe_trial, list_complete, list_results, write_results
from search_trials import ENDED, Judge, hold, hold_trial, is_held, keep_report, release_trial, run_trial
from search_values import Values, parse_values, read_metric, refuse_flags, split_words

HERE = Path(__file__).resolve().parent
CONFIG = read_config()
FIRST_TRIALS = 5
"""Trials that are never ended early: what is compared with must be there first."""
FAILED = "failed"
"""Attribute of a trial whose training failed: why. One that was killed has none, and begins anew."""


def main() -> None:
    own, flags = split_words(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("values", nargs="*", help="NAME=LOW..HIGH or NAME=A,B,C (default: learning rates)")
    parser.add_argument("--trials", type=int, default=20, help="in all, also failed and earlier ones (default: 20)")
    parser.add_argument("--folder", type=Path, default=HERE / CONFIG["output_dir"] / "search", help="where they lie")
    parser.add_argument("--no-prune", action="store_true", help="train every trial to its end")
    parser.add_argument("--json", action="store_true", help="print what search.json holds")
    args = parser.parse_args(own)
    if CONFIG["eval_data"] is None:
        parser.error("nothing is held out to judge by: set eval_data in config.yaml to a file or a share")
    try:
        space = parse_values(args.values, CONFIG["training"]["learning_rate"])
        metric = read_metric(flags, CONFIG["training"])
    except ValueError as error:
        parser.error(str(error))
    refuse_flags(parser, flags, space)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    def say(text: str) -> None:
        print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

    best = min if metric in ("loss", "perplexity") else max
    keeps_best = CONFIG["training"].get("load_best_model_at_end")
    judge = Judge(metric, best if keeps_best else None, prune=not args.no_prune)
    study = open_study(args.folder, space, flags, "minimize" if best is min else "maximize")
    say(f"trying {', '.join(map(str, space))}: the {'lowest' if best is min else 'highest'} {metric} is the best")
    try:
        while (trial := begin_trial(study, args.folder, args.trials)) is not None:
            try_values(study, trial, space, flags, args.folder, judge, say)
    except KeyboardInterrupt:
        say("interrupted: the same command goes on")
        sys.exit(128 + signal.SIGINT)
    finally:
        with hold(args.folder / "search.lock"):
            write_results(args.folder, study, metric)
        if list_complete(study):
            say(list_results(args.folder, study, metric))
    if args.json:
        print((args.folder / "search.json").read_text(encoding="utf-8"), end="")


def open_study(folder: Path, space: list[Values], flags: list[str], direction: str) -> optuna.Study:
    """The study in the folder, begun with the values of config.yaml. Ends the process where it is one of something
    else: with another model, other data or other flags its trials cannot be compared."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    yours = {name: value for name, value in CONFIG.items() if name not in ("output_dir", "machine", "first_step")}
    search = {"values": [str(values) for values in space], "flags": flags, "config.yaml": yours}
    with hold(folder / "search.lock"):
        study = optuna.create_study(
            storage=f"sqlite:///{folder.resolve() / STUDY}",
            study_name="search",
            load_if_exists=True,
            direction=direction,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS),
        )
        known = study.user_attrs.get("search")
        if known is None:
            study.set_user_attr("search", search)
            standing = {values.name: CONFIG["training"].get(values.name) for values in space}
            study.enqueue_trial({v.name: standing[v.name] for v in space if v.includes(standing[v.name])})
        elif known != search:
            differs = ", ".join(name for name in search if known.get(name) != search[name])
            sys.exit(f"{folder} holds a search with other {differs}: name another --folder, or remove that one")
    return study


def begin_trial(study: optuna.Study, folder: Path, most: int) -> optuna.Trial | None:
    """The next one, held by this process; ``None`` when there are enough. Those of a dead process begin anew."""
    with hold(folder / "search.lock"):
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            if not is_held(folder, trial.number):
                study.tell(trial.number, state=TrialState.FAIL)
                keep_report(folder, trial.number)
                study.enqueue_trial(trial.params)
        trials = study.get_trials()
        # without the failed ones a device that is lost would fail them for ever
        if sum(trial.state in (*ENDED, TrialState.RUNNING) or FAILED in trial.user_attrs for trial in trials) >= most:
            return None
        # another seed each time: a second start would draw the same again
        study.sampler = optuna.samplers.TPESampler(seed=CONFIG["training"]["seed"] + len(trials))
        trial = study.ask()
        hold_trial(folder, trial.number)
        return trial


def try_values(study: optuna.Study, trial: optuna.Trial, space, flags: list[str], folder: Path, judge, say) -> None:
    """One training. One that fails ends the search, if none has worked before. Only the best keeps its weights."""
    given = {values.name: values.suggest(trial) for values in space}
    outcome = run_trial(trial, given, flags, folder, judge)
    with hold(folder / "search.lock"):
        if outcome.state == TrialState.FAIL:
            trial.set_user_attr(FAILED, outcome.text)
        study.tell(trial, outcome.value, state=outcome.state)
        release_trial(folder, trial.number)
        kept = [done.number for done in list_complete(study)[:1]]
        for other in study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)):
            if other.number not in kept:
                keep_report(folder, other.number)
        write_results(folder, study, judge.metric)
    if outcome.state == TrialState.FAIL and not any(done.state in ENDED for done in study.trials):
        sys.exit(f"the first trial failed: {outcome.text}")
    say(describe_trial(study, trial.number, outcome.text))


if __name__ == "__main__":
    mask_messages()
    main()
