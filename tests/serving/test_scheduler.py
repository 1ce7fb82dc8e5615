"""Whatever goes wrong with one request is told to it; the others, and the next, are answered."""

from __future__ import annotations

import queue

import numpy as np
import pytest


class Counting:
    """A model whose next token is the last one and one more; it refuses some."""

    count, context = 2, 64

    def __init__(self) -> None:
        self.fails: set[int] = set()

    def find_next(self, token: int) -> np.ndarray:
        if token in self.fails:
            raise IndexError(f"token {token}")
        logits = np.full(100, -1e9, np.float32)
        logits[(token + 1) % 100] = np.nan if token == 77 else 1.0
        return logits

    def read_prompt(self, row, tokens, past):
        return self.find_next(tokens[-1])

    def step(self, tokens, pasts):
        return np.stack([self.find_next(token) for token in tokens])

    def move_row(self, source, target, length):
        pass


@pytest.fixture
def modules(load):
    for name in ("sampling", "decoding", "engine_thread"):
        load(f"serving/{name}", name)
    return load("serving/scheduler", "scheduler")


@pytest.fixture
def engine(modules):
    engine = modules.Scheduler(Counting(), [99])
    yield engine
    engine.close()


def ask(engine, prompt: list[int], **how) -> queue.Queue:
    from sampling import Sampling

    events: queue.Queue = queue.Queue()
    engine.submit(prompt, Sampling(**{"max_new_tokens": 3} | how), lambda new, finish: events.put((new, finish)))
    return events


def read(events: queue.Queue) -> tuple[list[int], str]:
    tokens, finish = [], None
    while finish is None:
        new, finish = events.get(timeout=20)
        tokens += new
    return tokens, finish


def test_one_that_cannot_be_taken_is_told_and_the_next_is_answered(engine, capsys):
    """numpy takes no negative seed."""
    wrong, right = ask(engine, [1], seed=-1), ask(engine, [5])
    tokens, finish = read(wrong)
    assert tokens == [] and finish.startswith("error: ValueError")
    assert read(right) == ([6, 7, 8], "length")
    assert "Traceback" in capsys.readouterr().err


def test_one_whose_logits_are_no_numbers_ends_alone(engine):
    long = ask(engine, [1], max_new_tokens=40)
    wrong = ask(engine, [76], temperature=1.0)
    assert read(wrong) == ([77], "error: ValueError: Probabilities contain NaN") or read(wrong)[1].startswith("error")
    assert read(long) == (list(range(2, 42)), "length")


def test_a_prompt_that_cannot_be_read_ends_alone(engine):
    engine.rows.fails = {60}
    long, wrong = ask(engine, [1], max_new_tokens=40), ask(engine, [60])
    assert read(wrong) == ([], "error: IndexError: token 60")
    assert read(long) == (list(range(2, 42)), "length")


def test_a_step_that_fails_ends_those_in_it_alone(engine):
    engine.rows.fails = {20}
    first, second = ask(engine, [10], max_new_tokens=40), ask(engine, [19], max_new_tokens=40)
    assert read(second)[1] == read(first)[1] == "error: IndexError: token 20"
    assert read(ask(engine, [98])) == ([99], "stop")


class Panic(BaseException):
    """As a library in Rust raises it."""


def test_an_engine_that_cannot_go_on_tells_everyone_and_takes_no_more(engine, capsys):
    """Its thread ended without a word once, and whoever waited did for ever."""

    def panic(tokens, pasts):
        raise Panic("unreachable")

    engine.rows.step = panic
    asked = [ask(engine, [token]) for token in (1, 2, 3)]
    assert {read(events)[1] for events in asked} == {"error: Panic: unreachable"}
    engine.thread.join(20)
    assert engine.failed and "Panic" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="closed"):
        ask(engine, [1])


@pytest.mark.parametrize("place", ["read_prompt", "step"])
def test_a_lost_device_is_the_end_of_the_engine(engine, place):
    """Every later request would be told an error, by a server that says that it is ready."""

    class Lost(RuntimeError):
        pass

    def lose(*arguments):
        raise Lost("device-side assert triggered")

    engine.fatal = (Lost,)
    setattr(engine.rows, place, lose)
    assert read(ask(engine, [1]))[1] == "error: DeviceLost: device-side assert triggered"
    engine.thread.join(20)
    assert engine.failed


def test_one_that_can_be_closed_has_not_failed(engine):
    long = ask(engine, [1], max_new_tokens=60)
    engine.close()
    assert read(long)[1] in ("cancelled", "length") and not engine.failed


def test_what_a_step_took_and_lost_is_told(modules):
    """Taken from those that wait, and kept nowhere when the next thing failed."""
    from engine_thread import EngineThread

    class Losing(EngineThread):
        is_busy = False

        def advance(self):
            self.waiting.popleft()
            raise ValueError("lost")

        def drop(self, numbers):
            return []

        def drop_all(self):
            return []

    engine = Losing(64)
    try:
        assert read(ask(engine, [1])) == read(ask(engine, [2])) == ([], "error: ValueError: lost")
    finally:
        engine.close()
    assert not engine.untold
