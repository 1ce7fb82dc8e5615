"""A server on localhost that answers with a handler of the tests."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Every method asks ``answer``, and nothing is logged."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        raise NotImplementedError


@contextmanager
def serve(handler: type[QuietHandler], **knows: object) -> Generator[str]:
    """The address of a server whose handlers have ``knows`` as attributes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), knows))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
