"""A process that answers no more is named, and the run ends: in a collective the others would wait for hours."""

import atexit
import os
import socket
import sys
import threading
import time

import torch.distributed as dist

BEAT_SECONDS = 10.0
SILENT_SECONDS = 300.0  # it beats whatever it computes: only what is stopped or gone is silent so long
ENDED = "ended"


def watch_neighbour() -> None:
    """In a thread of each process, through the launcher's store: it beats, and listens to the next one."""
    rank, count = dist.get_rank(), dist.get_world_size()
    # a connection of its own: what waits on the group's would hold up the beat
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    who = f"rank {rank} ({socket.gethostname()}, process {os.getpid()})"
    store.set(f"who/{rank}", who)
    store.set(f"beat/{rank}", "0")
    atexit.register(store.set, f"beat/{rank}", ENDED)
    threading.Thread(target=listen, args=(store, rank, (rank + 1) % count), daemon=True).start()


def listen(store: dist.Store, rank: int, neighbour: int) -> None:
    beats, heard, since = 0, "", time.monotonic()
    while True:
        time.sleep(BEAT_SECONDS)
        beats += 1
        if store.get(f"beat/{rank}").decode() != ENDED:
            store.set(f"beat/{rank}", str(beats))
        beat = store.get(f"beat/{neighbour}").decode()
        if beat == ENDED:
            return
        if beat != heard:
            heard, since = beat, time.monotonic()
        elif time.monotonic() - since > SILENT_SECONDS:
            end_run(store.get(f"who/{neighbour}").decode())


def end_run(who: str) -> None:
    """The launcher ends the others when this process ends."""
    print(
        f"{who} has not answered for {SILENT_SECONDS:.0f} s: it is stopped, or its node is gone. The run ends here; "
        "start it again, and it goes on from the newest complete checkpoint.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
