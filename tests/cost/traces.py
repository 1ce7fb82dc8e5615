"""Trace a real training step storage by storage: what is alive after the forward pass, and at the peak of the backward pass."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Storages(TorchDispatchMode):
    """Counts bytes of live CPU storages that operators made (``skip``: parameters, which they only view)."""

    def __init__(self, skip: set[int]):
        super().__init__()
        self.skip, self.live, self.now, self.peak = skip, {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage(), leaf.shape)
        return out

    def _count(self, storage, shape) -> None:
        key = storage._cdata
        if key in self.live or key in self.skip:
            return
        self.live[key] = (storage.nbytes(), tuple(shape))
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        size, _ = self.live.pop(key, (0, ()))
        self.now -= size


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Bytes a token. ``kept`` counts tensors that have the tokens as their first dimensions."""

    kept: float
    backward_peak: float


def trace_step(config, dtype, *, autocast=False, lora=None, checkpoint=False, batch=8, seq=128) -> Traced:
    """One forward and backward pass of a randomly initialized model. ``lora``: target modules of rank 8."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules=lora, lora_dropout=0.0))
        model.enable_input_require_grads()
    model.train()
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = torch.randint(0, 10, (batch, seq))
    mode = Storages({p.untyped_storage()._cdata for p in model.parameters()})
    with mode:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = model(input_ids=tokens, labels=tokens, use_cache=False)
        loss = out.loss
        del out
        firsts = (batch, batch * seq, 2 * batch * seq)
        kept = sum(size for size, shape in mode.live.values() if shape and shape[0] in firsts)
        mode.peak = 0
        loss.backward()
    return Traced(kept=kept / (batch * seq), backward_peak=mode.peak / (batch * seq))
