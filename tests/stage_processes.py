"""Two stages of a pipeline of two linear layers, in forks of this process: what each holds while it works, by a JSON file each.

    python stage_processes.py FOLDER MICRO-BATCHES

``evaluated`` and ``trained`` are bytes of hidden states, logits and their gradients that exist at the last micro-batch;
``equal``: whether a step's gradient is that of both layers in one process. A stage that waits for ever says where, and ends.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))
import torch
import torch.distributed as dist
from leaves import load_leaf
from torch import nn
from torch.distributed.pipelining import Schedule1F1B

WIDTH = 64
LIMIT_SECONDS = 100


def count_bytes(rows: int, *given: torch.Tensor) -> int:
    """Of tensors of ``rows`` rows, as micro-batches are cut; not of those that the whole batches are cut into."""
    found = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor) and x.shape == (rows, WIDTH)]
    sizes = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in found}
    return sum(sizes.values()) - sum(sizes.get(x.untyped_storage().data_ptr(), 0) for x in given)


def work(folder: Path, rank: int, count: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(str(folder / f"store-{count}"), 2))
    sys.modules["divided_states"] = SimpleNamespace(
        PARTIAL_GRADIENTS="",
        adapt_equally=None,
        divide_gradient=None,
        get_local=None,
        list_weights=None,
        refuse_router_loss=None,
        sum_over_processes=None,
    )
    sys.modules["loaded_weights"] = SimpleNamespace(check_loaded=None)
    pipeline = load_leaf("division/pipeline", "division")
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
    rows = 3
    batch, target = torch.randn(count * rows, WIDTH), torch.randn(count * rows, WIDTH)
    held: dict[str, int] = {}

    def compute_loss(output: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (output - wanted).square().sum()

    stage = pipeline.LeanStage(layers[rank], rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, count, loss_fn=compute_loss, scale_grads=False)
    send, backward = stage.get_fwd_send_ops, stage.backward_one_chunk

    def watch_forward(number: int) -> list:
        ops = send(number)
        if number == count - 1 and not stage.has_backward:
            held["evaluated"] = count_bytes(rows, batch, target)
        return ops

    def watch_backward(number: int, **keywords) -> None:
        if number == count - 1 and stage.has_backward:
            held["trained"] = count_bytes(rows, batch, target)
        backward(number, **keywords)

    stage.get_fwd_send_ops, stage.backward_one_chunk = watch_forward, watch_backward
    words = ((batch,), {}) if rank == 0 else ((), {"target": target, "losses": [], "return_outputs": False})
    with torch.no_grad():
        schedule.eval(*words[0], **words[1])
    schedule.step(*words[0], **words[1])
    whole = compute_loss(layers[1](layers[0](batch)), target)
    wanted = torch.autograd.grad(whole, layers[rank].weight)[0]
    held["equal"] = bool(torch.allclose(layers[rank].weight.grad, wanted, rtol=1e-4, atol=1e-4))
    (folder / f"{count}-{rank}.json").write_text(json.dumps(held))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    children = []
    for rank in (0, 1):
        child = os.fork()
        if not child:
            faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
            work(Path(sys.argv[1]), rank, int(sys.argv[2]))
            os._exit(0)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
