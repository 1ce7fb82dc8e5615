"""Requests in front of an engine: who is taken, who waits, who is refused, and how each of them ends."""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine import Engine
from generation_defaults import FILE, read_defaults
from openai_requests import Asked, Refused
from prompts import Pieces, Prompts
from sampling import Sampling
from server_metrics import Metrics

Event = tuple[list[int], str | None]
"""Of the engine: new tokens, and at the end why it ends."""
Part = tuple[str, int, str | None]
"""Text, the number of its tokens, and at the end why it ends."""
BESIDE = ("top_k", "min_p", "repetition_penalty")
"""Of how tokens are chosen, what not every engine does."""
STOPPING = "This server is being stopped: ask another, or again in a moment"


class Service:
    """One model. Everything here runs in the event loop, but the engine's own thread and the tokenizer's."""

    def __init__(self, config: dict, here: Path) -> None:
        self.config, self.here = config, here
        serving = config["serving"]
        self.name, self.limit = serving["name"], serving["max_concurrency"]
        self.most_open = self.limit + serving["max_waiting"]
        self.engine: Engine | None = None
        self.prompts: Prompts | None = None
        self.defaults: dict[str, float] = {}
        """Of how tokens are chosen, where a request says nothing."""
        self.metrics = Metrics()
        self.open = self.running = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.answering: dict[int, asyncio.Queue[Event]] = {}
        """Of the requests that the engine has."""
        self.stopping = False
        self.seconds = 1.0
        """What an answer took lately: by it those who are refused know when to come again."""
        self.tokenizing = ThreadPoolExecutor(1, "tokenizer")

    def load(self) -> None:
        """In a thread: meanwhile /health is answered."""
        started = time.monotonic()
        prompts = Prompts(self.config)
        prompts.encode_text("")
        self.defaults, left = read_defaults(self.config, Engine.applied)
        self.engine, self.prompts = Engine(self.config, self.here), prompts
        if left:
            print(f"The model's {FILE} asks what this server does not do: {', '.join(left)}", file=sys.stderr)
        unsaid = self.defaults | {"max_tokens": self.config["serving"]["max_new_tokens"]}
        print(
            f"{self.name} is loaded ({time.monotonic() - started:.1f} s). What requests do not say: "
            + ", ".join(f"{name} {value}" for name, value in unsaid.items()),
            file=sys.stderr,
        )

    @property
    def state(self) -> str:
        return "stopping" if self.stopping else "loading" if self.engine is None else "ready"

    def check_room(self) -> None:
        """A request is held, with its body and its answer, only as far as there is room."""
        if self.state != "ready":
            message = STOPPING if self.stopping else "The model is being loaded: ask again in a moment"
            raise Refused(503, message, code=self.state)
        if self.open >= self.most_open:
            message = (
                f"{self.open} requests are here already, of {self.limit} that are answered at once and "
                f"{self.most_open - self.limit} that may wait: ask again later"
            )
            raise Refused(429, message, code="too_many_requests")

    def enter(self) -> None:
        self.check_room()
        self.open += 1

    def leave(self) -> None:
        self.open -= 1

    @property
    def waiting_count(self) -> int:
        return sum(not turn.done() for turn in self.waiting)

    @property
    def retry_after(self) -> int:
        """Seconds until those that wait have gone, at the pace of the last ones."""
        return min(60, 1 + int(self.seconds * self.open / self.limit))

    async def prepare(self, asked: Asked) -> tuple[list[int], Sampling]:
        """The tokens of the prompt, which fit with their answer; and how that is chosen."""
        chosen = self.choose_sampling(asked)
        tokens = await self.encode(asked)
        return tokens, Sampling(self.limit_answer(asked, len(tokens)), seed=asked.seed, ends=asked.ends, **chosen)

    def choose_sampling(self, asked: Asked) -> dict[str, Any]:
        """Fields of Sampling: the request's where it says something, else the model's."""
        given = {name: getattr(asked, name) for name in ("temperature", "top_p", *BESIDE)}
        given = {name: value for name, value in given.items() if value is not None}
        for name in BESIDE:
            if name in given and name not in Engine.applied:
                raise Refused(400, f"{name} is not supported by the engine of this server: leave it out", field=name)
        chosen = self.defaults | given
        if asked.seed is not None and chosen["temperature"] > 0 and not Engine.draws_by_seed:
            message = "seed is not supported by the engine of this server: leave it out, or set temperature to 0"
            raise Refused(400, message, field="seed")
        return chosen

    async def encode(self, asked: Asked) -> list[int]:
        assert self.prompts
        if isinstance(asked.prompt, list):
            size = self.prompts.known_tokens
            if any(not 0 <= token < size for token in asked.prompt):
                raise Refused(400, f"prompt: tokens are from 0 to {size - 1}", field="prompt", code="invalid_value")
            return asked.prompt
        loop, prompts = asyncio.get_running_loop(), self.prompts
        texts = [message["content"] for message in asked.messages] if asked.chat else [asked.prompt]
        texts += [json.dumps(asked.template_arguments)] if asked.template_arguments else []
        if not prompts.may_fit(texts, context := self.config["serving"]["max_context"]):
            field = "messages" if asked.chat else "prompt"
            message = (
                f"This model's maximum context length is {context} tokens. However, the {sum(map(len, texts)):,} "
                f"characters of your {field} are more: shorten them"
            )
            raise Refused(400, message, field=field, code="context_length_exceeded")
        try:
            if asked.chat:
                given = asked.messages, asked.template_arguments
                return await loop.run_in_executor(self.tokenizing, prompts.encode_messages, *given)
            return await loop.run_in_executor(self.tokenizing, prompts.encode_text, asked.prompt)
        except ValueError as error:
            raise Refused(400, str(error), field="messages", code="invalid_value") from error

    def limit_answer(self, asked: Asked, prompt_tokens: int) -> int:
        """Tokens of the answer: those that were asked for must fit, the server's default gives way to the prompt."""
        context, field = self.config["serving"]["max_context"], "messages" if asked.chat else "prompt"
        if not prompt_tokens:
            raise Refused(400, f"{field}: no token to go on from", field=field, code="invalid_value")
        wanted = asked.max_new_tokens
        if prompt_tokens + (wanted or 1) > context:
            answer = f"{wanted or 'at least 1'} for the answer"
            message = (
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{prompt_tokens + (wanted or 1)} tokens ({prompt_tokens} in the {field}, {answer}): shorten either"
            )
            raise Refused(400, message, field=field, code="context_length_exceeded")
        return wanted or min(self.config["serving"]["max_new_tokens"], context - prompt_tokens)

    async def take_turn(self) -> None:
        """As many as are computed together have one; others wait, first come, first served."""
        if self.running < self.limit:
            self.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_turn()  # it came as the client went
            raise

    def give_turn(self) -> None:
        while self.waiting:
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    async def write(self, tokens: list[int], sampling: Sampling, pieces: Pieces) -> AsyncGenerator[Part]:
        """An answer in parts. Whoever leaves early ends it."""
        assert self.engine
        await self.take_turn()
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def deliver(event: Event) -> None:
            events.put_nowait(event)
            if event[1] is not None:  # the engine is done, though a slow reader is not
                self.give_turn()

        def receive(new: list[int], finish: str | None) -> None:
            with suppress(RuntimeError):  # the loop has ended with the server: nobody waits for it
                loop.call_soon_threadsafe(deliver, (new, finish))

        try:
            number = self.engine.submit(tokens, sampling, receive)
        except BaseException:
            self.give_turn()
            raise
        self.answering[number] = events
        finish = None
        try:
            while finish is None:
                new, finish = await events.get()
                text = pieces.add(new)
                if finish in ("stop", "length"):
                    text += pieces.finish()
                if pieces.stopped and finish is None:
                    finish = "stop"
                    self.engine.cancel(number)
                yield text, len(new), finish
        finally:
            if finish is None:
                self.engine.cancel(number)
            del self.answering[number]

    def stop(self) -> None:
        """Those that wait are sent away; what is being written goes on."""
        self.stopping = True
        for turn in self.waiting:
            if not turn.done():
                turn.set_exception(Refused(503, STOPPING, code="stopping"))
        self.waiting.clear()

    def cut(self) -> None:
        """The time is over for those too that are being written: their last event says so."""
        for events in self.answering.values():
            events.put_nowait(([], "error: this server was stopped before the answer was complete"))
