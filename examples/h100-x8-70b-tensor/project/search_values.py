"""What a search tries: values of flags of train.py, as NAME=LOW..HIGH or NAME=A,B,C."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from transformers import TrainingArguments

from evaluation import METRICS
from terminal import suggest_names

OWN = ("output_dir", "save_strategy", "load_best_model_at_end", "resume_from_checkpoint")
"""Flags that search.py gives itself."""
JUDGING = "metric_for_best_model"
"""The flag that says what trials are compared by: the same of all."""
LOGARITHMIC = 10
"""Times the low value: from there on each factor counts the same, and not each difference."""


@dataclass(frozen=True)
class Values:
    """Of one flag: a range, or ``choices``."""

    name: str
    low: float | int = 0
    high: float | int = 0
    choices: tuple = ()

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high >= LOGARITHMIC * self.low

    def suggest(self, trial):
        if self.choices:
            return trial.suggest_categorical(self.name, list(self.choices))
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.name, self.low, self.high, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)

    def includes(self, value) -> bool:
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        if self.choices:
            return f"{self.name}={','.join(map(str, self.choices))}"
        return f"{self.name}={self.low:g}..{self.high:g}{' (by factors)' if self.log else ''}"


def parse_values(words: Sequence[str], rate: float) -> list[Values]:
    """One of each word; without any, learning rates about ``rate``. ``ValueError`` says what is wrong."""
    if not words:
        return [Values("learning_rate", rate / LOGARITHMIC, rate * LOGARITHMIC)]
    space = [parse_word(word) for word in words]
    names = [values.name for values in space]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{twice[0]} is given twice")
    return space


def parse_word(word: str) -> Values:
    name, equals, text = word.partition("=")
    name = name.removeprefix("--")
    known = {field.name for field in fields(TrainingArguments)}
    if not equals or not text:
        raise ValueError(f"{word}: say what to try, as in learning_rate=1e-5..1e-3 or weight_decay=0,0.01,0.1")
    if name in OWN:
        raise ValueError(f"{name} is given by search.py itself")
    if name == JUDGING:
        raise ValueError(f"{name}: trials are compared by one; give it behind --, or under training in config.yaml")
    if name not in known:
        raise ValueError(f"{name} is no name of TrainingArguments{suggest_names([name], known)}")
    low, dots, high = text.partition("..")
    if not dots:
        choices = tuple(map(parse_value, text.split(",")))
        if len(set(choices)) < len(choices) or "" in choices:
            raise ValueError(f"{word}: a value is missing, or stands twice")
        return Values(name, choices=choices)
    first, last = parse_value(low), parse_value(high)
    if isinstance(first, str) or isinstance(last, str) or not math.isfinite(last - first) or first >= last:
        raise ValueError(f"{word}: a range goes from a lower number to a higher one")
    return Values(name, first, last)


def parse_value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is search.py's, and behind ``--`` what every trial gives to train.py."""
    words = list(words)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def read_metric(flags: Sequence[str], training: dict) -> str:
    """What trials are judged by: that of the flags, else of config.yaml. ``ValueError``: no evaluation has it."""
    named = training.get(JUDGING)
    for place, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name.removeprefix("--").replace("-", "_") == JUDGING:
            named = value if equals else flags[place + 1] if place + 1 < len(flags) else None
    metric = str(named or "loss").removeprefix("eval_")
    if metric not in METRICS:
        raise ValueError(
            f"{JUDGING} {named}: a search compares by {', '.join(METRICS)}{suggest_names([metric], METRICS)}"
        )
    return metric


def refuse_flags(parser: argparse.ArgumentParser, flags: Sequence[str], space: Sequence[Values]) -> None:
    """Flags behind ``--`` that a trial is given already."""
    given = {flag.split("=")[0].removeprefix("--").replace("-", "_") for flag in flags if flag.startswith("--")}
    taken = given & {*OWN, *(values.name for values in space)}
    if taken:
        parser.error(f"--{sorted(taken)[0]} behind --: search.py gives it to every trial itself")
