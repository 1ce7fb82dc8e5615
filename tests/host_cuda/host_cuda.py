"""Lets PyTorch's CPU build have CUDA devices in host memory (device.cpp): what torch.cuda asks of its C++ half, answered.

PyTorch itself calls ``install`` at the end of ``import torch``: ``build.py`` lays an entry point of the group "torch.backends" beside
this file. HOST_CUDA_DEVICES of the environment says how many devices there are, HOST_CUDA_MEMORY_GIB how large each is, HOST_CUDA_NAME
and HOST_CUDA_CAPABILITY what they are.
"""

from __future__ import annotations

import itertools
import os
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import torch

GIB = 1 << 30


def install() -> None:
    import host_cuda_device as device

    answer_for_cuda(device)
    replace_streams(device)
    add_kernels()
    trace_only()
    if torch.distributed.is_available():
        add_nccl(device)


def answer_for_cuda(device) -> None:
    """The functions of torch._C that a build with CUDA has, so that torch.cuda is PyTorch's own."""
    major, minor = map(int, os.environ.get("HOST_CUDA_CAPABILITY", "9.0").split("."))
    properties = SimpleNamespace(
        name=os.environ.get("HOST_CUDA_NAME", "NVIDIA H100 80GB HBM3"),
        major=major,
        minor=minor,
        total_memory=device.get_memory_bytes(),
        multi_processor_count=132,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        warp_size=32,
        L2_cache_size=50 << 20,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="00000000-0000-0000-0000-000000000000",
        pci_bus_id=1,
        pci_device_id=0,
        pci_domain_id=0,
    )

    def exchange_device(index: int) -> int:
        before = device.get_device()
        if index >= 0:
            device.set_device(index)
        return before

    def get_stats(index: int) -> dict:
        stats = torch._C._accelerator_getDeviceStats(index)
        return stats | {"allocated_bytes": stats["allocated_bytes"], "num_ooms": 0, "num_alloc_retries": 0}

    answers = {
        "_cuda_init": lambda: None,
        "_cuda_isInBadFork": device.is_forked,
        "_cuda_getDeviceCount": device.count_devices,
        "_cuda_getDevice": device.get_device,
        "_cuda_setDevice": device.set_device,
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": exchange_device,
        "_cuda_synchronize": device.finish_copies,
        "_cuda_getCurrentRawStream": device.get_stream,
        "_cuda_emptyCache": lambda: None,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_memoryStats": get_stats,
        "_cuda_resetPeakMemoryStats": lambda index: torch._C._accelerator_resetPeakStats(index),
        "_cuda_resetAccumulatedMemoryStats": lambda index: None,
        "_cuda_getArchFlags": lambda: "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120",
        "_cuda_canDeviceAccessPeer": lambda one, other: True,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_setMemoryFraction": lambda fraction, index: None,
        "_cuda_getCompiledVersion": lambda: 13000,
        "_cuda_clearCublasWorkspaces": lambda: None,
        "_get_cudnn_version": lambda: 91300,
    }
    for name, answer in answers.items():
        setattr(torch._C, name, answer)
    cuda = torch.cuda
    cuda._is_in_bad_fork = device.is_forked
    # torch.compile keeps a handler for each of the two
    cuda._exchange_device, cuda._maybe_exchange_device = exchange_device, lambda index: exchange_device(index)
    cuda._get_device_properties = lambda index: properties
    cuda.get_device_properties = lambda asked=None: properties
    cuda.get_device_capability = lambda asked=None: (major, minor)
    cuda.get_device_name = lambda asked=None: properties.name
    cuda.mem_get_info = cuda.memory.mem_get_info = lambda asked=None: torch._C._accelerator_getMemoryInfo(
        device.get_device()
    )
    cuda.default_generators = tuple(map(device.get_default_generator, range(device.count_devices())))
    cuda._initialized = True
    torch.version.cuda = "13.0"
    resize = torch.UntypedStorage.resize_

    def resize_storage(storage, size: int):
        if storage.device.type != "cuda":
            return resize(storage, size)
        device.resize_storage(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (0,)), size)
        return storage

    torch.UntypedStorage.resize_ = resize_storage
    new = torch.UntypedStorage.__new__

    def make_storage(cls, *sizes, device=None, **options):
        if device is None or torch.device(device).type != "cuda":
            return new(cls, *sizes, **options | ({} if device is None else {"device": device}))
        return torch.empty(sizes[0] if sizes else 0, dtype=torch.uint8, device=device).untyped_storage()

    torch.UntypedStorage.__new__ = make_storage


def trace_only() -> None:
    """What is compiled is traced, and computed as it was written: Inductor would make kernels of Triton of it."""
    compile_it = torch.compile

    def compile_for_nothing(model=None, *, fullgraph=False, dynamic=None, disable=False, **of_inductor):
        return compile_it(model, fullgraph=fullgraph, dynamic=dynamic, disable=disable, backend="eager")

    torch.compile = compile_for_nothing


def replace_streams(device) -> None:
    """PyTorch's own of any device, under CUDA's names."""

    class Stream(torch.Stream):
        def __new__(cls, device=None, priority=0, **options):
            if "stream_id" in options:
                return super().__new__(cls, **options)
            index = torch.cuda._utils._get_device_index(device, optional=True)
            return super().__new__(cls, torch.device("cuda", index), priority=priority)

        cuda_stream = property(lambda stream: stream.stream_id)

    class OfTorch(type):
        def __instancecheck__(cls, value) -> bool:
            return isinstance(value, torch.Event)

    class Event(metaclass=OfTorch):
        def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
            return torch.Event(torch.device("cuda"), enable_timing=enable_timing)

    def make_stream(number: int, asked) -> Stream:
        index = torch.cuda._utils._get_device_index(asked, optional=True)
        return Stream(stream_id=number, device_index=index, device_type=1)

    def find_current(asked=None) -> Stream:
        return make_stream(device.get_stream(torch.cuda._utils._get_device_index(asked, optional=True)), asked)

    cuda = torch.cuda
    cuda.Stream = cuda.streams.Stream = Stream
    cuda.Event = cuda.streams.Event = Event
    cuda.current_stream, cuda.default_stream = find_current, lambda asked=None: make_stream(0, asked)
    cuda._set_stream_by_id = lambda stream_id, device_index, device_type: device.set_stream(stream_id, device_index)


def add_kernels() -> None:
    """Kernels of NVIDIA's GPUs that a CPU has not: flash attention, of rows of several texts too, wider products, histograms."""
    library = torch.library.Library("aten", "IMPL", "CUDA")
    library.impl("_flash_attention_forward", attend)
    library.impl("_flash_attention_backward", attend_backward)
    library.impl("_scaled_dot_product_flash_attention", attend_to_rows)
    library.impl("_scaled_dot_product_flash_attention_backward", attend_to_rows_backward)
    library.impl("histc", count_in_bins)
    for name in ("mm", "bmm", "addmm", "baddbmm"):
        library.impl(f"{name}.dtype", partial(multiply, getattr(torch, name)))
        library.impl(f"{name}.dtype_out", partial(multiply, getattr(torch, name)))
    KEPT.append(library)
    torch.backends.cuda.can_use_flash_attention = takes_flash
    torch.backends.cuda.can_use_cudnn_attention = takes_flash


KEPT: list = []
"""what registers kernels for as long as it lives"""
HALF = (torch.float16, torch.bfloat16)


def multiply(product, *given, out=None, **factors):
    """A product whose result is wider than what is multiplied."""
    *tensors, dtype = given
    result = product(*(tensor.to(dtype) for tensor in tensors), **factors)
    return result if out is None else out.copy_(result)


def count_in_bins(values, bins=100, min=0, max=0):
    if values.dtype.is_floating_point:
        return torch.histc(values.cpu(), bins, min, max).to(values.device)
    return torch.histc(values.cpu().float(), bins, min, max).to(values.device, values.dtype)


def takes_flash(call, debug: bool = False) -> bool:
    return call.query.dtype in HALF and call.attn_mask is None and call.query.shape[-1] <= 256


def cut(cumulated, tensor) -> list[slice]:
    if cumulated is None:
        return [slice(row * tensor.shape[1], (row + 1) * tensor.shape[1]) for row in range(tensor.shape[0])]
    if not cumulated.is_cuda or cumulated.dtype != torch.int32:
        raise RuntimeError("cu_seqlens must have dtype int32 and be on CUDA")
    borders = cumulated.tolist()
    return [slice(*pair) for pair in itertools.pairwise(borders)]


def find_probabilities(query, key, is_causal, scale, left, right):
    """Of one text: [heads, queries, keys], and the logarithms of their sums."""
    heads, length, keys = query.shape[1], query.shape[0], key.shape[0]
    key = key.repeat_interleave(heads // key.shape[1], 1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
    distance = (
        torch.arange(length, device=query.device)[:, None] + keys - length - torch.arange(keys, device=query.device)
    )
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if is_causal:
        hidden |= distance < 0
    if left is not None and left >= 0:
        hidden |= distance > left
    if right is not None and right >= 0:
        hidden |= distance < -right
    scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1), scores.logsumexp(-1)


def attend(
    query,
    key,
    value,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    return_debug_mask,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
    **others,
):
    if query.dtype not in HALF:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if dropout_p or any(other is not None for other in others.values()):
        raise NotImplementedError(f"dropout {dropout_p}, {others}: flash attention of host_cuda has none")
    heads, size = query.shape[-2:]
    scale = size**-0.5 if scale is None else scale
    q, k, v = (tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (query, key, value))
    output, sums = torch.zeros_like(q), torch.zeros(heads, len(q), device=q.device)
    for at, of in zip(cut(cum_seq_q, query), cut(cum_seq_k, key), strict=True):
        shares, sums[:, at] = find_probabilities(q[at], k[of], is_causal, scale, window_size_left, window_size_right)
        values = v[of].repeat_interleave(heads // v.shape[1], 1)
        output[at] = torch.einsum("hqk,khd->qhd", shares, values.float()).to(output.dtype)
    if cum_seq_q is None:
        sums = sums.view(heads, query.shape[0], -1).transpose(0, 1)
    numbers = torch.zeros(2, dtype=torch.uint64, device=q.device)
    return output.view(query.shape), sums, numbers, numbers.new_empty(0), query.new_empty(0)


def attend_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    rng_state,
    unused,
    *,
    scale=None,
    window_size_left=None,
    window_size_right=None,
):
    heads, size = query.shape[-2:]
    scale = size**-0.5 if scale is None else scale
    q, k, v, output, given = (t.reshape(-1, *t.shape[-2:]) for t in (query, key, value, out, grad_out))
    grads = [torch.zeros(tensor.shape, device=tensor.device) for tensor in (q, k, v)]
    for at, of in zip(cut(cum_seq_q, query), cut(cum_seq_k, key), strict=True):
        shares, _ = find_probabilities(q[at], k[of], is_causal, scale, window_size_left, window_size_right)
        times = heads // k.shape[1]
        keys, values = (tensor[of].float().repeat_interleave(times, 1) for tensor in (k, v))
        of_out = given[at].float()
        of_shares = torch.einsum("qhd,khd->hqk", of_out, values)
        of_scores = shares * (of_shares - (of_out * output[at].float()).sum(-1).T[..., None]) * scale
        grads[0][at] = torch.einsum("hqk,khd->qhd", of_scores, keys)
        for grad, (weights, tensor) in ((grads[1], (of_scores, q[at].float())), (grads[2], (shares, of_out))):
            summed = torch.einsum("hqk,qhd->khd", weights, tensor)
            grad[of] = summed.view(len(summed), -1, times, size).sum(2)
    return tuple(grad.view(of.shape).to(of.dtype) for grad, of in zip(grads, (query, key, value), strict=True))


def attend_to_rows(query, key, value, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """As attention of torch.nn.functional lays its rows: heads before tokens."""
    rows = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    longest = query.shape[2], key.shape[2]
    output, sums, numbers, unused, mask = attend(
        *rows, None, None, *longest, dropout_p, is_causal, return_debug_mask, scale=scale
    )
    return output.transpose(1, 2), sums, None, None, *longest, numbers, unused, mask


def attend_to_rows_backward(
    grad_out,
    query,
    key,
    value,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    seed,
    offset,
    *,
    scale=None,
):
    rows = [tensor.transpose(1, 2) for tensor in (grad_out, query, key, value, out)]
    grads = attend_backward(*rows, logsumexp, None, None, max_q, max_k, dropout_p, is_causal, seed, offset, scale=scale)
    return tuple(grad.transpose(1, 2) for grad in grads)


def add_nccl(device) -> None:
    """NCCL, by its name: Gloo, of tensors of the device only."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    class Options:
        def __init__(self, is_high_priority_stream: bool = False):
            self.is_high_priority_stream = is_high_priority_stream
            self._timeout = distributed_c10d.default_pg_timeout
            self.global_ranks_in_group, self.group_name, self.group_desc = [], "", ""
            self.config = SimpleNamespace()

    class Kind(type):
        def __instancecheck__(cls, value) -> bool:
            return isinstance(value, torch._C._distributed_c10d.Backend) and value.name() == "nccl"

    class ProcessGroupNCCL(metaclass=Kind):
        def __new__(cls, store, rank, size, options):
            gloo = dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
            return device.make_nccl(gloo)

    ProcessGroupNCCL.Options = Options
    distributed_c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = ProcessGroupNCCL
    distributed_c10d._NCCL_AVAILABLE = True
    distributed_c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    torch.cuda.nccl.version = lambda: (2, 28, 9)
