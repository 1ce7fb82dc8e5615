"""Time to look one device up, as a ratio to reading the whole catalogue in the same process.

python benchmarks/lookup.py [--repeats 9]      prints the medians; each repeat is a new process, as caches outlive a look-up

A look-up that parses every file would stand at 1; one that parses what it needs is far below. Ratios, because seconds of a
machine that others use say little.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

# Each is timed in a new process that then reads the whole catalogue too: the ratio is of two neighbours in time.
LOOKUPS = {
    "load by id": 'catalog.load("h100-sxm-80gb")',
    "load by alias": 'catalog.load("rtx4090")',
    "match by name and memory": 'catalog.match("nvidia", "NVIDIA H200", None, "9.0", 143771 * 2**20)',
    "match by PCI id": 'catalog.match("nvidia", None, "10de:2684", "8.9", None)',
}
PROGRAM = """
import time, tomllib, importlib.resources
from hwdetect import catalog
started = time.perf_counter()
assert {lookup}
looked_up = time.perf_counter()
{again}
catalog.list_devices()
print(looked_up - started, time.perf_counter() - looked_up)
"""
# The files that the look-up has read are cached: forgotten, so that reading everything is reading everything.
FORGET = "[f.cache_clear() for f in vars(catalog).values() if hasattr(f, 'cache_clear')]"


def time_lookup(lookup: str) -> tuple[float, float]:
    """Seconds of the look-up and of reading every device, in one new process."""
    program = PROGRAM.format(lookup=lookup, again=FORGET)
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    one, everything = map(float, run.stdout.split())
    return one, everything


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    for name, lookup in LOOKUPS.items():
        pairs = [time_lookup(lookup) for _ in range(repeats)]
        ratio = statistics.median(one / everything for one, everything in pairs)
        seconds = statistics.median(one for one, _ in pairs)
        print(f"{name:26} {ratio:6.3f} of reading every device   {seconds * 1e3:6.2f} ms")


if __name__ == "__main__":
    main()
