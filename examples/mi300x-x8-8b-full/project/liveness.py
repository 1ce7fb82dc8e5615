"""A process that is killed or crashes, alone or with its whole container, is named at once on all nodes.

Each holds a connection to the first one, which the system closes for whoever can say nothing any more. Who is stopped,
and a node without power or cable, is silent instead: heartbeat.py counts that.
"""

import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import torch.distributed as dist

KEY = "liveness"
"""In the store: port and token of the first process."""
TOKEN_BYTES, RANK_BYTES = 16, 4
HELLO_BYTES = TOKEN_BYTES + RANK_BYTES
"""What a connection begins with: others may come to an open port."""
ENDED = b"E"
"""What it ends with, where a process ends by itself."""
RETURN_SECONDS = 2.0
"""Something between the nodes may have cut the connection of a process that lives: it comes again."""
LOOK_SECONDS, CONNECT_SECONDS = 0.5, 10.0


class Liveness(threading.Thread):
    """``report`` is told the rank of a process that has ended without a word."""

    def __init__(self, store: dist.Store, rank: int, report: Callable[[int], None]):
        super().__init__(daemon=True)
        self.store, self.rank, self.report, self.ending = store, rank, report, threading.Event()
        self.connections: list[socket.socket] = []
        os.register_at_fork(after_in_child=self.close)  # a DataLoader's workers live on for seconds

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    def end(self) -> None:
        """This process ends by itself."""
        self.ending.set()
        for connection in list(self.connections):
            with suppress(OSError):  # the other end may be gone
                connection.send(ENDED)
                connection.shutdown(socket.SHUT_RDWR)


class OfFirst(Liveness):
    """On the first process: all others come to it."""

    def __init__(self, store: dist.Store, rank: int, report: Callable[[int], None]):
        super().__init__(store, rank, report)
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        backlog = int(os.environ["WORLD_SIZE"])
        self.server = socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=backlog)
        self.server.setblocking(False)
        self.connections.append(self.server)
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.received: dict[socket.socket, bytes] = {}
        self.missed: dict[int, float] = {}
        store.set(KEY, f"{self.server.getsockname()[1]} {self.token.hex()}")

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.server, selectors.EVENT_READ)
            while not self.ending.is_set():
                for key, _ in selector.select(LOOK_SECONDS):
                    self.receive(selector, key.data) if key.data else self.accept(selector)
                for rank in [rank for rank, since in self.missed.items() if time.monotonic() - since > RETURN_SECONDS]:
                    del self.missed[rank]
                    self.report(rank)

    def accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self.server.accept()
        except OSError:  # no more files may be open: those who come now are listened to by heartbeat.py alone
            selector.unregister(self.server)
            return
        connection.setblocking(False)
        self.connections.append(connection)
        self.received[connection] = b""
        selector.register(connection, selectors.EVENT_READ, connection)

    def receive(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        with suppress(OSError):
            data = connection.recv(HELLO_BYTES)
            if data and self.expects(self.received[connection] + data):
                self.received[connection] += data
                self.missed.pop(self.read_rank(connection), None)
                return
        rank = self.read_rank(connection)
        if rank and not self.received[connection].endswith(ENDED, HELLO_BYTES):
            self.missed[rank] = time.monotonic()
        selector.unregister(connection)
        self.connections.remove(connection)
        del self.received[connection]
        connection.close()

    def expects(self, data: bytes) -> bool:
        return len(data) <= HELLO_BYTES + len(ENDED) and data.startswith(self.token[: len(data)])

    def read_rank(self, connection: socket.socket) -> int:
        """0: of a connection that has not said whose it is."""
        hello = self.received[connection][:HELLO_BYTES]
        return int.from_bytes(hello[TOKEN_BYTES:], "big") if len(hello) == HELLO_BYTES else 0


class OfOthers(Liveness):
    """On every other process, which sees so that the first one is gone."""

    def run(self) -> None:
        with suppress(dist.DistError, OSError):  # no way there, or none any more: heartbeat.py listens
            while not self.ending.is_set():
                if self.store.check([KEY]):
                    port, token = self.store.get(KEY).decode().split()
                    return self.hold(int(port), bytes.fromhex(token))
                self.ending.wait(LOOK_SECONDS)

    def hold(self, port: int, token: bytes) -> None:
        """The connection is made again if it breaks, which nobody answers where the first process is gone."""
        came = False
        while not self.ending.is_set():
            try:
                connection = socket.create_connection((os.environ["MASTER_ADDR"], port), CONNECT_SECONDS)
            except ConnectionRefusedError:
                return self.report(0) if came and not self.ending.is_set() else None
            with connection:
                connection.settimeout(None)
                self.connections[:] = [connection]
                connection.sendall(token + self.rank.to_bytes(RANK_BYTES, "big"))
                came = True
                with suppress(ConnectionError):
                    if connection.recv(len(ENDED)) == ENDED:
                        return None
            self.ending.wait(LOOK_SECONDS)
        return None


def watch_lives(store: dist.Store, rank: int, report: Callable[[int], None]) -> Liveness | None:
    """Where the launcher of one node does not start, and so does not see, all of them."""
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        return None
    with suppress(OSError):
        liveness = (OfOthers if rank else OfFirst)(store, rank, report)
        liveness.start()
        return liveness
    return None
