"""What starting an engine's own server takes: the address, and the flags of config.yaml."""

import argparse
import runpy
import sys

from api_key import read_key
from generation_defaults import FILE, read_defaults, read_own

LOCAL = ("127.0.0.1", "localhost", "::1")
APPLIED = frozenset({"top_k", "min_p", "repetition_penalty"})
"""What both engines' servers take of the model's own file, beside temperature and top_p."""


def parse_address(serving: dict, about: str | None) -> tuple[list[str], list[str]]:
    """The words for host and port, and the flags that are the engine's own."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--host", default=serving["host"])
    parser.add_argument("--port", type=int, default=serving["port"])
    args, others = parser.parse_known_args()
    if args.host not in LOCAL and read_key() is None:
        print(f"serve.sh: {args.host} can be reached from outside, and no key is asked: set API_KEY", file=sys.stderr)
    return ["--host", args.host, "--port", str(args.port)], others


def list_words(flags: dict) -> list[str]:
    """Flags as words; one that is true stands alone."""
    return [word for name, value in flags.items() for word in [f"--{name}", *([] if value is True else [str(value)])]]


def report_defaults(config: dict, engine: str) -> int | None:
    """Says what the model's own file asks and the engine's server leaves out without a word; the tokens of an answer
    that it names."""
    try:
        own, (_, left) = read_own(config), read_defaults(config, APPLIED)
    except OSError:  # of a hub that does not answer: the engine says so itself
        return None
    if left:
        print(f"serve.sh: the model's {FILE} asks what {engine} does not do: {', '.join(left)}", file=sys.stderr)
    return own.get("max_new_tokens")


def become(module: str, words: list[str]) -> None:
    """This process goes on as the engine's server, so that whoever stops it stops that. The words are handed over
    inside it: those that a process is started with can be read by every user of the machine, a key among them."""
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
