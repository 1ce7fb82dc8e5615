"""The thread in which an engine computes. Requests come from any thread, and are told there what was added to them."""

import itertools
import resource
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from sampling import Receive, Sampling, describe_failure


class Request:
    """A prompt, and who waits for what comes after it. Among the ``untold`` until its end is told, wherever it goes."""

    def __init__(
        self, number: int, prompt: list[int], sampling: Sampling, tell: Receive, untold: dict[int, "Request"]
    ) -> None:
        self.number, self.prompt, self.sampling, self.tell = number, prompt, sampling, tell
        self.untold = untold
        untold[number] = self

    def receive(self, tokens: list[int], finish: str | None) -> None:
        if finish is not None:
            self.untold.pop(self.number, None)
        self.tell(tokens, finish)


class DeviceLost(BaseException):
    """No request can be answered any more, by this process."""


class EngineThread:
    """What all engines here share. One of them says how it goes on, what it drops, and what is under way."""

    applied: ClassVar[frozenset[str]] = frozenset()
    """Fields of Sampling that it applies, of those that not every engine does: top_k, min_p, repetition_penalty."""
    draws_by_seed: ClassVar[bool] = True
    """Whether the seed of a request decides what is drawn for it."""
    fatal: ClassVar[tuple[type[Exception], ...]] = ()
    """What its library raises of a device that computes nothing any more."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.numbers = itertools.count(1)
        self.changed = threading.Condition()
        self.waiting: deque[Request] = deque()
        self.cancelled: set[int] = set()
        self.untold: dict[int, Request] = {}
        """Whose end nobody has been told yet."""
        self.closed = False
        self.failed = False
        """Whether the thread ended of itself: whatever the library raised, its state is not known any more."""
        self.thread = threading.Thread(target=self.work, name="engine", daemon=True)
        self.thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether requests are under way."""
        raise NotImplementedError

    def advance(self) -> None:
        """Take what waits as there is room, and add tokens to what is under way."""
        raise NotImplementedError

    def drop(self, numbers: set[int]) -> list[Request]:
        """Forget those of them that are under way."""
        raise NotImplementedError

    def drop_all(self) -> list[Request]:
        """Forget what is under way."""
        raise NotImplementedError

    def submit(self, prompt: list[int], sampling: Sampling, receive: Receive) -> int:
        return self.submit_all([prompt], [sampling], [receive])[0]

    def submit_all(
        self, prompts: Sequence[list[int]], samplings: Sequence[Sampling], receivers: Sequence[Receive]
    ) -> list[int]:
        """At once: nothing is computed between the first and the last."""
        for prompt, sampling in zip(prompts, samplings, strict=True):
            check_lengths(len(prompt), sampling.max_new_tokens, self.context)
        with self.changed:
            if self.closed:
                raise RuntimeError("the engine is closed: it takes no more requests")
            rows = zip(prompts, samplings, receivers, strict=True)
            requests = [Request(next(self.numbers), *row, self.untold) for row in rows]
            self.waiting.extend(requests)
            self.changed.notify_all()
        return [request.number for request in requests]

    def cancel(self, request: int) -> None:
        """Before the next step. One that has ended is no error: the answer may have been quicker."""
        with self.changed:
            self.cancelled.add(request)

    def generate(self, prompts: list[list[int]], samplings: list[Sampling]) -> list[list[int]]:
        """All of them. Where nothing else is computed, always in the same batches."""
        answers: list[list[int]] = [[] for _ in prompts]
        left, problems = threading.Semaphore(0), []

        def receive_into(answer: list[int]) -> Receive:
            def receive(tokens: list[int], finish: str | None) -> None:
                answer.extend(tokens)
                if finish and finish not in ("stop", "length"):
                    problems.append(finish)
                if finish:
                    left.release()

            return receive

        self.submit_all(prompts, samplings, [receive_into(answer) for answer in answers])
        for _ in prompts:
            left.acquire()
        if problems:
            raise RuntimeError(problems[0])
        return answers

    @contextmanager
    def at_rest(self) -> Generator[None]:
        """Nothing is computed for anyone else meanwhile. RuntimeError where answers are under way."""
        with self.changed:
            if self.is_busy or self.waiting:
                raise RuntimeError("answers are under way: ask before or after them")
            yield

    @property
    def memory_gib(self) -> float:
        """Most that the process has held."""
        return measure_peak_gib()

    def close(self) -> None:
        """Whoever waits is told that it was cancelled."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def work(self) -> None:
        finish = "cancelled"
        try:
            while self.wait():
                try:
                    self.drop_cancelled()
                    self.advance()
                except Exception as error:  # whatever the library raises: those under way are told, the next are served
                    self.report(error)
                    self.drop_all()
                    self.tell_all(describe_failure(error))
            self.drop_all()
        except BaseException as error:  # a panic in Rust, or a library that cannot even drop what it has
            traceback.print_exception(error, file=sys.stderr)
            self.failed, finish = True, describe_failure(error)
        with self.changed:
            self.closed = True
            self.waiting.clear()
        self.tell_all(finish)

    def report(self, error: Exception) -> None:
        """In the log, whole: who asked is told one line. Where the device is lost the thread ends."""
        traceback.print_exception(error, file=sys.stderr)
        if isinstance(error, self.fatal):
            raise DeviceLost(str(error)) from None

    def tell_all(self, finish: str) -> None:
        """The end of all but those that wait: also of those that a step had taken which failed before it kept them."""
        with self.changed:
            waiting = {request.number for request in self.waiting}
            left = [request for number, request in self.untold.items() if number not in waiting]
        tell(left, finish)

    def wait(self) -> bool:
        """Until there is something to do; false when it is over."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self.waiting or self.is_busy)
            return not self.closed

    def admit_next(self, admit: Callable[[Request], Any]) -> Any:
        """What ``admit`` makes of the next that waits. One that it cannot take is told why; the next is taken."""
        while True:
            with self.changed:
                if not self.waiting:
                    return None
                request = self.waiting.popleft()
            try:
                return admit(request)
            except Exception as error:  # whatever the library raises
                self.report(error)
                tell([request], describe_failure(error))

    def drop_cancelled(self) -> None:
        with self.changed:
            cancelled, self.cancelled = self.cancelled, set()
            dropped = [request for request in self.waiting if request.number in cancelled]
            for request in dropped:
                self.waiting.remove(request)
        tell(dropped, "cancelled")
        if cancelled:
            tell(self.drop(cancelled), "cancelled")


def tell(requests: Sequence[Request], finish: str) -> None:
    for request in requests:
        request.receive([], finish)


def check_lengths(prompt_tokens: int, new_tokens: int, context: int) -> None:
    """ValueError, in words, for what the engine has no room for."""
    if prompt_tokens < 1 or new_tokens < 1:
        raise ValueError(f"{prompt_tokens} tokens of prompt and {new_tokens} new ones: one each is the least")
    if prompt_tokens + new_tokens > context:
        raise ValueError(
            f"{prompt_tokens} tokens of prompt and {new_tokens} new ones are more than the {context} of max_context"
        )


def measure_peak_gib() -> float:
    """Most that this process has held."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage's is at least that of the process which started this one
        lines = status.read_text(encoding="utf-8").splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0) / (1 << 20)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 30 if sys.platform == "darwin" else 1 << 20)  # bytes there, KiB on Linux
