"""Host time to put one batch together in the training process: what worker processes hide.

python benchmarks/collate.py        writes benchmarks/results/collate.json
"""

from __future__ import annotations

import importlib.util
import json
import platform
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "examples" / "h200-1.5b-pretrain" / "project"
SHAPES = ((256, 8), (2048, 8), (4096, 2))


def main() -> None:
    import numpy as np
    import pyarrow as pa
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    sys.path.insert(0, str(PROJECT))
    spec = importlib.util.spec_from_file_location("data", PROJECT / "data.py")
    data = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(data)
    stream = pa.chunked_array([pa.array(np.random.default_rng(0).integers(0, 30_000, 4_000_000, dtype=np.int32))])
    rows = []
    for seq_len, batch in SHAPES:
        batches = iter(DataLoader(data.Blocks(stream, seq_len), batch_size=batch, collate_fn=default_data_collator))
        next(batches)
        repeats = []
        for _ in range(20):
            started = time.perf_counter()
            next(batches)
            repeats.append(time.perf_counter() - started)
        median = statistics.median(repeats)
        rows.append(
            {
                "seq_len": seq_len,
                "batch": batch,
                "seconds": repeats,
                "median_seconds": median,
                "ns_a_token": median / seq_len / batch * 1e9,
            }
        )
        print(f"{batch} x {seq_len}: {median * 1e3:.2f} ms, {rows[-1]['ns_a_token']:.0f} ns a token")
    result = {
        "schema": 1,
        "what": "DataLoader without workers, emitted data.Blocks, default_data_collator",
        "device": f"{platform.processor() or platform.machine()}, one thread",
        "command": "python benchmarks/collate.py",
        "rows": rows,
    }
    (HERE / "results" / "collate.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
