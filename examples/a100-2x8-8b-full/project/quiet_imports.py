"""Each script imports this first: while it imports the rest, Ctrl-C ends it without a traceback, and what cannot be
imported is named with what installs it, as is later a tokenizer whose files nobody can read. One of several processes
that gets no further says where it is."""

import faulthandler
import os
import signal
import sys
import traceback
from pathlib import Path

import __main__

HERE = Path(__file__).resolve().parent
ADVICE = "start it by `make` (README.md), which installs what is missing, or after `make setup` by .venv/bin/python"
IMPORT_SECONDS = 600.0
"""Where a disk hangs. The others give such a process up later (heartbeat.py), and do not know where it is."""


def is_beside(file: str) -> bool:
    """Whether it is one of this folder; <frozen importlib> is none."""
    return Path(file).is_file() and Path(file).resolve().parent == HERE


def is_of_imports(trace) -> bool:
    """Whether no function of this folder was at work."""
    ours = [frame.f_code for frame, _ in traceback.walk_tb(trace) if is_beside(frame.f_code.co_filename)]
    return all(code.co_name == "<module>" for code in ours)


def find_unread_tokenizer(trace) -> str | None:
    """Where its files lie, if Transformers was reading one: it raises whatever a file without sense leads to."""
    for frame, _ in traceback.walk_tb(trace):
        code = frame.f_code
        if code.co_name == "from_pretrained" and Path(code.co_filename).stem.startswith("tokenization_"):
            return str(frame.f_locals["pretrained_model_name_or_path"])
    return None


def show_error(kind, error, trace) -> None:
    if issubclass(kind, ImportError) and is_of_imports(trace):
        print(f"{' '.join(str(error).split())} (by {sys.executable})\n{ADVICE}", file=sys.stderr)
    elif not issubclass(kind, ImportError) and (source := find_unread_tokenizer(trace)):
        print(f"the tokenizer of {source} cannot be read: {error!r:.500}\nfetch its files again", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


if is_beside(getattr(__main__, "__file__", None) or ""):  # and no program of others that imports a module of these
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.excepthook = show_error
    if "LOCAL_RANK" in os.environ:  # until parallel.py says that all is imported
        faulthandler.dump_traceback_later(IMPORT_SECONDS)
