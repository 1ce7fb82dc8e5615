"""What batch.py computes of a row, for one: `python infer.py --prompt ...`. Without one, a made sample."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import sys
import time
from pathlib import Path

from batch_input import Row
from batch_work import Work, make_sample
from config_file import read_config
from infer_report import write_report
from masking import mask_messages
from terminal import escape_control, parse_flags

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", help=f"{Work.PROMPT} (default: a made sample)")
    parser.add_argument("--calls", type=int, default=1, help="answers to time, after one that warms up")
    parser.add_argument("--json", action="store_true", help="the report on standard output, and nothing else there")
    parser.add_argument("--report", type=Path, default=HERE / "infer.json", help="what was measured, for programs")
    Work.add_arguments(parser, CONFIG)
    args = parse_flags(parser)
    if args.calls < 1:
        parser.error(f"--calls {args.calls}: one at least")
    args.column, args.input = Work.FROM[0], Path.cwd() / "row"  # whose folder relative paths begin from
    row = Row(0, {args.column: args.prompt or make_sample()})

    work, seconds, results = Work(CONFIG, HERE, args), [], []
    for _ in range(1 + args.calls):
        started = time.perf_counter()
        results = [result for done in work.compute([row]) for _, result in done]
        seconds.append(time.perf_counter() - started)
    (result,) = results
    if result["error"] is not None:
        sys.exit(f"--prompt {args.prompt}: {result['error']}")
    answer = describe_answer(next(result[name] for name in Work.COLUMNS if result[name] is not None))
    if not args.json:
        print(escape_control(answer))
    write_report(
        args.report,
        prompt=args.prompt or "a made sample",
        answer=answer,
        result=result,
        prompt_tokens=result.get("prompt_tokens") or CONFIG["rows"]["positions"],
        new_tokens=[result.get("new_tokens") or 0] * args.calls,
        first_call_seconds=seconds[0],
        seconds=seconds[1:],
        as_json=args.json,
    )


def describe_answer(value: str | list | dict) -> str:
    """A text as it is, entities and named values one a line, of a vector the first numbers."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(f"{name} {number:.4g}" for name, number in value.items())
    if not value or isinstance(value[0], dict):
        return (
            "\n".join(f"{entity['label']} {entity['text']} ({entity['probability']:.2f})" for entity in value) or "none"
        )
    return f"{', '.join(f'{number:.4f}' for number in value[:4])}, ... ({len(value)} numbers)"


if __name__ == "__main__":
    mask_messages()
    main()
