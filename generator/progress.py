"""How much a command tells while it works: -q, as usual, or -v. Progress goes to standard error, results to standard output."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

TALKING = ("detect", "plan", "init", "update", "smoke")
"""The commands that have -q and -v."""
LEVEL = "perfgen.level"
"""Key of the context's ``meta``: -1 quiet, 0, 1 verbose."""
Say = Callable[..., None]
"""prints a line of a result, as ``click.echo`` does"""


def set_level(context: click.Context, option: click.Parameter, value: bool) -> None:
    if not value:
        return
    if LEVEL in context.meta:
        raise click.UsageError("--quiet and --verbose: give one of them", context)
    context.meta[LEVEL] = -1 if option.name == "quiet" else 1


def get_level() -> int:
    context = click.get_current_context(silent=True)
    return 0 if context is None else context.meta.get(LEVEL, 0)


def is_quiet() -> bool:
    return get_level() < 0


def tell_progress(text: str) -> None:
    """What is being done, for whoever waits."""
    if not is_quiet():
        click.echo(text, err=True)


def tell_detail(text: str) -> None:
    """What was read and from where, for whoever asked (-v)."""
    if get_level() > 0:
        click.echo(text, err=True)


def choose_say(as_json: bool) -> Say:
    """Where words go: with --json standard output is the JSON's alone."""
    return (lambda text="", **more: click.echo(text, err=True, **more)) if as_json else click.echo


def echo_json(value: object) -> None:
    """On standard output. Raises ``ValueError`` for a number that JSON does not have."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


@contextmanager
def time_stage(what: str) -> Generator[None]:
    """With -v, how long the inside took, once it is done."""
    started = time.perf_counter()
    yield
    tell_detail(f"{what}: {time.perf_counter() - started:.2f} s")


class TalkingCommand(click.Command):
    """A command that has -q and -v, where its name is one of ``TALKING``."""

    def __init__(self, name: str | None, **settings):
        super().__init__(name, **settings)
        if name in TALKING:
            for flags, text in (
                (("-q", "--quiet"), "The result alone."),
                (("-v", "--verbose"), "Also what is read, from where, and how long each stage takes (standard error)."),
            ):
                self.params.append(
                    click.Option(flags, is_flag=True, is_eager=True, expose_value=False, callback=set_level, help=text)
                )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message:
                raise
            # a model, mostly, or the end of a value with a space
            model = "; a model is given by --model" if any(p.name == "model" for p in self.params) else ""
            raise click.UsageError(f"{error.message}: a value with spaces stands in quotes{model}", ctx) from None

    def invoke(self, ctx: click.Context):
        with time_stage(f"perfgen {self.name}, in all"):
            return super().invoke(ctx)
