"""Trace one training step storage by storage: what is alive after the forward pass, and the most at each moment of the step.

Fake tensors have sizes and dtypes but no data, so models of their real width are traced in a second, without a GPU. They are
CPU tensors; where a GPU's operators keep other things (``on_cuda``), the operator that the GPU would run is put in its place.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from tests.leaves import load_leaf

HALF = (torch.bfloat16, torch.float16)


class Storages(TorchDispatchMode):
    """Counts bytes of live storages that operators made (``skip``: parameters, which they only view)."""

    def __init__(self, skip: set[int]):
        super().__init__()
        self.skip, self.live, self.now, self.peak = skip, {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._look(leaf)
        return out

    def _look(self, tensor: torch.Tensor) -> None:
        if is_traceable_wrapper_subclass(tensor):  # a DTensor holds its own part of what it stands for
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
            for part in parts:
                if isinstance(part, torch.Tensor):
                    self._look(part)
        elif tensor.device.type != "meta":
            self._count(tensor.untyped_storage(), tensor.shape)

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

    def resized(self, storage) -> None:
        """FSDP frees what it gathered by giving its storage no bytes."""
        old, shape = self.live.get(storage._cdata, (None, ()))
        if old is not None:
            self.live[storage._cdata] = (storage.nbytes(), shape)
            self.now += storage.nbytes() - old
            self.peak = max(self.peak, self.now)

    def restart(self) -> int:
        """The peak until now; the next one starts from what is alive."""
        peak, self.peak = self.peak, self.now
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Bytes beside the model's own. ``kept``: alive when the forward pass has ended. The rest are peaks of moments."""

    kept: float
    forward: float
    loss: float
    """the gradient of the loss, until that of the last block's output is there"""
    last_block: float
    first_block: float
    update: float
    """while the optimizer makes its first step: gradients, states and temporaries"""
    states: float
    """optimizer states that stay"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The step that is traced. ``lora``: target modules. ``prepare`` changes the model as an emitted fragment would."""

    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    autocast_cache: bool = True
    lora: str | tuple[str, ...] | None = None
    rank: int = 8
    dora: bool = False
    dropout: float = 0.0
    share: bool = False
    """adapters read their inputs uncast, as the emitted share_inputs makes them"""
    checkpoint: bool = False
    attention: str = "sdpa"
    batch: int = 4
    seq: int = 2048
    labels: int = 0
    on_cuda: bool = True
    prepare: Callable[[torch.nn.Module], None] | None = None
    loss_inputs: tuple[tuple[str, object], ...] = ()
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None


def trace_step(config, script: Script) -> Traced:
    """One step of a model made from ``config``: forward, backward and, with an optimizer, its first update."""
    with fake_model(config, script) as model:
        tokens = torch.zeros(script.batch, script.seq, dtype=torch.long)
        labels = torch.zeros(script.batch, dtype=torch.long) if script.labels else tokens
        mode = Storages({p.untyped_storage()._cdata for p in model.parameters()})
        marks = _watch(_blocks(model), mode)
        with mode:
            inputs = dict(script.loss_inputs) or ({} if script.labels else {"use_cache": False})
            casts = script.autocast is not None
            with torch.autocast("cpu", dtype=script.autocast, enabled=casts, cache_enabled=script.autocast_cache):
                out = model(input_ids=tokens, labels=labels, **inputs)
            loss = out.loss
            del out
            kept, forward = mode.now, mode.restart()
            loss.backward()
            marks["first block"] = mode.restart()
            del loss
            update, states = _update(model, script, mode)
    return Traced(
        kept=kept,
        forward=forward,
        loss=marks["loss"],
        last_block=marks["last block"],
        first_block=marks["first block"],
        update=update,
        states=states,
    )


@contextmanager
def fake_model(config, script: Script) -> Iterator[torch.nn.Module]:
    """A model without data, and everything that is made while it is used."""
    with torch.device("meta"):
        model = _model(config, script)
    with FakeTensorMode(), _kernels_of_cuda(script):
        _fill(model)
        yield model


def _update(model: torch.nn.Module, script: Script, mode: Storages) -> tuple[int, int]:
    if script.optimizer is None:
        return 0, 0
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.grad.untyped_storage().nbytes() for p in trained if p.grad is not None)
    optimizer = script.optimizer(trained)
    mode.restart()
    optimizer.step()
    peak = mode.restart()
    return peak, mode.now - gradients


def _model(config, script: Script) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if script.labels else AutoModelForCausalLM
    model = kind.from_config(config, dtype=script.dtype, attn_implementation=script.attention)
    if script.prepare:
        script.prepare(model)
    if script.lora:
        from peft import LoraConfig, get_peft_model

        targets = script.lora if isinstance(script.lora, str) else list(script.lora)
        how = LoraConfig(r=script.rank, target_modules=targets, lora_dropout=script.dropout, use_dora=script.dora)
        model = get_peft_model(model, how)
        if script.share:
            load_leaf("adapter_inputs").share_inputs(model)
    model.train()
    if script.checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if script.lora:
            model.enable_input_require_grads()
    return model


def _fill(model: torch.nn.Module) -> None:
    """Fake CPU tensors in the place of meta ones; what was tied stays tied."""
    fakes: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for owner in (module._parameters, module._buffers):
            for name, old in owner.items():
                if old is None:
                    continue
                if id(old) not in fakes:
                    new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                    fakes[id(old)] = torch.nn.Parameter(new, old.requires_grad) if owner is module._parameters else new
                owner[name] = fakes[id(old)]


def _blocks(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The stack of blocks: the longest list of modules of one type, or of several where there is none of one (OLMo Hybrid)."""
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    lists = [m for m in stacks if len({type(x) for x in m}) == 1] or stacks
    return max(lists, key=lambda blocks: (len(blocks), sum(p.numel() for p in blocks.parameters())))


def _watch(blocks: torch.nn.ModuleList, mode: Storages) -> dict[str, int]:
    """Peaks of the moments of a backward pass, filled in while it runs; hooks of a recomputed block find them filled."""
    marks: dict[str, int] = {}

    def end(*names: str) -> None:
        for name in names:
            if name not in marks:
                marks[name] = mode.restart()

    def watch(tensor: torch.Tensor, *names: str) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda _: end(*names))

    def entered(_module, args, kwargs) -> None:
        watch(args[0] if args else kwargs["hidden_states"], "loss", "last block")

    def left(*names: str):
        return lambda _module, _args, out: watch(out if torch.is_tensor(out) else out[0], *names)

    blocks[-1].register_forward_hook(left("loss"))
    blocks[-1].register_forward_pre_hook(entered, with_kwargs=True)
    blocks[0].register_forward_hook(
        left("loss", "last block", "between")
    )  # of two blocks, that is the last one's input
    return marks


@contextmanager
def _kernels_of_cuda(script: Script) -> Iterator[None]:
    """Flash and memory-efficient attention in the place of the CPU's, and autocast's float32 layer_norm."""
    from transformers.integrations import moe

    always = ExitStack()  # what reads values or pointers, which fake tensors do not have
    always.enter_context(patch("transformers.masking_utils.find_packed_sequence_indices", lambda _positions: None))
    grouped = patch("transformers.integrations.moe._can_use_grouped_mm", lambda x, w, offs: w.dtype == torch.bfloat16)
    always.enter_context(grouped)
    always.enter_context(patch.object(moe, "_grouped_mm", load_leaf("expert_products").multiply_under_autocast))
    if not script.on_cuda:
        with always:
            yield
        return
    plain_norm = functional.layer_norm

    def layer_norm(inputs, *args, **kwargs):
        if torch.is_autocast_enabled("cpu") and inputs.dtype in HALF:
            with torch.autocast("cpu", enabled=False):
                return plain_norm(inputs.float(), *args, **kwargs)
        return plain_norm(inputs, *args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(always)
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", _fused_attention))
        stack.enter_context(patch.object(functional, "layer_norm", layer_norm))
        stack.enter_context(patch.object(functional, "dropout", _masked_dropout))
        yield


def _masked_dropout(inputs, p=0.5, training=True, inplace=False):
    """CUDA's keeps a mask of one byte an element, the CPU's keeps the noise in the input's dtype."""
    return torch.ops.aten.native_dropout(inputs, p, training)[0] if training and p else inputs


def _fused_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """What CUDA's dispatcher takes (torch's sdp_utils.cpp): flash for 16 bits without a mask, else memory-efficient."""
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(low), key.to(low), value.to(low)
    if attn_mask is None and query.dtype in HALF and query.shape[-1] == value.shape[-1] <= 256:
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, float("-inf"))
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    if enable_gqa and key.shape[1] != query.shape[1]:  # no fused kernel: scores are materialized
        with torch.autocast("cpu", enabled=False):
            return torch.ops.aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
            )[0]
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]
