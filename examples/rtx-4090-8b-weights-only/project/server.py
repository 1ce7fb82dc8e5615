"""The model over HTTP, in OpenAI's form: `./serve.sh --port 8001`. A key is asked for where API_KEY is set."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import asyncio
import hmac
import os
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import aclosing, contextmanager
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from api_key import read_key
from config_file import read_config
from http_call import Call, ClientGone, Incoming
from openai_answers import Answer
from openai_requests import Asked, Refused, read_body, read_request
from prompts import Pieces
from service import Service
from terminal import parse_flags

HERE = Path(__file__).resolve().parent
LOCAL = ("127.0.0.1", "localhost", "::1")
GRACE_SECONDS, SEND_SECONDS = 25, 60
"""For answers that are being written when the server is stopped; for a reader that takes nothing.
``grace_seconds`` and ``send_seconds`` under ``serving`` in config.yaml say otherwise."""
HEAD_SECONDS, KEEP_ALIVE_SECONDS = 10, 30
"""For whoever connects to ask for something; for one who was answered, to begin to ask again."""
TOKEN_BYTES, LEAST_BODY = 32, 1 << 20
"""Of a token of the prompt in JSON, escapes and all."""


class App:
    """What uvicorn calls with each request."""

    def __init__(self, service: Service, key: str | None) -> None:
        self.service, self.key = service, key
        serving = service.config["serving"]
        self.body_limit = max(LEAST_BODY, TOKEN_BYTES * serving["max_context"])
        self.incoming = Incoming(service.most_open)
        self.send_seconds = serving.get("send_seconds", SEND_SECONDS)
        self.created = int(time.time())
        self.gets = {"/health": self.tell_health, "/metrics": self.tell_metrics, "/v1/models": self.list_models}
        self.gets[f"/v1/models/{service.name}"] = self.tell_model
        self.posts = {"/v1/chat/completions": self.answer_chat, "/v1/completions": self.answer_text}

    async def __call__(self, scope: dict, receive, send) -> None:
        call = Call(scope, receive, send, self.send_seconds)
        try:
            try:
                await self.route(call)
            except Refused as refused:
                await call.refuse(refused, self.service.retry_after)
        except ClientGone:
            call.outcome = call.outcome or "disconnected"
        except asyncio.CancelledError:
            call.outcome = "cut"
            raise
        except Exception:
            call.outcome = "error"
            traceback.print_exc(file=sys.stderr)
            if not call.status:
                await call.refuse(Refused(500, "The server failed; its log says why"), 0)
        finally:
            self.service.metrics.requests[call.outcome or "ok"] += 1
            if call.path not in ("/health", "/metrics"):
                print(call.describe(), file=sys.stderr, flush=True)

    async def route(self, call: Call) -> None:
        reads = call.method in ("GET", "HEAD")  # of HEAD, uvicorn sends the head alone
        handlers = self.gets if reads else self.posts if call.method == "POST" else {}
        if call.path.startswith("/v1/"):
            self.check_key(call.headers.get(b"authorization", b""))
        if call.path in handlers:
            await handlers[call.path](call)
        elif call.path in self.gets or call.path in self.posts:
            allowed = "POST" if call.path in self.posts else "GET, HEAD"
            words = f"{call.path} takes {allowed.replace(', ', ' and ')} alone"
            raise Refused(405, words, code="method_not_allowed", allow=allowed)
        else:
            known = ", ".join([*self.gets, *self.posts])
            raise Refused(404, f"There is nothing at {call.path[:200]!r}, but at {known}", code="not_found")

    def check_key(self, given: bytes) -> None:
        if self.key is not None and not hmac.compare_digest(given, b"Bearer " + self.key.encode()):
            raise Refused(401, "Incorrect API key provided in `Authorization: Bearer …`", code="invalid_api_key")

    async def tell_health(self, call: Call) -> None:
        state = self.service.state
        await call.send_json(200 if state == "ready" else 503, {"status": state})

    async def tell_metrics(self, call: Call) -> None:
        service = self.service
        memory = service.engine.memory_gib if service.engine else 0.0
        text = service.metrics.render(service.running, service.waiting_count, memory)
        await call.send_whole(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def list_models(self, call: Call) -> None:
        await call.send_json(200, {"object": "list", "data": [self.describe_model()]})

    async def tell_model(self, call: Call) -> None:
        await call.send_json(200, self.describe_model())

    def describe_model(self) -> dict:
        length = self.service.config["serving"]["max_context"]
        known = {"id": self.service.name, "object": "model", "created": self.created, "owned_by": "local"}
        return {**known, "max_model_len": length}

    async def answer_chat(self, call: Call) -> None:
        await self.answer(call, chat=True)

    async def answer_text(self, call: Call) -> None:
        await self.answer(call, chat=False)

    async def answer(self, call: Call, chat: bool) -> None:
        self.service.check_room()
        content = await call.read_body(self.body_limit, self.incoming)  # who sends slowly takes nobody's place
        self.service.enter()
        try:
            asked = read_request(read_body(content), chat, self.service.name)
            await call.run_until_gone(self.write(call, asked))
        finally:
            self.service.leave()
            self.count(call)

    async def write(self, call: Call, asked: Asked) -> None:
        """The answer, part by part as it is computed, or whole."""
        service = self.service
        assert service.prompts
        tokens, sampling = await service.prepare(asked)
        answer, texts, outcome = Answer(asked, service.name, len(tokens)), [], ""
        async with aclosing(service.write(tokens, sampling, Pieces(service.prompts, asked.stops))) as parts:
            async for text, count, finish in parts:
                if not call.new_tokens:
                    service.metrics.first_token_seconds.observe(call.seconds)
                    call.prompt_tokens, first = len(tokens), call.seconds
                answer.new_tokens = call.new_tokens = call.new_tokens + count
                if finish not in (None, "stop", "length"):
                    raise Refused(503 if service.stopping else 500, finish.removeprefix("error: "), code="incomplete")
                if asked.stream and not call.status:
                    await call.begin_stream()
                    await call.send_events(answer.render_first())
                if asked.stream and text:
                    await call.send_events(answer.render_text(text))
                texts += [] if asked.stream else [text]
                outcome = finish or ""
        if call.new_tokens > 1:
            service.metrics.token_seconds.observe((call.seconds - first) / (call.new_tokens - 1))
        service.seconds += (call.seconds - service.seconds) / 8
        if asked.stream:
            await call.send_events(answer.render_last(outcome), more=False)
        else:
            await call.send_json(200, answer.render_whole("".join(texts), outcome))
        call.outcome = outcome

    def count(self, call: Call) -> None:
        metrics = self.service.metrics
        metrics.prompt_tokens += call.prompt_tokens
        metrics.new_tokens += call.new_tokens
        metrics.request_seconds.observe(call.seconds)


class Connection(H11Protocol):
    """Ended where nothing is asked for: each takes a file of this process, which can open about a thousand."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.deadline = self.loop.call_later(HEAD_SECONDS, self.end_if_silent, None)

    def on_response_complete(self) -> None:
        """uvicorn's own time ends with the first byte: here a whole head has to come, or the rest of a body."""
        self.deadline.cancel()
        seconds = KEEP_ALIVE_SECONDS + HEAD_SECONDS
        self.deadline = self.loop.call_later(seconds, self.end_if_silent, self.cycle)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.cancel()
        super().connection_lost(exc)

    def end_if_silent(self, answered: object) -> None:
        """``answered``: the last request that was, None before the first."""
        if self.cycle is answered:
            self.transport.abort()


class Server(uvicorn.Server):
    """One signal: nothing new is taken, what is being written has its time. A second one: the end."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    @contextmanager
    def capture_signals(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop, number)
        yield

    def stop(self, number: int) -> None:
        if self.should_exit or self.service.engine is None:
            os._exit(128 + number)
        loop, grace = asyncio.get_running_loop(), self.service.config["serving"].get("grace_seconds", GRACE_SECONDS)
        self.service.stop()
        self.should_exit = True
        loop.call_later(grace, self.service.cut)
        loop.call_later(grace + 2, setattr, self, "force_exit", True)
        print(f"stopping: answers that are being written have {grace} s; again to end at once", file=sys.stderr)


def load(service: Service) -> None:
    """Ends the process where that cannot be, or is over: a server without a model is none."""
    try:
        service.load()
    except SystemExit as end:
        print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    if service.engine is None:
        sys.stderr.flush()
        os._exit(1)
    service.engine.thread.join()
    if service.engine.failed and not service.stopping:  # nor one whose model answers no more
        os.kill(os.getpid(), signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError, UnicodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        sys.exit(f"{host}, port {port}: {problem}. Take another: --port, or `port` in config.yaml")


def main() -> None:
    config = read_config()
    serving = config["serving"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default=serving["host"])
    parser.add_argument("--port", type=int, default=serving["port"], help="0: any that is free")
    args = parse_flags(parser)
    key = read_key()
    if args.host not in LOCAL and key is None:
        print(f"{args.host} can be reached from outside, and no key is asked for: set API_KEY", file=sys.stderr)
    listener = listen(args.host, args.port)
    service = Service(config, HERE)
    threading.Thread(target=load, args=(service,), name="loading", daemon=True).start()
    print(f"http://{args.host}:{listener.getsockname()[1]}/v1 serves {service.name}", file=sys.stderr, flush=True)
    options = {
        "lifespan": "off",
        "ws": "none",
        "http": Connection,
        "loop": "asyncio",
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
    }
    quiet = {"access_log": False, "log_level": "warning", "server_header": False}
    server = Server(uvicorn.Config(App(service, key), **options, **quiet), service)
    server.run(sockets=[listener])
    if service.engine:
        service.engine.close()
        sys.exit(1 if service.engine.failed else 0)


if __name__ == "__main__":
    main()
