"""4-bit weights that the GPU packs and host memory keeps, until FSDP has divided them."""

import torch
from bitsandbytes.nn import Params4bit


def pack_on(device: torch.device) -> None:
    """bitsandbytes packs a weight where it will be kept: a CPU core takes an hour for 70B (24 million a second)."""
    pack = Params4bit._quantize

    def pack_there(weight: Params4bit, kept_on: torch.device) -> Params4bit:
        return pack(weight, device).to(kept_on)

    Params4bit._quantize = pack_there
