"""What a search found: a line a trial, the best of them, search.json and search.svg."""

from pathlib import Path

import optuna
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial, TrialState

from run_report import write_json

SHOWN = 5
"""Trials in the table."""


def list_complete(study: optuna.Study) -> list[FrozenTrial]:
    """The best first."""
    sign = 1 if study.direction == optuna.study.StudyDirection.MINIMIZE else -1
    done = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    return sorted(done, key=lambda trial: sign * trial.value)


def describe_values(values: dict) -> str:
    shown = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return "  ".join(f"{name} {value}" for name, value in shown.items())


def describe_trial(study: optuna.Study, number: int, text: str) -> str:
    """Its number, what it came to, what the best is so far."""
    trial, done = study.trials[number], list_complete(study)
    is_done = trial.state == TrialState.COMPLETE
    value = f"{trial.value:.4g}" if is_done else trial.state.name.lower()
    best = f", best {done[0].value:.4g} (trial {done[0].number})" if done else ""
    return f"trial {number}: {value}{best}  {describe_values(trial.params)}  {text}"


def list_results(folder: Path, study: optuna.Study, metric: str) -> str:
    """The best trials, and what to do with them."""
    done = list_complete(study)
    shown, best = done[:SHOWN], done[0]
    flags = " ".join(f"--{name} {value}" for name, value in best.params.items())
    return "\n".join(
        [
            f"{metric}, the best {len(shown)} of {len(done)} that came to their end ({folder / 'search.svg'}):",
            *(f"{trial.value:>10.4g}  trial {trial.number:<3}  {describe_values(trial.params)}" for trial in shown),
            f"python train.py {flags}    # or under training in config.yaml",
            f"its model after the last step: {folder / f'trial-{best.number}'}",
        ]
    )


def write_results(folder: Path, study: optuna.Study, metric: str) -> None:
    """search.json, and search.svg once a trial is complete."""
    done = list_complete(study)
    trials = [
        {"number": trial.number, "state": trial.state.name.lower(), "value": trial.value, "values": trial.params}
        for trial in study.trials
        if trial.state != TrialState.WAITING
    ]
    best = {"number": done[0].number, "value": done[0].value, "values": done[0].params} if done else None
    write_json(
        folder / "search.json",
        {"schema": 1, "metric": metric, "direction": study.direction.name.lower(), "best": best, "trials": trials},
    )
    if done:
        draw_trials(folder / "search.svg", done, metric)


def draw_trials(path: Path, done: list[FrozenTrial], metric: str) -> None:
    """What each value came to: one plot a flag, the best in another colour."""
    names = sorted({name for trial in done for name in trial.params})
    figure = Figure(figsize=(4 * len(names), 4), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), sharey=True, squeeze=False)[0], names, strict=True):
        tried = [trial for trial in done if name in trial.params]
        at = [trial.params[name] for trial in tried]
        if any(isinstance(value, str) for value in at):
            at = [str(value) for value in at]
        axes.scatter(at, [trial.value for trial in tried])
        axes.scatter(at[:1], [tried[0].value], label=f"trial {tried[0].number}")
        if getattr(done[0].distributions[name], "log", False):
            axes.set_xscale("log")
        axes.set(xlabel=name, ylabel=metric)
        axes.grid(alpha=0.3)
        axes.legend()
    draft = path.with_name(f"{path.name}.tmp")
    figure.savefig(draft, format="svg")
    draft.replace(path)
