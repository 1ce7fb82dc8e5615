"""One HTTP request and its answer, over ASGI: with a limit on what comes in, and on how long a reader may take."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

from openai_answers import render_data
from openai_requests import Refused
from terminal import escape_control

BODY_SECONDS = 30


class ClientGone(Exception):
    """The connection is closed, or whoever reads it has stopped."""


class Incoming:
    """Bodies that are under way, ``most`` at a time: one more ends the one that has come for the longest."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.deadlines: list[asyncio.Timeout] = []

    @contextmanager
    def hold(self, deadline: asyncio.Timeout) -> Generator[None]:
        if len(self.deadlines) >= self.most and not (oldest := self.deadlines.pop(0)).expired():
            oldest.reschedule(0)
        self.deadlines.append(deadline)
        try:
            yield
        finally:
            if deadline in self.deadlines:
                self.deadlines.remove(deadline)


class Call:
    def __init__(self, scope: dict, receive: Callable, send: Callable, send_seconds: float) -> None:
        self.method, self.path = scope["method"], scope["path"]
        self.client = (scope["client"] or ("-",))[0]
        self.headers = dict(scope["headers"])
        self.receive, self.send, self.send_seconds = receive, send, send_seconds
        self.started = time.monotonic()
        self.status = 0
        """Of the answer, once it has begun."""
        self.outcome = ""
        """How it ended, as the log and the metrics say it."""
        self.prompt_tokens = self.new_tokens = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    async def read_body(self, limit: int, incoming: Incoming) -> bytes:
        refusal = Refused(413, f"The body is larger than the {limit:,} bytes that this server reads", code="too_large")
        announced = self.headers.get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            raise refusal
        try:
            async with asyncio.timeout(BODY_SECONDS) as deadline:
                with incoming.hold(deadline):
                    return await self.receive_body(limit, refusal)
        except TimeoutError:
            if self.seconds < BODY_SECONDS:  # ended for others, and not for being slow: many came at once
                message = f"{incoming.most} requests were coming in beside this one: ask again later"
                raise Refused(429, message, code="too_many_requests") from None
            raise Refused(408, f"The body did not come within {BODY_SECONDS} s", code="timeout") from None

    async def receive_body(self, limit: int, refusal: Refused) -> bytes:
        body = bytearray()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > limit:
                raise refusal
            if not message.get("more_body"):
                return bytes(body)

    async def send_json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        await self.send_whole(status, json.dumps(value).encode(), "application/json", headers)

    async def send_whole(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        await self.begin(status, kind, {"content-length": str(len(body)), **(headers or {})})
        await self.pass_on({"type": "http.response.body", "body": body})

    async def begin(self, status: int, kind: str, headers: dict[str, str]) -> None:
        self.status = status
        pairs = [(name.encode(), value.encode()) for name, value in {"content-type": kind, **headers}.items()]
        await self.pass_on({"type": "http.response.start", "status": status, "headers": pairs})

    async def begin_stream(self) -> None:
        await self.begin(200, "text/event-stream; charset=utf-8", {"cache-control": "no-store"})

    async def send_events(self, events: bytes, more: bool = True) -> None:
        await self.pass_on({"type": "http.response.body", "body": events, "more_body": more})

    async def pass_on(self, message: dict) -> None:
        """Waits while the buffers to the client are full, and not longer than that is a slow reader."""
        try:
            async with asyncio.timeout(self.send_seconds):
                await self.send(message)
        except TimeoutError:
            self.outcome = "slow_reader"
            raise ClientGone from None
        except OSError as error:
            raise ClientGone from error

    async def refuse(self, refused: Refused, retry_after: int) -> None:
        """In the answer, or at the end of a stream that has begun."""
        self.outcome = f"refused_{refused.status}"
        if self.status:
            await self.send_events(render_data(refused.body), more=False)
            return
        headers = {"retry-after": str(retry_after)} if refused.status in (429, 503) else {}
        if refused.status == 401:
            headers["www-authenticate"] = "Bearer"
        if refused.allow:
            headers["allow"] = refused.allow
        await self.send_json(refused.status, refused.body, headers)

    async def run_until_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """The work, which is cancelled when the client closes the connection."""
        tasks = asyncio.create_task(work), asyncio.create_task(self.wait_until_gone())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise ClientGone
            tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_until_gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def describe(self) -> str:
        """A line of the log: nothing of what was asked or answered."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        tokens = f" {self.prompt_tokens}+{self.new_tokens} tokens" if self.prompt_tokens else ""
        path = escape_control(self.path[:200])
        request = f"{self.method} {path} {self.status or '-'} {self.outcome or 'ok'}"
        return f"{now} {self.client} {request}{tokens} {self.seconds:.2f} s"
