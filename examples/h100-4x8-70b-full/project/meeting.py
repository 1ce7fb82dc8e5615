"""Starts the launcher of this node, and says who is waited for: python meeting.py --nodes 2 --port 29500 torchrun …

Of themselves torchrun and Accelerate wait for ten minutes without a word, and their error names no node.
"""

import quiet_imports  # isort: skip

import argparse
import os
import runpy
import shutil
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

TOLD_SECONDS = 30.0
"""between two lines of who is waited for"""
AGAIN_SECONDS = 1.0
ANSWER_SECONDS = 10.0
SHOWN_NODES = 16
PREFIX = "torchrun/"
"""The launcher keeps its own keys beside these, and the processes theirs in a store of their own."""
ADVICE = {
    "first": "MASTER_ADDR is to be a name or an address by which every node reaches the first one, which begins too.",
    "others": "Those that are missing have not begun, or were given another MASTER_ADDR: look at their logs.",
}


class Meeting(threading.Thread):
    """Of this node with the others, at the store of the first one's launcher. ``missing``: the first, or others."""

    def __init__(self, nodes: int, port: int):
        super().__init__(daemon=True)
        self.nodes, self.port = nodes, port
        self.first, self.own = os.environ["MASTER_ADDR"], socket.gethostname()
        self.missing, self.situation = "first", ""
        self.over = threading.Event()

    def run(self) -> None:
        if self.reach_first():
            self.missing = "others"
            self.count_nodes()

    def reach_first(self) -> bool:
        """Whether something answers there before the launcher gives up."""
        announced = time.monotonic()
        while not self.over.is_set():
            try:
                socket.create_connection((self.first, self.port), ANSWER_SECONDS).close()
                return True
            except OSError as error:
                problem = error.strerror or str(error)
            self.situation = f"{self.own} has not reached the first node, {self.first}:{self.port}: {problem}"
            announced = self.announce(announced)
            self.over.wait(AGAIN_SECONDS)
        return False

    def count_nodes(self) -> None:
        """The node that has come first says which are there; of the others each only at its end."""
        import torch.distributed as dist  # the launcher imports it too, meanwhile

        announced = time.monotonic()
        with suppress(dist.DistError):  # the launcher on the first node has ended
            tcp = dist.TCPStore(self.first, self.port, is_master=False, timeout=timedelta(seconds=ANSWER_SECONDS))
            store = dist.PrefixStore(PREFIX, tcp)
            number = store.add("nodes", 1)
            store.set(f"node/{number}", self.own)
            while (count := store.add("nodes", 0)) < self.nodes and not self.over.is_set():
                names = ", ".join(store.get(f"node/{n}").decode() for n in range(1, min(count, SHOWN_NODES) + 1))
                more = f" and {count - SHOWN_NODES} more" if count > SHOWN_NODES else ""
                self.situation = f"{count} of {self.nodes} nodes have come to {self.first}:{self.port}: {names}{more}"
                if number == 1:
                    announced = self.announce(announced)
                self.over.wait(AGAIN_SECONDS)
            if count >= self.nodes:
                self.situation = ""

    def announce(self, before: float) -> float:
        if time.monotonic() - before < TOLD_SECONDS:
            return before
        print(f"meeting.py: {self.situation}", file=sys.stderr, flush=True)
        return time.monotonic()

    def end(self) -> None:
        """A thread that comes back from C++ into an ending interpreter aborts it."""
        self.over.set()
        self.join(2 * ANSWER_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("launcher", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    name, *words = asked.launcher
    meeting = Meeting(asked.nodes, asked.port)
    meeting.start()
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which(name, path=folders)
    if program is None:
        sys.exit(f"meeting.py: {name} is not there: {quiet_imports.ADVICE}")
    sys.argv = [program, *words]
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception as error:
        from torch.distributed.elastic.rendezvous import RendezvousError

        if isinstance(error, RendezvousError) and meeting.situation:
            sys.exit(f"meeting.py: {meeting.situation}\n{ADVICE[meeting.missing]}")
        raise
    finally:
        meeting.end()


if __name__ == "__main__":
    main()
