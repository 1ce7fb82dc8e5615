"""The command line. Every import that costs time stays inside the command that needs it."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click

from generator.errors import PerfgenError, UsageError, escape_control
from generator.estimate.columns import describe_columns
from generator.masking import mask_messages, mask_secrets
from generator.options import AS_JSON, Option, Positive, add_case_options, ask_sources, json_option, make_request
from generator.progress import TalkingCommand, echo_json, is_quiet, tell_detail, tell_progress
from generator.show import completion

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


@contextmanager
def end_on_closed_pipe():
    """Whoever reads standard output may stop: `perfgen devices | head -1` went well. click and rich would exit with 1."""
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered
        raise click.exceptions.Exit(0) from None


class Commands(click.Group):
    command_class = TalkingCommand

    def make_context(self, *arguments, **extra):
        with end_on_closed_pipe():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx):
        with end_on_closed_pipe():
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(package_name="perfgen")
def perfgen():
    """Looks at a machine, decides every performance knob, writes the Hugging Face project for it."""


@perfgen.command()
@json_option
@click.option("--root", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A recorded machine.")
@click.option("--capture", type=click.Path(path_type=Path), help="Write a recording of this machine to a folder.")
@click.option("--private", is_flag=True, help="With --capture: keep serial numbers, addresses and host names.")
@click.option("--measure", is_flag=True, help="Time memory, matrix products, copies and the disk (seconds).")
@click.option("--schema", is_flag=True, help="Print the JSON schema of --json, and nothing else.")
def detect(as_json, root, capture, private, measure, schema):
    """What this machine (or a recorded one) is, and what is wrong with it."""
    import hwdetect

    if schema:
        from importlib.resources import files

        click.echo((files("hwdetect") / "schema.json").read_text(encoding="utf-8"), nl=False)
        return
    if private and not capture:
        raise click.UsageError("--private says what --capture keeps: give --capture FOLDER, or drop it")
    progress = tell_progress if measure else None
    if capture:
        if root:
            raise click.UsageError("--capture records this machine and --root reads another: give one of them")
        try:
            machine = hwdetect.capture(capture, private=private, measure=measure, progress=progress)
        except OSError as error:
            raise UsageError(f"--capture {capture}: {error.strerror or error}", "name a new folder") from None
        tell_progress(f"recorded in {capture}")
    else:
        tell_detail(f"reading {root or 'this machine'}")
        machine = hwdetect.detect(root, measure=measure, progress=progress, report=tell_detail)
    if as_json:
        echo_json(hwdetect.to_json(machine))
    else:
        from hwdetect import view

        click.echo(view.render(replace(machine, notes=()) if is_quiet() else machine, color=sys.stdout.isatty()))


@perfgen.command()
@add_case_options
@json_option
@click.option("--answers", is_flag=True, help="Answers for `copier copy --data-file`, as YAML.")
@click.option("--all", "every", is_flag=True, help="Also the decisions of which there is no choice here.")
@click.option("--goal", type=click.Choice(("cheapest", "smallest")), help="Look for a rented machine instead.")
@click.option("--target-tokens-per-day", type=Positive(), help="What that machine must reach.  [goal: cheapest]")
@click.option("--schema", is_flag=True, help="Print the JSON schema of --json, and nothing else.")
def plan(as_json, answers, every, goal, target_tokens_per_day, schema, **options):
    """What would be chosen, why, and what it would cost."""
    if schema:
        from importlib.resources import files

        click.echo((files("generator") / "plan.schema.json").read_text(encoding="utf-8"), nl=False)
        return
    if as_json and answers:
        raise click.UsageError("--json and --answers both want standard output: give one of them")
    from generator import pipeline

    request, offers = make_request(ask_sources(options, data=False)), None
    if goal or target_tokens_per_day:
        from generator.decide.goal import Target

        target = Target(goal or "cheapest", target_tokens_per_day, request.max_latency)
        request, offers = pipeline.find_machine(request, target, say=tell_progress)
    document = pipeline.document_request(request, for_project=answers)
    if offers:
        document = replace(document, goal=offers)
    if as_json:
        from generator.emit.plan_json import to_json

        echo_json(to_json(document))
    elif answers:
        from generator.emit.document import dump_answers

        click.echo(dump_answers(document), nl=False)
    else:
        from generator.show import terminal

        terminal.show_plan(document, every=every)


@perfgen.command()
@click.argument("dest", type=Path)
@add_case_options
@click.option("--smoke/--no-smoke", default=True, help="Run the project for a few steps when it is written.")
@click.option("--dry-run", is_flag=True, help="List what would be written, write nothing.")
@click.option("--diff", is_flag=True, help="Say how DEST differs from what would be written, write nothing.")
@click.option("--full", is_flag=True, help="With --diff: also every line that differs.")
@click.option("--overwrite", is_flag=True, help="Replace a folder that holds a generated project.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--lock", is_flag=True, help="Pin every package by its hash, the base image by its digest (asks the network)."
)
@json_option
def init(dest, as_json, **options):
    """Write the project for this machine to DEST, and run it for a few steps."""
    from generator.pipeline import InitOptions, check_machine, write_project

    written = InitOptions(as_json=as_json, **take_fields(InitOptions, options))
    if written.full and not written.diff:
        raise click.UsageError("--full is how --diff says it: add --diff, or drop it")
    if options["hardware"] is not None:
        check_machine(options["hardware"])
    asked = ask_sources(options, data=True, may_ask=not written.yes, project=dest)
    write_project(make_request(asked), dest, written)


@perfgen.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@add_case_options
@click.option(
    "--forget", type=Option(), multiple=True, help="Decide an option anew that the project was made with. Repeatable."
)
@click.option("--smoke/--no-smoke", default=True, help="Run the project for a few steps when it is changed.")
@click.option("--dry-run", is_flag=True, help="Say what would change, write nothing.")
@click.option("--full", is_flag=True, help="Also every line that would change.")
@click.option(
    "--conflict", type=click.Choice(("inline", "rej")), default="inline", show_default=True,
    help="Where you and the new plan changed the same lines: both between markers, or yours, and a .rej file.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def update(folder, forget, conflict, as_json, **options):
    """Plan a project again, for today's machine, model, data and perfgen; your edits are kept.

    What is not given is taken from the project; what was a default is decided anew. Ends with 5 where conflicts are left marked.
    """
    from generator.update import UpdateOptions, update_project

    if {"model", "data"} & set(forget):
        raise click.UsageError("a model or data cannot be forgotten: give others, or --sample")
    taken = take_fields(UpdateOptions, options)
    if options["sample"]:
        options, forget = ask_sources(options, data=False), (*forget, "model", "data")
    how = UpdateOptions(forget=forget, rejects=conflict == "rej", as_json=as_json, **taken)
    update_project(make_request(options), folder, how)


def take_fields(kind: type[Any], options: dict) -> dict:
    """Those of ``options`` that are fields of ``kind``, taken out of it: what is left is of the request."""
    return {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}


@perfgen.command(epilog=describe_columns())
@click.option(
    "--cases",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CSV with a header line.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="CSV to write.  [required without --json]")
@json_option
def estimate(cases, out, as_json):
    """Cost explicit configurations, one a row, without deciding."""
    from generator.estimate.table import estimate_table

    if out is None and not as_json:
        raise click.UsageError("give --out FILE.csv, or --json for standard output")
    rows = estimate_table(cases, out, progress=lambda text: click.echo(text, err=True))
    if as_json:
        echo_json({"schema": 1, "rows": rows})


@perfgen.command()
@click.argument("key")
@click.option(
    "--project", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A generated project."
)
@json_option
@add_case_options
def why(key, folder, as_json, **options):
    """Why an emitted value is what it is: rule, inputs, runner-up and its cost."""
    from generator import pipeline
    from generator.show import why

    answer = why.explain_key(pipeline.load_document(folder, make_request(options)), key)
    echo_answer(answer, why.format_answer(answer), as_json)


@perfgen.command("why-not")
@click.argument("technique", shell_complete=completion.complete_technique)
@click.option(
    "--project", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A generated project."
)
@json_option
@add_case_options
def why_not(technique, folder, as_json, **options):
    """Why a technique was not taken."""
    from generator import pipeline
    from generator.errors import NothingFits
    from generator.show import why

    try:
        verdict = why.explain_rejection(pipeline.load_document(folder, make_request(options)), technique)
    except NothingFits as error:
        verdict = why.explain_refused(error, technique, options["mode"])
        if verdict is None:
            raise
    echo_answer(verdict, why.format_verdict(verdict), as_json)


def echo_answer(answer: object, text: str, as_json: bool) -> None:
    from generator.emit.plan_json import to_json

    if as_json:
        echo_json(to_json(answer))
    else:
        click.echo(escape_control(text))


@perfgen.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--steps", type=click.IntRange(2, 1000), default=8, show_default=True, help="Training steps.")
@click.option(
    "--timeout",
    "seconds",
    type=click.IntRange(5, 86400),
    default=600,
    show_default=True,
    help="Seconds for each stage.",
)
@click.option(
    "--python", "interpreter", help="Interpreter to run the project with.  [default: its .venv, else this one]"
)
@json_option
def smoke(folder, steps, seconds, interpreter, as_json):
    """Run a generated project a few steps: predicted against measured."""
    from generator.run import smoke as runner

    runner.run_command(folder, steps=steps, seconds=seconds, interpreter=interpreter, as_json=as_json)


@perfgen.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("--run", type=click.Path(path_type=Path), help="Folder of a finished run.  [default: the last one]")
def report(folder, run):
    """Write what a finished training measured into the project's report.html."""
    from generator.run.report import report_run

    report_run(folder, click.echo, run)


@perfgen.command()
@json_option
def techniques(as_json):
    """Every technique, by axis, with what it does and its sources."""
    from generator.show import listings

    listings.show_techniques(as_json)


@perfgen.command()
@json_option
@click.option("--instances", is_flag=True, help="Cloud instance types instead, with price, date and source.")
@click.argument("pattern", required=False, shell_complete=completion.complete_device)
def devices(as_json, instances, pattern):
    """Every known device; with PATTERN, those that it is in or stands for, with their MIG instances and sources."""
    from generator.show import listings

    show = listings.show_instances if instances else listings.show_devices
    show(as_json, pattern)


@perfgen.command()
@json_option
@click.argument("pattern", required=False)
def models(as_json, pattern):
    """Models that are planned by their hub id without network, with the sources of their sizes."""
    from generator.show.models import show_models

    show_models(as_json, pattern)


def main() -> None:
    """Entry point: an error that a user can cause is a message and its exit code, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where the shell closed it
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # the same bytes in every locale
    mask_messages()
    end_on_signals()
    outcome: dict[str, bool] = {}
    try:
        perfgen(standalone_mode=False, obj=outcome)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        usage = io.StringIO()
        error.show(file=usage)  # it repeats what was typed, as a token in a wrong place
        click.echo(escape_control(mask_secrets(usage.getvalue())), err=True, nl=False)
        if outcome.get(AS_JSON, "--json" in sys.argv):  # a line that could not be divided into options has no outcome
            echo_error(UsageError(error.format_message()))
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except PerfgenError as error:
        report_error(error, as_json=outcome.get(AS_JSON, False))
        sys.exit(error.code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        from generator.emit.place import WRITE_FAILURES

        if error.errno not in WRITE_FAILURES:
            raise
        click.echo(f"perfgen: {error.filename or 'standard output'}: {error.strerror}", err=True)
        sys.exit(5)


def end_on_signals() -> None:
    """SIGTERM, and the SIGHUP of a terminal that is closed, leave no half-written folder behind. `nohup` has the second ignored."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def report_error(error: PerfgenError, as_json: bool) -> None:
    """The message on standard error; with ``as_json`` also as JSON on standard output."""
    from generator.errors import NothingFits

    click.echo(f"perfgen: {mask_secrets(str(error))}", err=True)
    ladder = error.ladder if isinstance(error, NothingFits) else ()
    if ladder:
        from generator.show import terminal

        click.echo("nearest plans that fit:", err=True)
        for line in terminal.format_ladder(ladder):
            click.echo(f"  {line}", err=True)
    if as_json:
        echo_error(error, ladder)


def echo_error(error: PerfgenError, ladder: tuple = ()) -> None:
    from generator.errors import ReportedError

    rungs = []
    if ladder:
        from generator.emit.figures import list_costs

        rungs = [
            {"option": r.option, "change": r.change, "choice": r.best.choice} | list_costs(r.best.estimate)
            for r in ladder
        ]
    content = {
        "message": mask_secrets(error.message),
        "hint": error.hint and mask_secrets(error.hint),
        "exit_code": error.code,
        "ladder": rungs,
    }
    echo_json({"schema": 1} | (error.report if isinstance(error, ReportedError) else {}) | {"error": content})


if __name__ == "__main__":
    main()
