"""Run in the environment of an engine, inside a project: one task with its engine.py, the finding as JSON."""

import json
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

import yaml
from engine import Engine
from sampling import Sampling

CONFIG = yaml.safe_load(Path("config.yaml").read_text())


class Answer:
    """What an engine gave for one request."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.calls_after_end = 0
        self.ended = threading.Event()

    def receive(self, tokens: list[int], finish: str | None) -> None:
        self.calls_after_end += self.ended.is_set()
        self.tokens += tokens
        if finish:
            self.finish = finish
            self.ended.set()


def generate(engine: Engine, prompts: list[list[int]], sampling: dict) -> dict:
    """The same batch twice, and each prompt alone."""
    samplings = [Sampling(**sampling)] * len(prompts)
    batches = [engine.generate(prompts, samplings) for _ in range(2)]
    return {"batches": batches, "alone": [engine.generate([prompt], samplings[:1])[0] for prompt in prompts]}


def score(engine: Engine, texts: list[list[int]]) -> dict:
    """Each text after an answer, which leaves its keys and values behind."""
    engine.generate(texts[:1], [Sampling(4, ends=False)])
    return {"scores": [engine.score(text) for text in texts]}


LONGER = 8
"""times as many tokens are asked for by who does not wait for them: on a busy machine a short answer is there before it is cancelled"""


def share(engine: Engine, prompts: list[list[int]], new_tokens: int, threads: int) -> dict:
    """Requests from several threads at once, more than there are rows; every third is cancelled early."""
    answers: list[tuple[int, bool, Answer]] = []

    def ask(start: int) -> None:
        for turn in range(3):
            answer, index = Answer(), (start + turn) % len(prompts)
            cancelled = (start + turn) % 3 == 0
            most = new_tokens * LONGER if cancelled else new_tokens
            number = engine.submit(prompts[index], Sampling(most, ends=False), answer.receive)
            answers.append((index, cancelled, answer))
            if cancelled:
                while not answer.tokens and not answer.ended.is_set():
                    time.sleep(0.01)
                engine.cancel(number)
                engine.cancel(number)  # twice is no error, nor one that never was
                engine.cancel(1 << 30)

    workers = [threading.Thread(target=ask, args=(start,)) for start in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    in_time = all(answer.ended.wait(300) for _, _, answer in answers)
    rows = [
        {"prompt": index, "cancelled": cancelled, "tokens": answer.tokens, "finish": answer.finish}
        for index, cancelled, answer in answers
    ]
    late = sum(answer.calls_after_end for _, _, answer in answers)
    return {"in_time": in_time, "rows": rows, "late": late, "memory_gib": engine.memory_gib}


def close(engine: Engine, prompt: list[int]) -> dict:
    """The end while an answer is under way; what no row holds is refused before."""
    problems = []
    for wrong, new_tokens in (([], 4), (prompt, 0), (prompt * 100, 4)):
        try:
            engine.submit(wrong, Sampling(new_tokens), Answer().receive)
        except ValueError as error:
            problems.append(str(error))
    answer = Answer()
    engine.submit(prompt, Sampling(400, ends=False), answer.receive)
    while not answer.tokens:
        time.sleep(0.01)
    engine.close()
    return {"refused": problems, "ended": answer.ended.wait(60), "finish": answer.finish, "tokens": len(answer.tokens)}


def beat(engine: Engine, prompt: list[int]) -> dict:
    """A thread that only looks at the clock, while a long prompt is read."""
    engine.generate([prompt[:8]], [Sampling(1)])
    gaps, read = [], threading.Event()

    def look() -> None:
        before = time.monotonic()
        while not read.is_set():
            time.sleep(0.005)
            now = time.monotonic()
            gaps.append(now - before)
            before = now

    looking = threading.Thread(target=look)
    looking.start()
    began = time.monotonic()
    engine.generate([prompt], [Sampling(1)])
    seconds = time.monotonic() - began
    read.set()
    looking.join()
    return {"seconds": seconds, "longest_gap": max(gaps)}


def leave(engine: Engine, prompt: list[int], count: int) -> dict:
    """How long an answer takes alone, and behind many who have asked and gone."""
    one, seconds = Sampling(8, ends=False), []

    def ask() -> None:
        began = time.monotonic()
        engine.generate([prompt], [one])
        seconds.append(time.monotonic() - began)

    ask()
    for _ in range(count):
        number = engine.submit(prompt, one, Answer().receive)
        time.sleep(seconds[0] / 8)
        engine.cancel(number)
    ask()
    return {"alone": seconds[0], "after": seconds[1]}


if __name__ == "__main__":
    job = json.loads(sys.stdin.read())
    running = Engine(CONFIG, Path.cwd())
    tasks = {"generate": generate, "score": score, "share": share, "close": close, "beat": beat, "leave": leave}
    found = tasks[sys.argv[1]](running, **job)
    running.close()
    print(json.dumps(found))
