"""One request to an OpenAI-compatible server, timed; and many: in a closed loop, and as they arrive."""

import http.client
import json
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 600.0
"""Without a byte from the server."""
LINE_BYTES = 1 << 20
"""Of an event: longer ones are no token's."""
CUT = "cut"
"""The problem of a request that the end of the measurement met under way: it counts as none."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds are counted from when the request was to be sent: waiting in this program is waiting too."""

    ttft: float
    seconds: float
    tokens: int
    prompt_tokens: int
    problem: str | None = None
    """Why there are no tokens: "refused" where the server has no room (429, 503), "cut" where measuring ended."""

    @property
    def tpot(self) -> float:
        """Seconds per token after the first."""
        return (self.seconds - self.ttft) / max(1, self.tokens - 1)


class Client:
    """Asks one server for completions of a fixed length, until ``end`` by ``time.perf_counter``."""

    end = math.inf

    def __init__(self, url: str, key: str | None, model: str) -> None:
        self.address = urlsplit(url)
        self.model = model
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.address.scheme == "https" else http.client.HTTPConnection
        seconds = max(1.0, min(TIMEOUT_SECONDS, self.end - time.perf_counter()))
        return kind(self.address.hostname or "127.0.0.1", self.address.port, timeout=seconds)

    def get(self, path: str) -> tuple[int, bytes]:
        connection = self.connect()
        try:
            connection.request("GET", f"{self.address.path.rstrip('/')}{path}", headers=self.headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def complete(self, prompt: str, new_tokens: int, due: float | None = None) -> Answer:
        """``due`` is when it should have been sent, by ``time.perf_counter``."""
        started = time.perf_counter() if due is None else due
        if time.perf_counter() >= self.end:
            return fail(started, CUT)
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": 0.0,
            "ignore_eos": True,  # as vLLM and SGLang take it: all answers are of one length
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = self.connect()
        try:
            path = f"{self.address.path.rstrip('/')}/v1/completions"
            connection.request("POST", path, json.dumps(body), self.headers)
            response = connection.getresponse()
            if response.status != 200:
                text = response.read(400).decode("utf-8", "replace")
                refused = response.status in (429, 503)
                return fail(started, "refused" if refused else f"HTTP {response.status}: {text}")
            return read_stream(response, started, self.end)
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = time.perf_counter() >= self.end
            return fail(started, CUT if late else f"{type(error).__name__}: {str(error)[:200]}")
        finally:
            connection.close()


def explain_address(url: str) -> str | None:
    """Why nothing can be asked there."""
    try:
        address = urlsplit(url)
        right = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError as error:
        return str(error)
    return None if right else "an address is such as http://127.0.0.1:8000"


def fail(started: float, problem: str) -> Answer:
    return Answer(0.0, time.perf_counter() - started, 0, 0, problem)


def read_stream(response: http.client.HTTPResponse, started: float, end: float = math.inf) -> Answer:
    """Server-sent events: the time of the first with text, and what the last says of tokens."""
    first = last = 0.0
    usage: dict = {}
    while line := response.readline(LINE_BYTES):
        now = time.perf_counter()
        if now >= end:
            return fail(started, CUT)
        if len(line) == LINE_BYTES:
            return fail(started, f"a line of the stream is longer than {LINE_BYTES:,} bytes")
        if not line.startswith(b"data:") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[5:])
        if not isinstance(event, dict):
            return fail(started, f"an event of the stream is no completion: {str(event)[:80]}")
        if "error" in event:
            return fail(started, f"in the stream: {str(event['error'])[:200]}")
        if any(isinstance(choice, dict) and choice.get("text") for choice in event.get("choices") or ()):
            first, last = first or now, now
        usage = event.get("usage") or usage
    counted = usage if isinstance(usage, dict) else {}
    new, read = counted.get("completion_tokens"), counted.get("prompt_tokens")
    if not (first and isinstance(new, int) and isinstance(read, int) and new > 0 and read > 0):
        return fail(started, "the stream ended without an answer, or without its usage")
    return Answer(first - started, last - started, new, read)


def draw_arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Seconds from the start at which requests are sent, ``rate`` per second on average, as independent users do."""
    gaps, moment, arrivals = random.Random(seed), 0.0, []
    for _ in range(count):
        moment += gaps.expovariate(rate)
        arrivals.append(moment)
    return arrivals


def run_open(ask: Callable[[int, float], Answer], arrivals: Sequence[float], tell: Callable) -> tuple[list, float]:
    """Requests are sent when they arrive, however many are not answered yet; the answers, and seconds of it all."""
    start = time.perf_counter()

    def send(number: int) -> Answer:
        due = start + arrivals[number]
        time.sleep(max(0.0, due - time.perf_counter()))
        answer = ask(number, due)
        tell()
        return answer

    answers = run_threads(send, len(arrivals))
    return answers, time.perf_counter() - start


def run_closed(
    ask: Callable[[int, float], Answer], users: int, rounds: int, tell: Callable, until: float = math.inf
) -> tuple[list, float]:
    """So many users, each of whom asks again as soon as there is an answer, and once at least before ``until``."""
    answers, lock = [], threading.Lock()
    start = time.perf_counter()

    def use(user: int) -> None:
        for turn in range(rounds):
            if turn and time.perf_counter() >= until:
                break
            answer = ask(turn * users + user, time.perf_counter())
            with lock:
                answers.append(answer)
            tell()

    run_threads(use, users)
    return answers, time.perf_counter() - start


def run_threads(work: Callable, count: int) -> list:
    """Results of each number. Ctrl-C waits for none of them."""
    pool = ThreadPoolExecutor(count)
    try:
        return list(pool.map(work, range(count)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
