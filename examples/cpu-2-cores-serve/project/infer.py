"""Answer a prompt, without a server: `python infer.py --prompt "..."`."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import json
import queue
import statistics
import sys
import time
from contextlib import closing
from operator import truediv
from pathlib import Path

from config_file import read_config
from generation_defaults import read_choices
from masking import mask_messages
from prompts import Pieces, Prompts
from sampling import Sampling
from terminal import escape_control, parse_flags
from weights_identity import list_versions

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    args = parse_arguments()
    from machine import check_machine  # takes seconds with an accelerator: what is wrong with a flag is said before

    check_machine(CONFIG.get("machine"))
    prompts = Prompts(CONFIG)
    chat = prompts.has_template and not args.raw
    turns = [{"role": "user", "content": args.prompt}]
    try:
        tokens = prompts.encode_messages(turns) if chat else prompts.encode_text(args.prompt)
    except ValueError as error:
        sys.exit(f"{escape_control(' '.join(str(error).split()))}: --raw goes on with the prompt as it is")
    most = min(args.max_new_tokens, find_room(len(tokens)))

    from engine import Engine  # takes seconds: what is wrong with a flag is said before

    sampling = Sampling(most, **read_choices(CONFIG, Engine.applied, draws=False))
    started = time.perf_counter()
    with closing(Engine(CONFIG, HERE)) as engine:  # whatever ends it: its thread must not outlive this one
        loaded = time.perf_counter()
        call(engine, tokens, Sampling(2, ends=False))  # reads a prompt and adds a token: compiled, if anything is
        warm = time.perf_counter()
        if not args.json and not chat:
            print(escape_control(args.prompt), end="", flush=True)
        answers = []
        for number in range(args.calls):
            pieces = Pieces(prompts) if number == 0 and not args.json else None  # shown once
            answers.append(call(engine, tokens, sampling, pieces))
        memory = engine.memory_gib
    new, seconds, first = zip(*answers, strict=True)
    text = prompts.decode(new[-1])
    write_report(
        args,
        {
            "schema": 1,
            "prompt": args.prompt,
            "answer": text if chat else args.prompt + text,
            "engine": CONFIG["serving"]["engine"],
            "weights": CONFIG["serving"]["weights"],
            "prompt_tokens": len(tokens),
            "new_tokens": len(new[-1]),
            "seconds": statistics.median(seconds),
            "tokens_per_second": statistics.median(map(truediv, map(len, new), seconds)),
            "ttft_s": statistics.median(first),
            "load_s": loaded - started,
            "first_call_seconds": warm - loaded,
            "calls": args.calls,
            "peak_memory_gib": memory,
            "versions": list_versions(),
        },
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="Who are you?")
    parser.add_argument("--max_new_tokens", type=int, default=CONFIG["serving"]["max_new_tokens"])
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    parser.add_argument("--calls", type=int, default=1, help="answers to time, after one that warms up and compiles")
    parser.add_argument("--json", action="store_true", help="the report on standard output, and nothing else there")
    parser.add_argument("--report", type=Path, default=HERE / "infer.json", help="what was measured, for programs")
    args = parse_flags(parser)
    for name in ("calls", "max_new_tokens"):
        if vars(args)[name] < 1:
            parser.error(f"--{name} {vars(args)[name]}: one at least")
    return args


def find_room(prompt_tokens: int) -> int:
    """Tokens that are left for an answer. Ends the process where there is none, or nothing to answer."""
    most = CONFIG["serving"]["max_context"]
    if prompt_tokens == 0:
        sys.exit("The prompt is empty: --prompt says what to answer.")
    if prompt_tokens >= most:
        sys.exit(
            f"The prompt has {prompt_tokens} tokens, and the plan has room for {most} with the answer: shorten it, or "
            "plan again for longer prompts."
        )
    return most - prompt_tokens


def call(engine, tokens: list[int], sampling: Sampling, pieces: Pieces | None = None) -> tuple[list[int], float, float]:
    """New tokens, seconds of all of them, seconds to the first; ``pieces`` are shown as they come."""
    arrived: queue.SimpleQueue = queue.SimpleQueue()
    started, first, new = time.perf_counter(), 0.0, []
    engine.submit(tokens, sampling, lambda part, finish: arrived.put((time.perf_counter(), part, finish)))
    finish = None
    while finish is None:
        now, part, finish = arrived.get()
        first = first or now - started
        new += part
        if pieces is not None:
            text = pieces.add(part) + (pieces.finish() if finish is not None else "")
            print(escape_control(text), end="\n" if finish is not None else "", flush=True)
    if finish.startswith("error"):
        sys.exit(f"\n{finish}")
    return new, now - started, first


def write_report(args: argparse.Namespace, report: dict) -> None:
    text = json.dumps(report, indent=2, allow_nan=False)
    try:
        args.report.parent.mkdir(parents=True, exist_ok=True)
        args.report.write_text(text + "\n", encoding="utf-8")
    except OSError as error:  # the answer stands without it
        print(f"no report written: {error}", file=sys.stderr)
    if args.json:
        print(text)
        return
    print(
        f"{report['new_tokens']} tokens in {report['seconds']:.3g} s: {report['tokens_per_second']:.1f} tokens/s, "
        f"the first after {report['ttft_s']:.3g} s; {report['peak_memory_gib']:.2f} GiB at peak; loading took "
        f"{report['load_s']:.3g} s and warming up {report['first_call_seconds']:.3g} s before"
    )


if __name__ == "__main__":
    mask_messages()
    main()
