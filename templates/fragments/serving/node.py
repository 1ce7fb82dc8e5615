"""This node's part of a server on several: `NODE_RANK=0 MASTER_ADDR=node-1 ./serve.sh` on the first, 1 … on the others.

An engine that has handed a request on to another node waits for the answer also where that node is gone, and for nodes
that never begin: a connection beside the engine's own tells. A node that is lost ends the others.
"""

import quiet_imports  # noqa: F401  # isort: skip

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from config_file import read_config
from own_server import LIBC, ask_for_signal
from server import HOST_VARIABLE, list_node_words

PORT = 29549
"""at which the nodes meet: before those of vLLM's defaults"""
AGAIN_SECONDS = 1.0
TOLD_SECONDS = 20.0
"""between two lines of who is waited for"""
MEET_SECONDS = 10.0
"""for whoever connects to say which node it is: any program may"""
SILENT_SECONDS = (10, 5, 4)
"""until the system asks whether the other is there, between two askings, and how many: 30 s to notice a power cut"""
END_SECONDS = 30.0
"""more than the engine's own time for what is being answered (shutdown-timeout)"""


class Node:
    """Which one this is, and what has ended it."""

    def __init__(self, nodes: int) -> None:
        self.nodes, self.stopped, self.lost = nodes, False, ""
        self.ending = threading.Event()
        try:
            rank, self.first = os.environ["NODE_RANK"], os.environ["MASTER_ADDR"]
        except KeyError as missing:
            sys.exit(
                f"serve.sh: {nodes} nodes serve together, and {missing.args[0]} is not set: NODE_RANK is 0 to "
                f"{nodes - 1}, MASTER_ADDR the node with 0. bench.py and chat.py ask a server that runs: --url"
            )
        if rank not in map(str, range(nodes)):
            sys.exit(f"serve.sh: NODE_RANK={rank}: of {nodes} nodes it is 0 to {nodes - 1}")
        self.rank = int(rank)

    def watch(self, link: socket.socket, name: str) -> None:
        """Nothing is sent over a link: what comes is its end."""

        def listen() -> None:
            try:
                while link.recv(1024):
                    pass
            except OSError:
                pass
            self.lost = self.lost or name
            self.ending.set()

        threading.Thread(target=listen, daemon=True).start()

    def stop(self, signum: int, frame: FrameType | None) -> None:
        self.stopped = True
        self.ending.set()


def main() -> None:
    node = Node(read_config()["serving"]["flags"]["nnodes"])
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:  # as nohup has SIGHUP
            signal.signal(each, leave)
    address, links, listener = meet_others(node) if node.rank == 0 else meet_first(node)
    os.environ.setdefault(HOST_VARIABLE, name_own_end(next(iter(links.values()))))
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, node.stop)
    process = subprocess.Popen(
        [sys.executable, "server.py", *list_node_words(node.rank, address), *sys.argv[1:]],
        start_new_session=True,
        preexec_fn=ask_for_signal if LIBC else None,
    )
    for name, link in links.items():
        node.watch(link, name)
    while process.poll() is None and not node.ending.wait(AGAIN_SECONDS):
        pass
    if listener is not None:
        listener.close()  # a node that begins again waits for the first's next server
    ended = process.poll()
    end_engine(process)
    if not node.stopped:
        of_what = f"the engine here has ended ({ended})" if ended is not None else f"{node.lost} is lost"
        sys.exit(f"serve.sh: node {node.rank} of {node.nodes}: {of_what}, and the server ends on all nodes")


def end_engine(process: subprocess.Popen) -> None:
    """Its server first, which has the time for what is being answered; then whatever is left of it."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def leave(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def meet_others(node: Node) -> tuple[str, dict[str, socket.socket], socket.socket | None]:
    """On the first: the address by which the others have reached it, whatever its name stands for here (127.0.1.1 on
    Debian); the connections by who is there, and what listens."""
    try:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        listener = socket.create_server(("", PORT), family=family, dualstack_ipv6=dual)
    except OSError as error:
        problem = os.strerror(error.errno or 0)
        sys.exit(f"serve.sh: port {PORT}, at which the nodes meet: {problem}: does a server run here already?")
    listener.settimeout(AGAIN_SECONDS)
    links: dict[int, socket.socket] = {}
    announced = time.monotonic()
    while missing := [rank for rank in range(1, node.nodes) if rank not in links]:
        if time.monotonic() - announced > TOLD_SECONDS:
            print(f"serve.sh: waiting for NODE_RANK {', '.join(map(str, missing))}", file=sys.stderr, flush=True)
            announced = time.monotonic()
        with suppress(OSError):
            link, _ = listener.accept()
            link.settimeout(MEET_SECONDS)
            words = link.recv(64).split()
            if words in [[b"node", b"%d" % rank, b"%d" % node.nodes] for rank in range(1, node.nodes)]:
                keep_alive(link)
                links[int(words[1])] = link
    address = name_own_end(links[1])
    for link in links.values():
        with suppress(OSError):  # it is gone, which watch() sees
            link.sendall(f"{address}\n".encode())
    return address, {f"node {rank}": link for rank, link in links.items()}, listener


def meet_first(node: Node) -> tuple[str, dict[str, socket.socket], socket.socket | None]:
    """The first one's address, as it has said once all are there, and the connection to it."""
    announced = time.monotonic()
    while True:
        try:
            link = socket.create_connection((node.first, PORT), timeout=MEET_SECONDS)
            keep_alive(link)
            link.sendall(f"node {node.rank} {node.nodes}\n".encode())
            if address := link.recv(64).decode().strip():
                return address, {f"the first node ({node.first})": link}, None
            problem = "it knows this number already, or has ended"
        except OSError as error:
            problem = str(error)
        if time.monotonic() - announced > TOLD_SECONDS:
            print(f"serve.sh: waiting for the first node, {node.first}:{PORT}: {problem}", file=sys.stderr, flush=True)
            announced = time.monotonic()
        time.sleep(AGAIN_SECONDS)


def name_own_end(link: socket.socket) -> str:
    return str(link.getsockname()[0]).removeprefix("::ffff:")


def keep_alive(link: socket.socket) -> None:
    link.settimeout(None)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    for option, value in zip(options, SILENT_SECONDS, strict=True):
        link.setsockopt(socket.IPPROTO_TCP, option, value)


if __name__ == "__main__":
    main()
