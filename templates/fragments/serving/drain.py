"""Told to stop, each process that speaks HTTP finishes what it is answering, and takes nothing new.

vLLM's own (0.32) let go of the engines at once where they are several, and what was under way ended with 500.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from config_file import read_config

LOOK_SECONDS = 0.1
END_SECONDS = 3.0
"""Of the time that vLLM gives a process: what it needs to end itself."""
REFUSED = b'{"error": {"message": "the server is stopping", "type": "service_unavailable", "code": 503}}'
Message = MutableMapping[str, Any]


class Drain:
    """Between the server and the application (ASGI), by vLLM's flag --middleware."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app, self.running = app, 0
        self.stopping: asyncio.Task | None = None
        self.seconds = read_config()["serving"]["flags"]["shutdown-timeout"] - END_SECONDS

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan":  # the application begins, and vLLM has set its own handler before
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
            await self.app(scope, receive, send)
        elif scope["type"] == "http" and self.stopping:
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSED})
        else:
            self.running += 1
            try:
                await self.app(scope, receive, send)
            finally:
                self.running -= 1

    def stop(self) -> None:
        self.stopping = self.stopping or asyncio.get_running_loop().create_task(self.finish())

    async def finish(self) -> None:
        end = time.monotonic() + self.seconds
        while self.running and time.monotonic() < end:
            await asyncio.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)  # which vLLM answers as it does SIGTERM
