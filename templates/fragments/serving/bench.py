"""Measure the server over HTTP, beside `transformers.pipeline()`: `python bench.py`. Writes bench.json."""

import signal

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the imports without a traceback

import argparse
import os
import statistics
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from bench_child import Baseline, start_baseline
from bench_figures import describe_load
from bench_machine import describe_machine
from bench_report import describe_alone, print_results, write_results
from bench_requests import Answer, Client, draw_arrivals, run_closed, run_open
from bench_server import DeviceMemory, ask_peak_gib, measure_peak_gib, start_server, wait_until_ready
from bench_texts import Texts
from masking import mask_messages
from progress_line import ProgressLine
from terminal import parse_flags
from weights_identity import list_versions

HERE = Path(__file__).resolve().parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
NEW_TOKENS, QUICK_NEW_TOKENS, QUICK_PROMPT_TOKENS = 128, 32, 128
ARRIVALS, QUICK_ARRIVALS = (0.5, 0.75, 1.0, 1.25), (0.5, 1.25)
"""Shares of the requests per second that all users together got in the closed loop."""
MOST_ARRIVALS = 200
LOOK_SECONDS = 0.5


class Bench:
    """One server and its client; ``line`` says how far it is."""

    def __init__(self, args: argparse.Namespace, client: Client) -> None:
        self.args, self.client = args, client
        self.texts = Texts(CONFIG, HERE, args.seed)
        self.line, self.done, self.total = ProgressLine(), 0, 0

    def tell(self, what: str) -> None:
        self.done += 1
        share = min(1.0, self.done / max(1, self.total))
        bar = "█" * round(20 * share)
        self.line.show(f"{bar:░<20} {self.done}/{self.total} requests  {what}")

    def measure_alone(self, baseline: Baseline | None) -> tuple[list[Answer], list[dict]]:
        """One request at a time, of the server and of the baseline in turn; the first of each warms up."""
        ours, theirs = [], []
        self.total = (1 + self.args.repeats) * (1 if baseline is None else 2)
        for _ in range(1 + self.args.repeats):
            prompt = self.texts.draw(self.args.prompt_tokens)
            ours.append(self.client.complete(prompt, self.args.new_tokens))
            if ours[-1].problem is not None:
                sys.exit(f"the server does not answer a single request: {ours[-1].problem}")
            self.tell("one at a time")
            if baseline is not None:
                theirs.append(baseline.ask(prompt, self.args.new_tokens))
                self.tell("transformers.pipeline()")
        return ours, theirs

    def measure_loads(self, alone: float) -> list[dict]:
        """Users who ask again and again, 1 to max_concurrency; then requests that come as they come."""
        args = self.args
        most = args.users or CONFIG["serving"]["max_concurrency"]
        levels = sorted({*(2**power for power in range(most.bit_length())), most})
        rounds = {users: max(1, round(args.seconds / (alone * users**0.5))) for users in levels}
        counts = [max(4, most if args.quick else 2 * most)] * len(args.arrivals)
        self.done, self.total = 0, most + sum(users * rounds[users] for users in levels) + sum(counts)
        warm = self.draw_asker(most, min(8, args.new_tokens))
        run_closed(warm, most, 1, lambda: self.tell("warming up"))
        rows = []
        for users in levels:
            ask = self.draw_asker(users * rounds[users], args.new_tokens)
            what = f"{users} at once"
            answers, seconds = run_closed(ask, users, rounds[users], lambda what=what: self.tell(what))
            rows.append(describe_load(answers, seconds, kind="closed", users=users))
        fastest = max(row["requests_per_s"] for row in rows)
        if not fastest:
            sys.exit(f"the server answers none of several requests: {rows[-1]['first_failure'] or 'all refused'}")
        for number, share in enumerate(args.arrivals):
            rate = share * fastest
            count = min(MOST_ARRIVALS, max(counts[number], round(rate * args.seconds)))
            self.total += count - counts[number]
            arrivals = draw_arrivals(rate, count, args.seed + number)
            ask = self.draw_asker(count, args.new_tokens)
            what = f"{rate:.3g} arrive per s"
            answers, seconds = run_open(ask, arrivals, lambda what=what: self.tell(what))
            rows.append(describe_load(answers, seconds, kind="open", rate=rate, share_of_closed=share))
        self.line.close()
        return rows

    def draw_asker(self, count: int, new_tokens: int):
        """Prompts are drawn before the clock runs."""
        prompts = [self.texts.draw(self.args.prompt_tokens) for _ in range(count)]
        return lambda number, due: self.client.complete(prompts[number], new_tokens, due)


def main() -> None:
    args = parse_arguments()
    command = " ".join(["python", "bench.py", *sys.argv[1:]])
    device = DeviceMemory()
    with ExitStack() as stack:
        url, process = args.url, None
        if url is None:
            url, process = stack.enter_context(start_server(HERE, args.log))
        client = Client(url, os.environ.get("API_KEY"), CONFIG["serving"]["name"])
        bench = Bench(args, client)
        load_s = wait_until_ready(client, process, args.log, bench.line.show)
        stack.enter_context(watch(device))
        baseline = None if args.no_baseline else stack.enter_context(start_baseline(HERE, CONFIG))
        if baseline is not None and baseline.loaded is None:
            print("no baseline: transformers.pipeline() does not start here, see above", file=sys.stderr)
            baseline = None
        ours, theirs = bench.measure_alone(baseline)
        loaded = baseline.loaded if baseline else None
        if baseline is not None:
            baseline.process.kill()  # its memory and its threads are not the server's
        first, *ours = ours
        loads = bench.measure_loads(statistics.median(answer.seconds for answer in ours))
        peak = measure_peak_gib(process.pid) if process else None
        on_cpu = CONFIG.get("machine", {}).get("device", "cpu") == "cpu"
        device_peak = None if on_cpu else device.peak_gib or ask_peak_gib(client)
    figures = {
        "schema": 1,
        **describe_alone(ours, theirs, loaded),
        "load_s": load_s if process else None,
        "first_request_ttft_s": first.ttft,
        "throughput_tokens_per_s": max(row["throughput_tokens_per_s"] for row in loads),
        "peak_memory_gib": device_peak or peak,
        "process_memory_gib": peak,
        "predicted": CONFIG.get("predicted") or {},
        "loads": loads,
        **describe_settings(args),
        "machine": describe_machine(device.names),
        "versions": list_versions(),
        "command": command,
    }
    write_results(args.report, figures)
    print_results(args.report, figures, CONFIG["serving"]["prompt_tokens"])


def parse_arguments() -> argparse.Namespace:
    serving = CONFIG["serving"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a server that runs already, such as http://127.0.0.1:8000 (default: ./serve.sh)")
    parser.add_argument("--quick", action="store_true", help="short answers and few requests: within two minutes")
    parser.add_argument("--prompt_tokens", type=int, help="of each prompt (default: config.yaml)")
    parser.add_argument("--new_tokens", type=int, help=f"of each answer (default: {NEW_TOKENS})")
    parser.add_argument("--users", type=int, help="most of them at once (default: max_concurrency of config.yaml)")
    parser.add_argument("--seconds", type=float, help="of each load, about (default: 30)")
    parser.add_argument("--repeats", type=int, help="single requests (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals")
    parser.add_argument("--no_baseline", action="store_true", help="leave transformers.pipeline() out")
    parser.add_argument("--report", type=Path, default=HERE / "bench.json")
    args = parse_flags(parser)
    quick = args.quick
    args.prompt_tokens = args.prompt_tokens or min(serving["prompt_tokens"], QUICK_PROMPT_TOKENS if quick else 1 << 30)
    args.new_tokens = args.new_tokens or min(serving["max_new_tokens"], QUICK_NEW_TOKENS if quick else NEW_TOKENS)
    args.seconds, args.repeats = args.seconds or (5 if quick else 30), args.repeats or (3 if quick else 5)
    args.arrivals = QUICK_ARRIVALS if quick else ARRIVALS
    args.log = args.report.with_name("bench-server.log")
    room = serving["max_context"] - args.prompt_tokens
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
    names = ("prompt_tokens", "new_tokens", "repeats", "seed", "quick", "url")
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
    except KeyboardInterrupt as end:  # by now the server has ended
        print(f"\nstopped by {signal.Signals(end.args[0]).name}: nothing was written", file=sys.stderr)
        sys.stderr.flush()
        os._exit(128 + end.args[0])  # requests that wait in threads are not waited for
