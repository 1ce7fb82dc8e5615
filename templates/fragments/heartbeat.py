"""A process that answers no more, or has failed, is named, and the run ends: in a collective others would wait for it.

For hours, on other nodes: a launcher ends with it what it has started itself.
"""

import atexit
import os
import socket
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial

import torch.distributed as dist

from launcher_summary import FAILURES, HEARD, STANDSTILL, tell_launcher
from liveness import Liveness, watch_lives
from masking import mask_secrets
from standstill import Standstill

BEAT_SECONDS = 10.0
SILENT_SECONDS = 300.0  # it beats whatever it computes: only what is stopped or gone is silent so long
STARTING_SECONDS = 900.0  # until its first beat: what it imports may lie on a slow disk
GONE_SECONDS = 30.0  # after an error of the store's connection: this process may be about to end of the same
FAILURE = "failure"
"""The first process that ends with an error says so under this key, and why."""
JOIN_SECONDS = 10.0  # each thread ends as soon as the store has answered it
SHOWN_CHARACTERS = 500
ENDING = threading.Event()
"""This process ends by itself."""
LONGEST_WAIT = timedelta(days=20)  # in milliseconds, near the largest number that poll() takes
KILLED = "it was killed (kill -9, or out of memory) or has crashed: its launcher's log says by what."
AGAIN = "Start the run again, and it goes on from the newest complete checkpoint."


class Connection:
    """To the launcher's store: how many beats long it has not answered, or is known to be ``gone``."""

    def __init__(self):
        self.unanswered, self.gone, self.ended = 0, False, False


def has_launcher_store() -> bool:
    """It is there before the processes form a group. Other launchers than torchrun's leave it to the first process."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


@cache
def watch_others() -> None:
    """In threads of each process, through the launcher's store: it beats, and listens to the next one. Once."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # connections of their own: what waits on one holds up all else there
    store, waiting = connect(), connect()
    who = f"rank {rank} ({socket.gethostname()}, process {os.getpid()})"
    store.set(f"who/{rank}", who)
    store.set(f"beat/{rank}", "0")
    connection = Connection()
    threads = [
        threading.Thread(target=listen, args=(store, rank, count, connection), daemon=True),
        threading.Thread(target=await_failure, args=(waiting, rank), daemon=True),
        threading.Thread(target=watch_connection, args=(connection, who), daemon=True),
    ]
    for thread in threads:
        thread.start()
    liveness = watch_lives(store, rank, partial(name_lost, store, count))
    atexit.register(tell_others, store, rank, count, who, threads, liveness)


def connect() -> dist.TCPStore:
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def tell_others(
    store: dist.Store, rank: int, count: int, who: str, threads: list[threading.Thread], liveness: Liveness | None
) -> None:
    """That this process ends, and of what. A thread that comes back from C++ into an ending interpreter aborts it."""
    ENDING.set()
    with suppress(dist.DistError):  # the launcher that has the store may be gone
        if FAILURES:
            cause = mask_secrets(FAILURES[0])[:SHOWN_CHARACTERS]
            announce_failure(store, count, f"{who} has ended with an error: {cause}")
        store.set(f"end/{rank}", "")
        store.set(f"news/{rank}", "")
    if liveness is not None:
        liveness.end()
    for thread in threads:
        thread.join(JOIN_SECONDS)


def announce_failure(store: dist.Store, count: int, cause: str) -> None:
    """To all, by a key each, if it is the first one."""
    if store.compare_set(FAILURE, "", cause).decode() == cause:
        store.multi_set([f"news/{rank}" for rank in range(count)], [""] * count)


def listen(store: dist.Store, rank: int, count: int, connection: Connection) -> None:
    """To the next process. Beats are counted, not seconds: all may have been stopped for an hour, and go on."""
    beats, heard, silent, neighbour = 0, "", 0, (rank + 1) % count
    standstill = Standstill(store, rank, count, BEAT_SECONDS)
    try:
        while silent * BEAT_SECONDS < (SILENT_SECONDS if heard else STARTING_SECONDS):
            if ENDING.wait(BEAT_SECONDS):
                return
            beats += 1
            store.set(f"beat/{rank}", str(beats))
            standstill.observe()
            connection.ended = store.check([f"end/{neighbour}"])
            beat = store.get(f"beat/{neighbour}").decode() if store.check([f"beat/{neighbour}"]) else ""
            connection.unanswered = 0
            if connection.ended:
                return
            silent = silent + 1 if beat == heard else 0
            heard = beat
        if heard:
            cause = f"{store.get(f'who/{neighbour}').decode()} {describe_silence()} {AGAIN}"
        else:
            who = locate(store, neighbour, count)
            cause = f"{who} has not begun within {STARTING_SECONDS:.0f} s: look at the log there."
        announce_failure(store, count, cause)
    except dist.DistError:
        connection.gone = True


def locate(store: dist.Store, rank: int, count: int) -> str:
    """A process that has never said where it is: beside those of its node that have."""
    each = int(os.environ["LOCAL_WORLD_SIZE"])
    first = rank // each * each
    beside = [f"who/{other}" for other in range(first, min(first + each, count)) if store.check([f"who/{other}"])]
    return f"rank {rank}, {f'beside {store.get(beside[0]).decode()}' if beside else f'on node {rank // each}'},"


def await_failure(store: dist.Store, rank: int) -> None:
    """Told at once: the store may go with the process that has failed, a moment later."""
    try:
        store.wait([f"news/{rank}"], LONGEST_WAIT)
        if store.check([FAILURE]):
            HEARD.append(store.get(FAILURE).decode())
    except dist.DistError:  # the store is gone, which watch_connection sees
        return
    if not ENDING.wait(BEAT_SECONDS):  # this process may be about to end of the same
        end_run(HEARD[0])


def name_lost(store: dist.Store, count: int, rank: int) -> None:
    """Its own launcher sees by which signal. Where the first process is gone, its launcher's store soon is too."""
    lost = f"rank {rank} has ended without a word"
    with suppress(dist.DistError):
        lost = f"{store.get(f'who/{rank}').decode()} has ended without a word"
        announce_failure(store, count, "\n".join([f"{lost}: {KILLED} {AGAIN}", *STANDSTILL]))
        return
    HEARD.append(f"{lost}: {KILLED} {AGAIN}")
    if not ENDING.wait(BEAT_SECONDS):
        end_run(HEARD[0])


def describe_silence() -> str:
    return f"has not answered for {SILENT_SECONDS:.0f} s: it is stopped, or its node is gone."


def watch_connection(connection: Connection, who: str) -> None:
    """Where the way to the store's node is gone nothing comes back, not even an error."""
    gone = 0
    while not connection.ended and not ENDING.wait(BEAT_SECONDS):
        connection.unanswered += 1
        gone += connection.gone
        address = os.environ["MASTER_ADDR"]
        if gone * BEAT_SECONDS > GONE_SECONDS:
            end_run(f"{who}: the launcher at {address} has ended, and its processes with it: look at its log. {AGAIN}")
        if connection.unanswered * BEAT_SECONDS > SILENT_SECONDS:
            end_run(f"{who} is cut off: the launcher's store at {address} {describe_silence()} {AGAIN}")


def end_run(cause: str) -> None:
    """The launcher ends the others of its node when this process ends."""
    message = f"{cause}\nThe run ends here."
    print(message, file=sys.stderr, flush=True)
    tell_launcher(message)
    os._exit(1)
