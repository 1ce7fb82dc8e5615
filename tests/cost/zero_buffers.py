"""The buffers that DeepSpeed's optimizer objects hold, by name, put under device or host as their source does. Run by
test_zero_buffers.py: torchrun --nproc-per-node 2 zero_buffers.py IN.json OUT.json, IN being the emitted deepspeed.json of each row.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

HIDDEN, LAYERS = 1024, 20
PARAMS = LAYERS * HIDDEN**2
# the attribute that allocates it, and where: "optimizer" is DeepSpeed's self.device, the host once the optimizer is offloaded
BUFFERS = {
    "BF16_Optimizer": {
        "bf16_groups_flat": "device",
        "fp32_groups_flat_partition": "device",
        "fp32_groups_gradients_flat": "device",
    },
    "DeepSpeedZeroOptimizer": {
        "bit16_groups_flat": "device",
        "averaged_gradients": "device",  # _build_compact_grad_partition_buffer: accelerator, whatever is offloaded
        "grads_in_partition": "device",
        "temp_grad_buffer_for_gpu_offload": "device",
        "single_partition_of_fp32_groups": "optimizer",
        "single_partition_of_fp32_groups.grad": "optimizer",
        "param_buffer_of_bit16_for_cpu_offload_groups": "host",
        "accumulated_grads_in_cpu": "host",
        "temp_grad_buffer_for_cpu_offload": "host",
    },
    "DeepSpeedZeroOptimizer_Stage3": {
        "lp_param_buffer": "device",
        "param_groups_fp16_flat_cpu_memory": "host",
        "fp32_partitioned_groups_flat": "optimizer",
        "fp32_partitioned_groups_flat.grad": "optimizer",
        "grad_partitions_flat_buffer": "optimizer",
    },
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(LAYERS)))


def list_tensors(value) -> Iterable[torch.Tensor]:
    if torch.is_tensor(value):
        yield value
        return
    flat = getattr(value, "flat_partition", None)
    if flat is not None:
        yield flat
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        yield from list_tensors(item)


def read_buffer(optimizer, name: str) -> list[torch.Tensor]:
    attribute, _, grad = name.partition(".")
    tensors = list(list_tensors(getattr(optimizer, attribute, None)))
    return [t.grad for t in tensors if t.grad is not None] if grad else tensors


def measure(optimizer, module: nn.Module, offloaded: bool) -> dict[str, dict[str, int]]:
    """Bytes by place and name. A storage counts once, under the name that comes first."""
    named = [(name, where, read_buffer(optimizer, name)) for name, where in BUFFERS[type(optimizer).__name__].items()]
    for state in optimizer.optimizer.state.values():
        named += [(f"state.{key}", "optimizer", [value]) for key, value in state.items() if value.numel() > 1]
    named.append(("param.grad", "device", [p.grad for p in module.parameters() if p.grad is not None]))
    seen: set[int] = set()
    found: dict[str, dict[str, int]] = {"device": {}, "host": {}}
    for name, where, tensors in named:
        place = found["host" if where == "host" or (where == "optimizer" and offloaded) else "device"]
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen and tensor.device.type != "meta":
                seen.add(storage.data_ptr())
                place[name] = place.get(name, 0) + storage.nbytes()
    return found


def count_live_bytes() -> int:
    """Of every tensor that Python can reach, storage by storage."""
    tensors = [x for x in gc.get_objects() if type(x) in (torch.Tensor, nn.Parameter) and x.device.type != "meta"]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def train(row: dict) -> dict:
    import deepspeed

    # what the Trainer fills in, and what a model of this size needs to be divided at all
    config = json.loads(json.dumps(row["config"]))
    zero = config["zero_optimization"]
    zero |= {key: 1_000_000 for key in ("reduce_bucket_size", "allgather_bucket_size") if key in zero}
    if zero["stage"] == 3:
        zero |= {"stage3_prefetch_bucket_size": 0, "stage3_param_persistence_threshold": 0}
        zero |= {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
    config["bf16"]["enabled"] = row["bf16"]
    config["fp16"]["enabled"] = False
    config |= {"train_batch_size": 2 * row["accumulation"], "train_micro_batch_size_per_gpu": 1}
    config |= {"gradient_accumulation_steps": row["accumulation"], "gradient_clipping": 1.0}
    gc.collect()  # the engine before
    before = count_live_bytes()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    del model, optimizer
    inputs = torch.ones(1, HIDDEN, dtype=torch.bfloat16 if row["bf16"] else torch.float32)
    offloaded = "offload_optimizer" in zero
    report = {}
    for _ in range(2):  # the first step makes the states
        for _ in range(row["accumulation"]):
            loss = engine(inputs).float().pow(2).mean()
            engine.backward(loss)
            del loss
            report = {"before step": measure(engine.optimizer, engine.module, offloaded)}
            report["live"] = count_live_bytes() - before
            engine.step()
        report["kept"] = measure(engine.optimizer, engine.module, offloaded)
    engine.destroy()
    return report


def main() -> None:
    import deepspeed

    rows, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    deepspeed.init_distributed("gloo")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # DeepSpeed collects garbage before each of its reports of memory: what was imported is not looked at again
    gc.collect()
    gc.freeze()
    reports = [train(row) for row in rows]
    if dist.get_rank() == 0:
        out.write_text(json.dumps({"params": PARAMS, "world": dist.get_world_size(), "rows": reports}))
    dist.barrier()
    os._exit(0)  # DeepSpeed's threads outlive the work


if __name__ == "__main__":
    main()
