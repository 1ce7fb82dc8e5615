"""A process that answers no more, or has failed, is named, and the run ends: in a collective others would wait for it.

For hours, on other nodes: a launcher ends with it what it has started itself.
"""

import atexit
import os
import socket
import sys
import threading
import time

import torch.distributed as dist

from launcher_summary import FAILURES, tell_launcher

BEAT_SECONDS = 10.0
SILENT_SECONDS = 300.0  # it beats whatever it computes: only what is stopped or gone is silent so long
ENDED, FAILED = "ended", "failed"


class Connection:
    """To the launcher's store: how many beats long it has not answered."""

    def __init__(self):
        self.unanswered, self.ended = 0, False


def watch_neighbour() -> None:
    """In threads of each process, through the launcher's store: it beats, and listens to the next one."""
    rank, count = dist.get_rank(), dist.get_world_size()
    # a connection of its own: what waits on the group's would hold up the beat
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    who = f"rank {rank} ({socket.gethostname()}, process {os.getpid()})"
    store.set(f"who/{rank}", who)
    store.set(f"beat/{rank}", "0")
    atexit.register(lambda: store.set(f"beat/{rank}", FAILED if FAILURES else ENDED))
    connection = Connection()
    threading.Thread(target=listen, args=(store, rank, (rank + 1) % count, connection), daemon=True).start()
    threading.Thread(target=watch_connection, args=(connection, who), daemon=True).start()


def listen(store: dist.Store, rank: int, neighbour: int, connection: Connection) -> None:
    """Beats are counted, not seconds: all may have been stopped for an hour, and go on."""
    beats, heard, silent = 0, "", 0
    try:
        while silent * BEAT_SECONDS < SILENT_SECONDS:
            time.sleep(BEAT_SECONDS)
            beats += 1
            if store.get(f"beat/{rank}").decode() not in (ENDED, FAILED):
                store.set(f"beat/{rank}", str(beats))
            beat = store.get(f"beat/{neighbour}").decode()
            connection.unanswered = 0
            if beat == ENDED:
                connection.ended = True
                return
            silent = silent + 1 if beat == heard else 0
            if beat == FAILED and silent:  # a beat later: this process may be about to end of the same
                break
            heard = beat
        store.set(f"beat/{rank}", FAILED)  # for the one that listens to this
        who = store.get(f"who/{neighbour}").decode()
    except dist.DistError:  # the launcher that has the store is gone: watch_connection waits for an end of this process
        return
    end_run(f"{who} has ended with an error." if beat == FAILED else f"{who} {describe_silence()}")


def describe_silence() -> str:
    return f"has not answered for {SILENT_SECONDS:.0f} s: it is stopped, or its node is gone."


def watch_connection(connection: Connection, who: str) -> None:
    """Where the way to the store's node is gone nothing comes back, not even an error."""
    while not connection.ended:
        time.sleep(BEAT_SECONDS)
        connection.unanswered += 1
        if connection.unanswered * BEAT_SECONDS > SILENT_SECONDS:
            address = os.environ["MASTER_ADDR"]
            end_run(f"{who} is cut off: the launcher's store at {address} {describe_silence()}")


def end_run(cause: str) -> None:
    """The launcher ends the others when this process ends."""
    message = f"{cause} The run ends here; start it again, and it goes on from the newest complete checkpoint."
    print(message, file=sys.stderr, flush=True)
    tell_launcher(message)
    os._exit(1)
