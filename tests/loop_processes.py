"""Runs train.py of several projects, each in as many processes as asked for: libraries are imported once, and processes forked.

    python loop_processes.py RUNS.json

A run is ``{"folder", "processes", "words", "kills"}``; each of ``kills`` is ``[rank, step, where]``: the process is ended by SIGKILL in
that step ("step"), before it saves the checkpoint behind it ("save"), in that, before its part is written or after it ("inside",
"parts"), when all parts are ("written"), when the checkpoint has its seal ("sealed"), or once another process has
ended, wherever it is ("late") or in its part of the checkpoint, which is written beside the steps ("slow"), and the others after it, as a launcher
ends them; or all are asked to end by SIGTERM in that step ("stop"). What every process printed is in ``log-RANK`` of
the folder, the exit codes of all in ``codes.json``; of all runs, in ``ended.json`` beside RUNS.json, with whether
they left a run.json, and whether they were ``too_late``: past its limit a run shows where each of its processes
stands, is ended with all that it has started, and what its processes printed is shown.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

LIBRARIES = (
    *("accelerate", "datasets", "matplotlib.figure", "torch", "torch.distributed.checkpoint.state_dict", "yaml"),
    *("torch.distributed.fsdp", "torch.distributed.pipelining", "transformers.trainer", "transformers.distributed"),
    *("transformers.models.llama.modeling_llama", "transformers.models.qwen3_moe.modeling_qwen3_moe"),
)
LAST_SECONDS = 10.0
"""Between the end of one process and SIGKILL to the others."""
LIMIT_SECONDS, LIMIT_OF_PROCESS = 180.0, 45.0
"""Of a run, and for each of its processes: ten times what they take on one core to themselves."""
PR_SET_PDEATHSIG = 1
SHOWN = 4000
"""Characters of what a process printed."""


def main() -> None:
    end_with_parent()
    for name in LIBRARIES:
        __import__(name)
    plan, ended = Path(sys.argv[1]), []
    for run in json.loads(plan.read_text()):
        folder, port, pids = Path(run["folder"]), find_port(), []
        for rank in range(run["processes"]):
            pids.append(fork(folder, rank, run, port, pids))
        codes, too_late = wait_for_all(pids, LIMIT_SECONDS + LIMIT_OF_PROCESS * len(pids))
        (folder / "codes.json").write_text(json.dumps(codes))
        ended.append({"codes": codes, "finished": (folder / "runs/run.json").exists(), "too_late": too_late})
        if too_late:
            show_logs(folder, codes)
    plan.with_name("ended.json").write_text(json.dumps(ended))


def end_with_parent() -> None:
    """Where the tests end, however they do."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


def show_logs(folder: Path, codes: list[int]) -> None:
    for rank, code in enumerate(codes):
        text = (folder / f"log-{rank}").read_text(errors="replace")
        print(
            f"---- {folder.name}, process {rank} of {len(codes)}, ended with {code}:\n{text[-SHOWN:]}", file=sys.stderr
        )


def find_port() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return str(probe.getsockname()[1])


def fork(folder: Path, rank: int, run: dict, port: str, before: list[int]) -> int:
    """A process of the run, in the group of its first one."""
    pid = os.fork()
    if pid:
        with suppress(PermissionError, ProcessLookupError):  # it has done so itself, or has ended
            os.setpgid(pid, before[0] if before else pid)
        return pid
    end_with_parent()
    os.setpgid(0, before[0] if before else 0)
    count = str(run["processes"])
    if run["processes"] > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = ["train.py", *run["words"]]
    code = 1
    try:
        for killed, step, where in run["kills"]:
            if killed == rank:
                end_in(step, where)
        runpy.run_path("train.py", run_name="__main__")
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    if any(killed == rank and where in ("late", "slow") for killed, _, where in run["kills"]):
        time.sleep(LAST_SECONDS)  # it has seen the other's end first: its own is to be by SIGKILL all the same
    os._exit(code)


def end_in(step: int, where: str) -> None:
    """This process, by SIGKILL, in the middle of that step or of the save behind it; all, by SIGTERM, where they are to "stop"."""
    import checkpoints
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from transformers import Trainer
    from transformers.trainer_callback import CallbackHandler

    begin, save, write, seal = (
        CallbackHandler.on_step_begin,
        dcp.save,
        FileSystemWriter.write_data,
        checkpoints.write_seal,
    )
    save_all, save_optimizer = Trainer._save_checkpoint, Trainer._save_optimizer_and_scheduler

    def end_at(point: str, folder: Path | str) -> None:
        if where == point and Path(folder).name == f"checkpoint-{step}":
            os.kill(os.getpid(), signal.SIGKILL)

    def count(handler, args, state, control):
        if where == "step" and state.global_step + 1 == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if where == "stop" and state.global_step + 1 == step:
            os.killpg(0, signal.SIGTERM)  # to all of the run, as a launcher hands it on
        return begin(handler, args, state, control)

    def end(*arguments, checkpoint_id, **keywords):
        end_at("save", Path(checkpoint_id).parent)
        written = save(*arguments, checkpoint_id=checkpoint_id, **keywords)
        end_at("written", Path(checkpoint_id).parent)
        return written

    def write_part(writer, *arguments):
        folder = Path(writer.path).parent
        end_at("inside", folder)
        if where == "slow" and folder.name == f"checkpoint-{step}":
            wait_for_end_of_another()
            end_at("slow", folder)
        written = write(writer, *arguments)
        written.wait()
        end_at("parts", folder)
        return written

    def write_seal(folder, *arguments):
        seal(folder, *arguments)
        end_at("sealed", folder)

    def save_by_trainer(trainer, *arguments):
        end_at("save", f"checkpoint-{trainer.state.global_step}")
        save_all(trainer, *arguments)

    def save_states(trainer, folder):
        end_at("inside", folder)
        save_optimizer(trainer, folder)
        end_at("parts", folder)

    CallbackHandler.on_step_begin, dcp.save, FileSystemWriter.write_data = count, end, write_part
    Trainer._save_checkpoint, Trainer._save_optimizer_and_scheduler = save_by_trainer, save_states
    checkpoints.write_seal = write_seal
    if where == "late":
        threading.Thread(target=end_after_another, daemon=True).start()


def end_after_another() -> None:
    wait_for_end_of_another()
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_end_of_another() -> None:
    import psutil

    run = [child for child in psutil.Process(os.getppid()).children() if os.getpgid(child.pid) == os.getpgid(0)]
    while all(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in run):
        time.sleep(0.02)


def wait_for_all(pids: list[int], limit: float) -> tuple[list[int], bool]:
    """Exit codes, in the order of the ranks, and whether the run had to be ended. Once one has failed the others are ended."""
    codes: dict[int, int] = {}
    end, too_late = float("inf"), time.monotonic() + limit
    late = False
    while len(codes) < len(pids):
        for pid in set(pids) - codes.keys():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        if any(codes.values()):
            end = min(end, time.monotonic() + LAST_SECONDS)
        if time.monotonic() > too_late and not late:
            late, end = True, time.monotonic() + 2
            for pid in set(pids) - codes.keys():
                os.kill(pid, signal.SIGUSR1)  # where it stands, into its log
        if time.monotonic() > end:
            for pid in set(pids) - codes.keys():
                os.kill(pid, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.05)
    with suppress(ProcessLookupError):  # what they have started: data processes of one that was killed
        os.killpg(pids[0], signal.SIGKILL)
    return [codes[pid] for pid in pids], late


if __name__ == "__main__":
    main()
