"""4-bit weights that the GPU packs. Each process keeps its share in host memory, until FSDP has divided them."""

import torch
from bitsandbytes.nn import Params4bit


def pack_on(device: torch.device, process: int, processes: int) -> None:
    """bitsandbytes packs a weight where it will be kept: a CPU core takes an hour for 70B (24 million a second).

    Of a packed weight FSDP takes one of ``processes`` equal parts. The others are memory that is reserved and never
    written: all processes of a node together have the packed model once, not each the whole of it.
    """
    pack = Params4bit._quantize

    def pack_there(weight: Params4bit, kept_on: torch.device) -> Params4bit:
        packed = pack(weight, device)
        whole = torch.empty_like(packed.data, device=kept_on)
        parts = zip(whole.chunk(processes), packed.data.chunk(processes), strict=True)
        for number, (kept, part) in enumerate(parts):
            if number == process:
                kept.copy_(part)
        packed.data = whole
        packed.quant_state.to(kept_on)
        return packed

    Params4bit._quantize = pack_there
