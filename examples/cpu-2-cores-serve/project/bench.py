"""Measure the server over HTTP, beside `transformers.pipeline()`: `python bench.py`. Writes bench.json."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from api_key import read_key
from bench_child import Baseline, start_baseline
from bench_figures import describe_load
from bench_machine import describe_machine
from bench_report import describe_alone, print_results, write_results
from bench_requests import CUT, Answer, Client, draw_arrivals, explain_address, run_closed, run_open
from bench_server import DeviceMemory, ask_peak_gib, measure_peak_gib, wait_until_ready
from bench_texts import Texts
from config_file import read_config
from masking import mask_messages
from own_server import run_server
from progress_line import ProgressLine, format_duration
from terminal import escape_control, parse_flags
from weights_identity import list_versions

HERE = Path(__file__).resolve().parent
CONFIG = read_config()
NEW_TOKENS, QUICK_NEW_TOKENS, QUICK_PROMPT_TOKENS = 128, 32, 128
ARRIVALS, QUICK_ARRIVALS = (0.5, 0.75, 1.0, 1.25), (0.5, 1.25)
"""Shares of the requests per second that all users together got in the closed loop."""
MOST_ARRIVALS, FEWEST_ARRIVALS = 200, 4
WITHIN, QUICK_WITHIN = 240, 90
"""Seconds."""
ALONE_SHARE = 0.4
"""Of them for single requests and the baseline's."""
BASELINE_SHARE = 0.7
"""Of them in which the baseline must have answered twice, or it is left out."""
LOAD_NAMES = ("users", "rate")
LOOK_SECONDS = 0.5


class EndedEarly(Exception):
    """Why nothing more can be measured."""


class Bench:
    """One server and its client, and what was measured of them so far; ``line`` says how far it is."""

    def __init__(self, args: argparse.Namespace, client: Client, process: subprocess.Popen | None) -> None:
        self.args, self.client, self.process = args, client, process
        self.texts = Texts(CONFIG, HERE, args.seed)
        self.line, self.done, self.total = ProgressLine(), 0, 0
        self.ours: list[Answer] = []
        self.theirs: list[dict] = []
        """Of the baseline, in turn with ours; the first of each warms up."""
        self.rows: list[dict] = []
        self.left_out: list[str] = []
        """Loads for which there was no time."""
        self.ended_early: str | None = None

    def tell(self, what: str) -> None:
        self.done += 1
        share = min(1.0, self.done / max(1, self.total))
        bar = "█" * round(20 * share)
        left = format_duration(max(0.0, self.client.end - time.perf_counter()))
        self.line.show(f"{bar:░<20} {self.done}/{self.total} requests  {what}, {left} at most")

    def measure_alone(self, baseline: Baseline | None) -> None:
        """One request at a time, of the server and of the baseline in turn, for as long as the share of them lasts."""
        started = time.perf_counter()
        until = started + ALONE_SHARE * (self.client.end - started)
        last = started + BASELINE_SHARE * (self.client.end - started)
        self.total = (1 + self.args.repeats) * (1 if baseline is None else 2)
        for turn in range(1 + self.args.repeats):
            if turn > 1 and time.perf_counter() >= until:
                break
            prompt = self.texts.draw(self.args.prompt_tokens)
            answer = self.client.complete(prompt, self.args.new_tokens)
            if answer.problem is not None:
                if len(self.ours) < 2:
                    end_without_answer(answer.problem)
                raise EndedEarly(describe_loss(answer.problem, self.process, self.args.log))
            if answer.tokens > 1 and answer.tpot <= 0:
                sys.exit(
                    "the server's answers come all at once, and not token by token: is there a proxy that buffers?"
                )
            self.ours.append(answer)
            self.tell("one at a time")
            if baseline is not None:
                theirs = baseline.ask(prompt, self.args.new_tokens, last - time.perf_counter())
                if theirs is None:  # it would take the time of all that follows
                    self.leave_baseline(baseline)
                    baseline = None
                    continue
                self.theirs.append(theirs)
                self.tell("transformers.pipeline()")

    def leave_baseline(self, baseline: Baseline) -> None:
        baseline.process.kill()
        if len(self.theirs) < 2:  # the first of them warms up
            self.left_out.append("transformers.pipeline()")

    def measure_loads(self) -> None:
        """Users who ask again and again, 1 to max_concurrency, the most of them first; then requests that come as they
        come. Each takes its share of the time that is left; one that does not fit is left out, and said."""
        args = self.args
        alone = statistics.median(answer.seconds for answer in self.ours[1:])
        most = args.users or CONFIG["serving"]["max_concurrency"]
        levels = sorted({*(2**power for power in range(most.bit_length())), most}, key=lambda n: (n != most, n))
        self.done, self.total = 0, most + sum(levels) + len(args.arrivals) * most
        print(f"loads: {format_duration(self.estimate_seconds(alone, levels))} about", file=sys.stderr)
        run_closed(self.draw_asker(most, min(8, args.new_tokens)), most, 1, lambda: self.tell("warming up"))
        for number, users in enumerate(levels):
            # the seconds of a round grow as the root of the users: batches share the reading of the weights
            slot = self.find_slot(len(levels) + len(args.arrivals) - number)
            what = f"{users} at once"
            if number and alone * users**0.5 > self.client.end - time.perf_counter():
                self.left_out.append(what)
                continue
            rounds = max(1, round(slot / (alone * users**0.5)))
            self.total += users * (rounds - 1)
            ask = self.draw_asker(users * rounds, args.new_tokens)
            until = time.perf_counter() + slot
            answers, seconds = run_closed(ask, users, rounds, lambda what=what: self.tell(what), until)
            self.keep(answers, seconds, kind="closed", users=users)
        fastest = max((row["requests_per_s"] for row in self.rows), default=0)
        if not fastest:
            raise EndedEarly(self.rows[-1]["first_failure"] or "all refused" if self.rows else "no time for loads")
        for number, share in enumerate(args.arrivals):
            self.measure_arrivals(share * fastest, number, most, alone)

    def measure_arrivals(self, rate: float, number: int, most: int, alone: float) -> None:
        args, what = self.args, f"{rate:.3g} arrive per s"
        slot, left = self.find_slot(len(args.arrivals) - number), self.client.end - time.perf_counter()
        count = max(4, most if args.quick else 2 * most, round(rate * slot))
        count = min(MOST_ARRIVALS, count, int(rate * (left - alone)))
        if count < FEWEST_ARRIVALS:
            self.left_out.append(what)
            return
        self.total += count - most
        arrivals, ask = draw_arrivals(rate, count, args.seed + number), self.draw_asker(count, args.new_tokens)
        answers, seconds = run_open(ask, arrivals, lambda: self.tell(what))
        self.keep(answers, seconds, kind="open", rate=rate, share_of_closed=args.arrivals[number])

    def find_slot(self, loads: int) -> float:
        """Seconds for the next of so many."""
        return min(self.args.seconds, max(0.0, self.client.end - time.perf_counter()) / loads)

    def estimate_seconds(self, alone: float, levels: list[int]) -> float:
        slot = self.find_slot(len(levels) + len(self.args.arrivals))
        needed = sum(max(slot, alone * users**0.5) for users in levels) + len(self.args.arrivals) * (slot + alone)
        return min(needed, self.client.end - time.perf_counter())

    def keep(self, answers: list[Answer], seconds: float, **how) -> None:
        """Raises ``EndedEarly`` where the server has ended, or answers nobody any more."""
        row = describe_load(answers, seconds, **how)
        if not row["requests"]:
            self.left_out.append(" ".join(f"{name} {value:.3g}" for name, value in how.items() if name in LOAD_NAMES))
            return
        self.rows.append(row)
        ended = self.process is not None and self.process.poll() is not None
        if ended or row["failed"] == row["requests"]:
            raise EndedEarly(describe_loss(row["first_failure"] or "", self.process, self.args.log))

    def draw_asker(self, count: int, new_tokens: int):
        """Prompts are drawn before the clock runs."""
        prompts = [self.texts.draw(self.args.prompt_tokens) for _ in range(count)]
        return lambda number, due: self.client.complete(prompts[number], new_tokens, due)


def main() -> None:
    args = parse_arguments()
    command = " ".join(["python", "bench.py", *sys.argv[1:]])
    device, code = DeviceMemory(), 0
    with ExitStack() as stack:
        url, process = args.url, None
        if url is None:
            url, process = stack.enter_context(run_server(HERE, stack.enter_context(args.log.open("wb"))))
        client = Client(url, read_key(), CONFIG["serving"]["name"])
        bench = Bench(args, client, process)
        load_s = wait_until_ready(client, process, args.log, bench.line.show)
        stack.enter_context(watch(device))
        baseline = None if args.no_baseline else stack.enter_context(start_baseline(HERE, CONFIG))
        if baseline is not None and baseline.loaded is None:
            print("no baseline: transformers.pipeline() does not start here, see above", file=sys.stderr)
            baseline = None
        print(f"measuring takes {format_duration(args.within)} at most (--within)", file=sys.stderr)
        client.end = time.perf_counter() + args.within
        try:
            bench.measure_alone(baseline)
            if baseline is not None:
                baseline.process.kill()  # its memory and its threads are not the server's
            bench.measure_loads()
        except (EndedEarly, KeyboardInterrupt) as end:
            if len(bench.ours) < 2:  # the first of them warms up
                raise
            signaled = isinstance(end, KeyboardInterrupt)
            code = 128 + end.args[0] if signaled else 1
            bench.ended_early = f"stopped by {signal.Signals(end.args[0]).name}" if signaled else str(end)
        bench.line.close()
        peak = measure_peak_gib(process.pid) if process else None
        on_cpu = CONFIG.get("machine", {}).get("device", "cpu") == "cpu"
        device_peak = None if on_cpu else device.peak_gib or ask_peak_gib(client)
    first, *ours = bench.ours
    loads = sorted(bench.rows, key=lambda row: (row["kind"], row.get("users") or row.get("rate")))
    by_one = statistics.median(answer.tokens / answer.seconds for answer in ours)
    figures = {
        "schema": 1,
        **describe_alone(ours, bench.theirs, baseline.loaded if baseline else None),
        "load_s": load_s if process else None,
        "first_request_ttft_s": first.ttft,
        "throughput_tokens_per_s": max((row["throughput_tokens_per_s"] for row in loads), default=0) or by_one,
        "peak_memory_gib": device_peak or peak,
        "process_memory_gib": peak,
        "predicted": CONFIG.get("predicted") or {},
        "loads": loads,
        "left_out": bench.left_out,
        "ended_early": bench.ended_early,
        **describe_settings(args),
        "machine": describe_machine(device.names),
        "versions": list_versions(),
        "command": command,
    }
    write_results(args.report, figures)
    print_results(args.report, figures, CONFIG["serving"]["prompt_tokens"])
    leave(code)


def leave(code: int) -> None:
    """Requests that wait in threads are not waited for."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def end_without_answer(problem: str) -> NoReturn:
    reason = "no single request was answered in the time of --within" if problem == CUT else escape_control(problem)
    sys.exit(f"the server does not answer a single request: {reason}")


def describe_loss(problem: str, process: subprocess.Popen | None, log: Path) -> str:
    if process is not None and process.poll() is not None:
        return f"the server ended with {process.returncode}, see {log}"
    return f"the server answers no more: {escape_control(problem)}"


def parse_arguments() -> argparse.Namespace:
    serving = CONFIG["serving"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that runs already, such as http://127.0.0.1:8000 (default: ./serve.sh)")
    parser.add_argument("--quick", action="store_true", help="short answers and few requests")
    parser.add_argument("--prompt_tokens", type=int, help="of each prompt (default: config.yaml)")
    parser.add_argument("--new_tokens", type=int, help=f"of each answer (default: {NEW_TOKENS})")
    parser.add_argument("--users", type=int, help="most of them at once (default: max_concurrency of config.yaml)")
    parser.add_argument("--seconds", type=float, help="of each load, about (default: 30)")
    within = f"seconds of all measuring; loading is not counted (default: {WITHIN}, with --quick {QUICK_WITHIN})"
    parser.add_argument("--within", type=float, help=within)
    parser.add_argument("--repeats", type=int, help="single requests (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals")
    parser.add_argument("--no_baseline", action="store_true", help="leave transformers.pipeline() out")
    parser.add_argument("--report", type=Path, default=HERE / "bench.json")
    args = parse_flags(parser)
    quick = args.quick
    args.prompt_tokens = args.prompt_tokens or min(serving["prompt_tokens"], QUICK_PROMPT_TOKENS if quick else 1 << 30)
    args.new_tokens = args.new_tokens or min(serving["max_new_tokens"], QUICK_NEW_TOKENS if quick else NEW_TOKENS)
    args.seconds, args.repeats = args.seconds or (5 if quick else 30), args.repeats or (3 if quick else 5)
    args.within = args.within or (QUICK_WITHIN if quick else WITHIN)
    args.arrivals = QUICK_ARRIVALS if quick else ARRIVALS
    args.log = args.report.with_name("bench-server.log")
    room = serving["max_context"] - args.prompt_tokens
    if not (0 < args.seconds < math.inf and 0 < args.within < math.inf):
        parser.error(f"--seconds {args.seconds} --within {args.within}: more than none, and an end")
    if args.url is not None and (problem := explain_address(args.url)):
        parser.error(f"--url {args.url}: {problem}")
    if min(args.prompt_tokens, args.new_tokens - 1, args.repeats) < 1 or args.new_tokens > room:
        parser.error(
            f"--prompt_tokens {args.prompt_tokens} --new_tokens {args.new_tokens} --repeats {args.repeats}: one, two "
            f"and one at least, and no more than max_context {serving['max_context']} together"
        )
    return args


@contextmanager
def watch(device: DeviceMemory) -> Generator[None]:
    """The peak of a device's memory is nowhere to be read later."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            device.look()

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def describe_settings(args: argparse.Namespace) -> dict:
    names = ("prompt_tokens", "new_tokens", "repeats", "seed", "quick", "within", "url")
    serving = {name: CONFIG["serving"][name] for name in ("engine", "weights", "max_concurrency")}
    return serving | {name: vars(args)[name] for name in names}


def end_for_signal(signum: int, frame: object) -> None:
    raise KeyboardInterrupt(signum)


if __name__ == "__main__":
    mask_messages()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_for_signal)
    try:
        main()
    except EndedEarly as end:
        print(f"\n{end}: nothing was written", file=sys.stderr)
        leave(1)
    except KeyboardInterrupt as end:  # by now the server has ended
        print(f"\nstopped by {signal.Signals(end.args[0]).name}: nothing was written", file=sys.stderr)
        leave(128 + end.args[0])
