"""Every row of a file, computed: `python batch.py --input x.jsonl --output y.jsonl`. Run again, it goes on."""

import quiet_imports  # noqa: F401  # isort: skip
from end_on_signal import end_on_signal

if __name__ == "__main__":
    end_on_signal("shards that are done are kept, run again to go on")

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from assembly import merge_row, write_jsonl, write_parquet_of_parquet, write_parquet_of_rows
from batch_input import Row, check_input, choose_column, choose_format, cut_shards, read_rows, survey_rows
from batch_work import Work
from config_file import read_config
from masking import mask_messages
from progress_line import ProgressLine, format_duration
from shards import DRAFT, JOB, Shards, end_unwritable, list_changes, read_record
from terminal import parse_flags

HERE = Path(__file__).resolve().parent
CONFIG = read_config()
SHARD_BATCHES = 16
"""Batches of one shard: they are made of rows of like length, and a kill loses them."""
SHARD_BYTES = 64 << 20
"""Of rows that are in memory at once."""
REPORT = "report.json"


def main() -> None:
    args = parse_arguments()
    output = resolve_output(args.output, args.input)
    shards = Shards(output)
    report = output.with_name(f"{output.name}.{REPORT}")
    if output.exists() and not shards.folder.exists() and not report.exists():
        sys.exit(f"--output {output} is there already: move it away, or name another")
    shards.claim()
    try:
        args.column = choose_column(args.input, args.column, Work.FROM)
        job = describe_job(args, shards)
        if output.exists():
            return finish_complete(shards, report, job)
        shards.open_job(job)
        counts = compute_shards(shards, args, job)
        assemble(shards, args, job, report, counts)
    except OSError as error:
        if error.filename is not None and Path(error.filename) == args.input:  # gone meanwhile
            sys.exit(f"--input {args.input}: {error.strerror}")
        end_unwritable(Path(error.filename or output), error)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--input", type=Path, required=True, help=".jsonl, .csv, .txt (also .gz, .bz2, .xz, .zst), .parquet"
    )
    parser.add_argument("--output", type=Path, required=True, help=".jsonl or .parquet")
    parser.add_argument("--column", help=f"that is computed from (default: {list_choices(Work.FROM)})")
    parser.add_argument("--limit", type=int, help="rows to read, from the first")
    parser.add_argument("--shard_rows", type=int, default=SHARD_BATCHES * Work.read_batch(CONFIG))
    Work.add_arguments(parser, CONFIG)
    args = parse_flags(parser)
    for name in ("limit", "shard_rows"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: one at least")
    if args.output.suffix.lower() not in (".jsonl", ".parquet"):
        parser.error(f"--output {args.output}: its name ends in .jsonl or .parquet")
    check_input(args.input)
    return args


def list_choices(names: tuple[str, ...]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]])


def resolve_output(output: Path, source: Path) -> Path:
    """Where a link leads; its parts lie beside it. Ends the process where that is the input."""
    try:
        output = output.resolve()
        if output == source.resolve() or (output.exists() and output.samefile(source)):
            sys.exit(f"--output {output} is the input: name another file")
        if output.is_dir():
            sys.exit(f"--output {output} is a folder: name a file")
        output.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # links that lead in a circle
        sys.exit(f"--output {output}: {error}")
    return output


def describe_job(args: argparse.Namespace, shards: Shards) -> dict:
    """What the output depends on. The rows are counted again only where the file is not the one of before."""
    state = args.input.stat()
    seen = {"path": str(args.input.resolve()), "bytes": state.st_size, "written_ns": state.st_mtime_ns}
    path = shards.folder / JOB
    begun = read_record(path) if path.exists() else {}
    if begun.get("seen") == seen and begun["settings"]["limit"] == args.limit:
        rows = begun["input"]
    else:
        line = ProgressLine()
        rows = survey_rows(args.input, args.limit, lambda count: line.show(f"reading {args.input}: {count:,} rows"))
        line.close()
    settings = {"column": args.column, "limit": args.limit, "shard_rows": args.shard_rows}
    return {"schema": 1, "settings": settings | Work.describe(CONFIG, HERE, args), "input": rows, "seen": seen}


def finish_complete(shards: Shards, report: Path, job: dict) -> None:
    """The output is there: of this job, which was ended after its last step or is asked for again; or of another."""
    own = shards.folder / REPORT
    moved = own.exists() and not (shards.folder / f"{DRAFT}-output").exists()  # ended between two renamings
    if moved:
        own.replace(report)
    done = read_record(report).get("job") or {} if report.exists() else {}
    changes = list_changes(done, job)
    if moved or not changes or not (shards.folder / JOB).exists():  # a kill may have left parts beside the whole
        shards.remove()
    if changes:
        sys.exit(
            f"--output {shards.output} is there already, and not of this job: {'; '.join(changes[:5])}.\n"
            "Move it away, or name another."
        )
    print(f"{shards.output} is complete already", file=sys.stderr)


def compute_shards(shards: Shards, args: argparse.Namespace, job: dict) -> dict[str, int]:
    """Compute and seal what is missing; what all rows hold together."""
    total = job["input"]["rows"]
    work, counts = None, dict.fromkeys(("rows", "errors", "prompt_tokens", "new_tokens"), 0)
    line, began, fresh = ProgressLine(), 0.0, dict.fromkeys(counts, 0)
    with ExitStack() as opened:
        for number, shard in enumerate(cut_input(args, [args.column, *Work.READS])):
            lines = shards.read(number)
            if lines is not None:
                count_results(counts, map(json.loads, lines))
                line.show(f"{counts['rows']:,}/{total:,} rows were done before")
                continue
            if work is None:
                work = opened.enter_context(closing(Work(CONFIG, HERE, args)))
                began = time.monotonic()
            results: list[dict] = [{}] * len(shard)
            for done in work.compute(shard):
                for place, result in done:
                    results[place] = result
                count_results(fresh, (result for _, result in done))
                line.show(describe_progress(counts["rows"] + fresh["rows"], total, fresh, time.monotonic() - began))
            end_if_written(args.input, job["seen"])  # else these rows may be of neither file
            shards.seal(number, results)
    line.show(describe_progress(counts["rows"] + fresh["rows"], total, fresh, time.monotonic() - began), at_once=True)
    line.close()
    return {name: counts[name] + fresh[name] for name in counts}


def count_results(counts: dict[str, int], results) -> None:
    for result in results:
        counts["rows"] += 1
        counts["errors"] += result["error"] is not None
        for name in ("prompt_tokens", "new_tokens"):
            counts[name] += result.get(name) or 0


def describe_progress(done: int, total: int, fresh: dict[str, int], seconds: float) -> str:
    """``fresh`` is of this process, in so many seconds."""
    text = f"{done:,}/{total:,} rows"
    if fresh["rows"]:
        tokens = fresh["new_tokens"] or fresh["prompt_tokens"]
        speed = f"{tokens / seconds:,.1f} tokens/s" if tokens else f"{fresh['rows'] / seconds:,.1f} rows/s"
        left = (total - done) * seconds / fresh["rows"]
        text += f"  {speed}  {format_duration(left)} left"
    return text


def assemble(shards: Shards, args: argparse.Namespace, job: dict, report: Path, counts: dict[str, int]) -> None:
    """The output from the shards, in one move; then what they were."""
    draft = shards.folder / f"{DRAFT}-output"
    end_if_written(args.input, job["seen"])
    try:
        write_output(draft, shards, args, counts["rows"])
    except ValueError:  # rows and results do not fit
        end_if_written(args.input, job["seen"])
        raise
    end_if_written(args.input, job["seen"])
    shards.write(REPORT, json.dumps({"schema": 1, **counts, "job": job}, indent=2).encode() + b"\n")
    if shards.output.exists():
        sys.exit(f"--output {shards.output} was made by something else meanwhile: move it away, and run again")
    draft.replace(shards.output)
    (shards.folder / REPORT).replace(report)
    shards.remove()
    errors = f", {counts['errors']:,} of them with an error" if counts["errors"] else ""
    print(
        f"{shards.output}: {counts['rows']:,} rows{errors}; {report.name} says how they were made",
        file=sys.stderr,
    )


def end_if_written(file: Path, seen: dict) -> None:
    """Ends the process where the input is not the file whose rows were counted."""
    state = file.stat()
    if (state.st_size, state.st_mtime_ns) != (seen["bytes"], seen["written_ns"]):
        sys.exit(f"--input {file} was written to meanwhile: run again, to see whether the rows are the same")


def write_output(draft: Path, shards: Shards, args: argparse.Namespace, rows: int) -> None:
    if shards.output.suffix.lower() == ".jsonl":
        write_jsonl(draft, read_merged(shards, args))
    elif choose_format(args.input) == ".parquet":
        write_parquet_of_parquet(draft, args.input, partial(read_results, shards, args), rows, Work.COLUMNS)
    else:
        write_parquet_of_rows(draft, partial(read_merged, shards, args), Work.COLUMNS)


def read_merged(shards: Shards, args: argparse.Namespace) -> Iterator[dict]:
    """Rows of the input with what was computed for them."""
    for number, shard in enumerate(cut_input(args, None)):
        for row, line in zip(shard, shards.read_sealed(number), strict=True):
            yield merge_row(row.values, json.loads(line))


def read_results(shards: Shards, args: argparse.Namespace) -> Iterator[dict]:
    for number, _ in enumerate(cut_input(args, [args.column, *Work.READS])):
        yield from map(json.loads, shards.read_sealed(number))


def cut_input(args: argparse.Namespace, columns: list[str] | None) -> Iterator[list[Row]]:
    return cut_shards(read_rows(args.input, columns, args.limit), args.shard_rows, SHARD_BYTES)


if __name__ == "__main__":
    mask_messages()
    main()
