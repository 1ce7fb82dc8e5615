"""Starts the launcher of this node, and says who is waited for: python meeting.py --nodes 2 --port 29500 torchrun …

Of themselves torchrun and Accelerate wait for ten minutes without a word, and their error names no node.
MEETING_PORT is another port of the first node, the same on all: two runs that share it need two.
"""

import quiet_imports  # isort: skip

import argparse
import os
import re
import runpy
import shutil
import signal
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
SILENT_SECONDS = 600.0
"""What answers with nothing at all is given up, as the launcher gives up what does not answer."""
SHOWN_NODES = 16
PREFIX = "torchrun/"
"""The launcher keeps its own keys beside these, and the processes theirs in a store of their own."""
ADVICE = {
    "first": "MASTER_ADDR is to be a name or an address by which every node reaches the first one, which begins too.",
    "port": "Another program has that port of the first node: end it (`ss -ltnp` names it), and start again.",
    "others": "Those that are missing have not begun, or were given another MASTER_ADDR: look at their logs.",
}


class Meeting(threading.Thread):
    """Of this node with the others, at the store of the first one's launcher. ``missing``: who or what."""

    def __init__(self, first: str, nodes: int, port: int):
        super().__init__(daemon=True)
        self.nodes, self.port = nodes, port
        self.first, self.own = first, socket.gethostname()
        self.missing, self.situation = "first", ""
        self.over, self.handler = threading.Event(), signal.getsignal(signal.SIGTERM)

    def run(self) -> None:
        if self.reach_first():
            self.missing = "port"
            self.count_nodes()

    def is_complete(self) -> bool:
        """The launcher handles signals from when it starts its processes."""
        return signal.getsignal(signal.SIGTERM) != self.handler

    def is_over(self) -> bool:
        return self.over.is_set() or self.is_complete()

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

    def connect(self, stores: list) -> None:
        import torch.distributed as dist  # the launcher imports it too, meanwhile

        with suppress(dist.DistError):
            waits = timedelta(seconds=ANSWER_SECONDS)
            tcp = dist.TCPStore(self.first, self.port, is_master=False, timeout=waits)
            stores.append(dist.PrefixStore(PREFIX, tcp))

    def reach_store(self) -> list:
        """None or one. To a program that takes the connection and says nothing both this and the launcher would listen
        for ever."""
        stores: list = []
        thread = threading.Thread(target=self.connect, args=(stores,), daemon=True)
        thread.start()
        begun = announced = time.monotonic()
        self.situation = f"what {self.own} has reached at {self.first}:{self.port} does not answer as a launcher does"
        while thread.is_alive() and not self.is_over():
            announced = self.announce(announced)
            if time.monotonic() - begun > SILENT_SECONDS:
                print(f"meeting.py: {self.situation}\n{ADVICE[self.missing]}", file=sys.stderr, flush=True)
                os._exit(1)  # the main thread listens too, in C++
            thread.join(AGAIN_SECONDS)
        return stores

    def count_nodes(self) -> None:
        """The node that has come first says which are there; of the others each only at its end."""
        for store in self.reach_store():
            import torch.distributed as dist

            self.missing, announced = "others", time.monotonic()
            with suppress(dist.DistError):  # the launcher on the first node has ended
                number = self.take_number(store)
                store.set(f"node/{number}", self.own)
                while not self.is_over():
                    count = store.add("nodes", 0)
                    names = ", ".join(store.get(f"node/{n}").decode() for n in range(1, min(count, SHOWN_NODES) + 1))
                    more = f" and {count - SHOWN_NODES} more" if count > SHOWN_NODES else ""
                    came = f"{count} of {self.nodes} nodes have come to {self.first}:{self.port}: {names}{more}"
                    self.situation = came if count < self.nodes else ""
                    if number == 1 and self.situation:
                        announced = self.announce(announced)
                    self.over.wait(AGAIN_SECONDS)

    def take_number(self, store) -> int:
        """That of a start before on this node, if it has ended: it is no second node."""
        key = f"start/{self.own}/{os.environ.get('PET_LOCAL_ADDR', '')}"
        process, number = map(int, store.get(key).split()) if store.check([key]) else (0, 0)
        if not number or (process != os.getpid() and is_running(process)):
            number = store.add("nodes", 1)
        store.set(key, f"{os.getpid()} {number}")
        return number

    def announce(self, before: float) -> float:
        if time.monotonic() - before < TOLD_SECONDS:
            return before
        print(f"meeting.py: {self.situation}", file=sys.stderr, flush=True)
        return time.monotonic()

    def end(self) -> None:
        """A thread that comes back from C++ into an ending interpreter aborts it."""
        self.over.set()
        self.join(2 * ANSWER_SECONDS)


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def check_name(name: str) -> None:
    """What no name can be is an error of torchrun with a traceback."""
    with suppress(UnicodeError):
        name.encode("idna")
        if re.fullmatch(r"[\w.:-]+", name):  # as torchrun has it
            return
    sys.exit(f"meeting.py: MASTER_ADDR is {name!r}, and no host can be called that.\n{ADVICE['first']}")


def name_port(words: list[str], planned: int, port: int) -> list[str]:
    """The launcher's arguments with another port: torchrun's stands behind the first node, Accelerate's in its file."""
    if words[:1] == ["launch"]:
        return ["launch", "--main_process_port", str(port), *words[1:]]
    return [f"{word.removesuffix(f':{planned}')}:{port}" if word.endswith(f":{planned}") else word for word in words]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("launcher", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    name, *words = asked.launcher
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which(name, path=folders)
    if program is None:
        sys.exit(f"meeting.py: {name} is not there: {quiet_imports.ADVICE}")
    first = os.environ.get("MASTER_ADDR", "").strip("[]")  # of an IPv6 address
    check_name(first)
    port = int(os.environ.get("MEETING_PORT") or asked.port)
    meeting = Meeting(first, asked.nodes, port)
    meeting.start()
    sys.argv = [program, *(name_port(words, asked.port, port) if port != asked.port else words)]
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception as error:
        from torch.distributed import DistError
        from torch.distributed.elastic.rendezvous import RendezvousError

        # the second: it took a node that has ended for one that came
        if isinstance(error, (RendezvousError, DistError)) and meeting.situation and not meeting.is_complete():
            sys.exit(f"meeting.py: {meeting.situation}\n{ADVICE[meeting.missing]}")
        raise
    finally:
        meeting.end()


if __name__ == "__main__":
    main()
