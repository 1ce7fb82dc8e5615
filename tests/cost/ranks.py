"""Live bytes of each process that trains a small model under DDP, FSDP2, HSDP and ZeRO, on CPU processes. Run by test_ranks.py:
torchrun --nproc-per-node 4 ranks.py OUT.json
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "templates" / "fragments")]
from tests.cost.traces import Storages  # noqa: E402

HIDDEN, BLOCKS, BUCKET = 256, 8, 200_000
STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def wrapped(strategy: str, mixed: bool):
    """The model and its optimizer as the emitted projects make them."""
    model = network()
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model), None
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    world = dist.get_world_size()
    hybrid = strategy == "hsdp"
    names = ("copies", "shards") if hybrid else ("shards",)
    mesh = init_device_mesh("cpu", (2, world // 2) if hybrid else (world,), mesh_dim_names=names)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if mixed else None
    more = {"mesh": mesh, "reshard_after_forward": strategy != "fsdp_shard_grad_op"}
    more |= {"mp_policy": policy} if policy else {}
    for block in model:
        fully_shard(block, **more)
    return fully_shard(model, **more), None


def torch_steps(strategy: str, mixed: bool, accumulation: int, mode: Storages) -> dict[str, int]:
    model, _ = wrapped(strategy, mixed)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    autocast = mixed and strategy == "ddp"
    peaks = {}
    for _ in range(2):
        mode.restart()
        for _ in range(accumulation):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(torch.ones(1, HIDDEN)).float().pow(2).mean()
            loss.backward()
            del loss
        peaks = {"backward": mode.restart(), "before step": mode.now}
        optimizer.step()
        peaks["step"] = mode.restart()
        optimizer.zero_grad()
        peaks["kept"] = mode.now
    return peaks


def deepspeed_steps(strategy: str, mixed: bool, accumulation: int, mode: Storages) -> dict[str, int]:
    import deepspeed

    zero = {
        "stage": STAGES[strategy],
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": BUCKET,
        "allgather_bucket_size": BUCKET,
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_live_parameters": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_param_persistence_threshold": 0,
    }
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": zero,
        "bf16": {"enabled": mixed},
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
    }
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    del model, optimizer
    peaks = {}
    for _ in range(2):
        mode.restart()
        for micro in range(accumulation):
            inputs = torch.ones(1, HIDDEN, dtype=torch.bfloat16 if mixed else torch.float32)
            loss = engine(inputs).float().pow(2).mean()
            engine.backward(loss)
            del loss
            if micro == accumulation - 1:
                peaks = {"backward": mode.restart(), "before step": mode.now}
            engine.step()
        peaks["step"] = mode.restart()
        peaks["kept"] = mode.now
    engine.destroy()
    return peaks


@contextmanager
def watched_resizes(mode: Storages) -> Iterator[None]:
    resize = torch.UntypedStorage.resize_

    def resize_(storage, size):
        resized = resize(storage, size)
        mode.resized(storage)
        return resized

    with patch.object(torch.UntypedStorage, "resize_", resize_):
        yield


def main() -> None:
    out, *wanted = sys.argv[1:]
    if any(name in STAGES for name in wanted):
        import deepspeed
        from abandoned_builds import release_abandoned_builds

        release_abandoned_builds(nodes=1)  # of tests that were killed
        deepspeed.init_distributed("gloo")
    else:
        dist.init_process_group("gloo")
    rows = []
    for strategy in wanted:
        for mixed in (True, False):
            for accumulation in (1, 2):
                gc.collect()
                mode = Storages(set())
                with mode, watched_resizes(mode):
                    steps = deepspeed_steps if strategy in STAGES else torch_steps
                    row = steps(strategy, mixed, accumulation, mode)
                rows.append({"strategy": strategy, "mixed": mixed, "accumulation": accumulation, **row})
    if dist.get_rank() == 0:
        params = sum(p.numel() for p in network().parameters())
        Path(out).write_text(json.dumps({"params": params, "world": dist.get_world_size(), "rows": rows}))
    dist.barrier()
    os._exit(0)  # DeepSpeed's threads outlive the work


if __name__ == "__main__":
    main()
