"""D to G. Precision (R301 to R307), speed (R401 to R408), CPU (R501 to R513) and inference (R601 to R612)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from making import A100, H100, T4, V100, gpu, llama

from generator.case.stacks import load_stack
from generator.case.workload import Draft
from generator.emit.pods import describe_resources
from hwdetect import catalog
from hwdetect.catalog import list_devices
from rules.table import (
    BF16_CPU,
    PASCAL,
    PLAIN_CPU,
    RTX_4090,
    WITH_AMX,
    WITH_BF16,
    Case,
    Rule,
    both,
    by_transformers,
    chosen,
    costed,
    emits,
    encoder,
    fastest_of,
    joined,
    on,
    pin,
    plan,
    refused,
    tiny,
    written,
)

LM = {"task": "causal-lm"}
GPU_12 = gpu("8.9", 12, 120, 0.5e12, "a 12 GiB GPU")
GPU_8_BITS = gpu("9.0", 640, 989, 3.35e12, "a large H100", fp8=1979)
SMALL = Draft(name="test/small", params=10**9, cached=16 * 1024, vocab=llama().vocab)
L40S = gpu("8.9", 45, 362, 0.864e12, "L40S")
SERVED, SERVED_8B = by_transformers(on(mode="infer")), by_transformers(on(H100, llama(), mode="infer"))
LLAMA_70B = llama(hidden=8192, layers=80, heads=64, kv_heads=8, ffn=28672)
ASKED_FOR = (
    "schedule-free",
    "ademamix",
    "lion-8bit",
    "stable-adamw",
    "sgd",
    "lomo",
    "adalomo",
    "galore",
    "apollo",
)
UNEVEN = {"task": "text-classification", "fill_shares": (0.05, 0.1, 0.15, 0.2, 0.6)}
EVEN = {"task": "text-classification", "fill_shares": (1.0, 1.0)}


def t5(model_type: str):
    return replace(tiny(), model_type=model_type)


def quota(of: Case, cpus: int) -> Case:
    """A container that may use so many of the CPUs."""
    cpu = replace(of.hardware.cpu, budget=cpus, quota=float(cpus))
    return replace(of, hardware=replace(of.hardware, cpu=cpu))


def limits_memory(of: Case) -> bool:
    """Of the pod of one node: a limit of host memory, which is what it asks for."""
    gpus = {of.vendor.kubernetes: of.devices_per_node} if of.vendor.kubernetes else {}
    needs = describe_resources(gpus, of.hardware.cpu.budget, plan(of).best.estimate.peak_memory_gib)
    return "memory" in needs["limits"] and needs["limits"]["memory"] == needs["requests"]["memory"]


def quality_is_asked_for(of: Case) -> bool:
    """What is another algorithm is not chosen, is said to be there, and would be taken on request."""
    told = next(d for d in plan(of).decisions if d.axis == "optimizer")
    left = {r.name: r.why for r in told.rejected}
    return told.chosen not in ASKED_FOR and all("only on request" in left[name] for name in ASKED_FOR)


def unearned(of: Case) -> bool:
    told = next(d for d in plan(of).decisions if d.axis == "compile")
    return told.chosen == "off" and any("do not earn back" in r.why for r in told.rejected)


def compiles_itself(of: Case) -> bool:
    """generate() compiles a static cache by itself: nothing else does."""
    edits = plan(of).edits
    static = any(a.name == "cache_implementation" for a in edits.infer_generate_arguments)
    return static and "torch.compile" not in str(edits)


def leaves_room(of: Case) -> bool:
    """At least 1 GiB of each device is not planned for, or is planned for the context and what the allocator cannot reuse."""
    best = plan(of).best.estimate
    kept = sum(p.value for p in best.memory if p.name in ("context", "communicator", "fragmentation"))
    return best.devices > 1 and best.headroom_gib + kept >= 1.0


APPLE = {device.id: device for device in list_devices() if device.vendor == "apple"}

TPU = catalog.load("tpu-v5e")
IN_TENSORFLOW = on(PLAIN_CPU, replace(tiny(), model_type="gpt2"), framework="tensorflow")
LEAVES = Path(__file__).resolve().parents[2] / "templates" / "fragments"


def read_leaves(of: Case) -> list[str]:
    """Those that train and answer."""
    assert of.skeleton is not None
    return [(LEAVES / f"{of.skeleton.leaves[name]}.py").read_text(encoding="utf-8") for name in ("train", "infer")]


RULES = (
    Rule(
        id="R301",
        words="bf16 where it is in the hardware, with tf32 for the rest on CUDA",
        look=both(chosen("precision", "bf16"), emits("tf32", "True")),
        takes=(on(H100), on(A100), on(RTX_4090)),
        leaves=(on(T4), on(PLAIN_CPU), on(BF16_CPU, features=WITH_BF16)),
    ),
    Rule(
        id="R302",
        words="fp16 where there are tensor cores but no bf16",
        look=both(chosen("precision", "fp16"), emits("fp16", "True")),
        takes=(on(T4), on(V100)),
        leaves=(on(A100), on(PASCAL), on(PLAIN_CPU)),
    ),
    Rule(
        id="R303",
        words="fp32 before compute capability 7.0 and on plain CPUs",
        look=chosen("precision", "fp32"),
        takes=(on(PASCAL), on(PLAIN_CPU)),
        leaves=(on(V100), on(BF16_CPU, features=WITH_AMX)),
    ),
    Rule(
        id="R305",
        words="what was trained in bf16 and overflows is not trained in fp16",
        look=both(refused("precision=fp16", "overflows", "NaN"), chosen("precision", "fp32")),
        takes=(on(T4, t5("t5")), on(V100, t5("umt5"))),
        leaves=on(T4),
    ),
    Rule(
        id="R306",
        words="gradients are summed in float32: DeepSpeed would sum bf16 ones in bf16",
        look=emits("data_types.grad_accum_dtype", "fp32", place="deepspeed"),
        takes=tuple(pin(on(devices=4), f"parallelism=zero{stage}", "precision=bf16") for stage in (1, 2, 3)),
        leaves=(pin(on(devices=4), "parallelism=zero2", "precision=fp32"), pin(on(devices=4), "parallelism=fsdp2")),
    ),
    Rule(
        id="R307",
        words="bf16 on Apple's GPUs that compute it; the project's guard asks for macOS 14",
        look=chosen("precision", "bf16", "bf16-pure"),
        takes=on(APPLE["m4-max"]),
        leaves=on(APPLE["m1-max"]),
    ),
    Rule(
        id="R401",
        words="four workers that prefetch and stay, or what the usable CPUs leave",
        look=both(emits("dataloader_num_workers", "4"), emits("dataloader_persistent_workers", "True")),
        takes=(pin(on(cores=16), "data-loading=workers"), pin(on(cores=5), "data-loading=workers")),
        leaves=(
            pin(on(cores=3), "data-loading=workers"),
            pin(on(cores=2), "data-loading=workers"),
            on(cores=1),
            on(PLAIN_CPU),
        ),
    ),
    Rule(
        id="R402",
        words="fused AdamW",
        look=both(chosen("optimizer", "adamw-fused"), emits("optim", '"adamw_torch_fused"')),
        takes=(on(), on(T4), on(PLAIN_CPU)),
        leaves=pin(on(), "optimizer=adamw"),
    ),
    Rule(
        id="R403",
        words="SDPA, which eager attention is slower than",
        look=both(chosen("attention", "sdpa"), costed("attention", "eager"), fastest_of("attention")),
        takes=(on(seq_len=4096), on(T4), on(PLAIN_CPU)),
        leaves=pin(on(), "attention=eager"),
    ),
    Rule(
        id="R304",
        words="products in 8 bits where the hardware has them and the user allows it, and compiled",
        look=both(chosen("precision", "fp8-tensorwise"), chosen("compile", "default", "regional")),
        takes=on(GPU_8_BITS, llama(), allow=("precision=fp8-tensorwise",), **LM),
        leaves=(on(GPU_8_BITS, llama(), **LM), on(A100, llama(), allow=("precision=fp8-tensorwise",), **LM)),
    ),
    Rule(
        id="R404",
        words="Liger's kernels where it has them, on a GPU that runs Triton",
        look=both(chosen("loss", "liger"), emits("use_liger_kernel", "True")),
        takes=on(H100, llama(), train="lora", **LM),
        leaves=(on(PLAIN_CPU, **LM), on(V100, **LM), on(H100, replace(tiny(), model_type="gpt2"), **LM)),
    ),
    Rule(
        id="R405",
        words="no compilation that the run does not earn back",
        look=unearned,
        takes=on(BF16_CPU, features=WITH_BF16, seq_len=512, steps=3, **LM),
        leaves=(on(BF16_CPU, features=WITH_BF16, seq_len=512, steps=100_000, **LM), on(T4, **LM)),
    ),
    Rule(
        id="R406",
        words="texts of unequal length are grouped",
        look=both(chosen("packing", "group-by-length"), emits("train_sampling_strategy", '"group_by_length"')),
        takes=(on(T4, **UNEVEN), on(H100, encoder(), **UNEVEN | {"seq_len": 512})),
        leaves=(on(T4, **EVEN), on(T4, **LM)),
    ),
    Rule(
        id="R408",
        words="optimizers for quality are never chosen for speed",
        look=quality_is_asked_for,
        takes=(on(), on(T4), on(RTX_4090, llama(), train="lora")),
        leaves=(pin(on(), "optimizer=schedule-free"), pin(on(), "optimizer=ademamix")),
    ),
    Rule(
        id="R501",
        words="a CPU computes in bf16 if it has the instructions",
        look=both(chosen("precision", "bf16"), emits("bf16", "True")),
        takes=(on(BF16_CPU, features=WITH_BF16), on(BF16_CPU, features=WITH_AMX)),
        leaves=(on(PLAIN_CPU), on(BF16_CPU, features=("avx2", "avx512f", "amx_int8"))),
    ),
    Rule(
        id="R503",
        words="one process, a thread for each physical core that it may use",
        look=both(chosen("cpu-threads", "budget"), lambda of: ("OMP_NUM_THREADS", "4") in plan(of).edits.environment),
        takes=quota(on(PLAIN_CPU), 4),
        leaves=(on(PLAIN_CPU), on(), quota(on(), 4)),
    ),
    Rule(
        id="R505",
        words="CPUs of several nodes: torchrun, whose processes meet at one of them, never `accelerate launch --cpu`",
        look=lambda of: (
            plan(of).edits.launcher[:1] == ("torchrun",) and "$MASTER_ADDR:29500" in plan(of).edits.launcher
        ),
        takes=on(PLAIN_CPU, nodes=2),
        leaves=on(PLAIN_CPU),
    ),
    Rule(
        id="R507",
        words="on Kubernetes a pod without GPUs may take the memory that it asks for and no more; one with GPUs what its node has",
        look=limits_memory,
        takes=(on(PLAIN_CPU), on(BF16_CPU)),
        leaves=(on(), on(RTX_4090, devices=2)),
    ),
    Rule(
        id="R509",
        words="one Apple GPU, and what Metal lacks runs on the CPU",
        look=lambda of: ("PYTORCH_ENABLE_MPS_FALLBACK", "1") in of.vendor.environment,
        takes=on(APPLE["m4-max"]),
        leaves=on(),
    ),
    Rule(
        id="R601",
        words="served in the 16 bits of the checkpoint where the device has them",
        look=lambda of: written(of, "infer_model_arguments").get("dtype") == "torch.bfloat16",
        takes=(
            SERVED,
            by_transformers(on(RTX_4090, mode="infer")),
            by_transformers(on(BF16_CPU, features=WITH_BF16, mode="infer")),
        ),
        leaves=(by_transformers(on(PLAIN_CPU, mode="infer")), by_transformers(on(T4, mode="infer"))),
    ),
    Rule(
        id="R602",
        words="what fits is served with SDPA, a static cache and a compiled step",
        look=both(chosen("attention", "sdpa"), chosen("cache", "static"), chosen("compile", "static-decode")),
        takes=(SERVED, SERVED_8B),
        leaves=(by_transformers(on(PLAIN_CPU, mode="infer")), by_transformers(on(GPU_12, llama(), mode="infer"))),
    ),
    Rule(
        id="R603",
        words="nothing is quantized where memory is enough",
        look=chosen("quantization", "none"),
        takes=(SERVED_8B, by_transformers(on(gpu("8.9", 24, 120, 0.5e12), llama(), mode="infer"))),
        leaves=by_transformers(on(GPU_12, llama(), mode="infer")),
    ),
    Rule(
        id="R604",
        words="what memory forbids is quantized on the fly in 8 bits if that is enough, by torchao where a step can be compiled",
        look=chosen("quantization", "torchao-int8", "bnb-int8"),
        takes=by_transformers(on(GPU_12, llama(), mode="infer")),
        leaves=(by_transformers(on(gpu("8.9", 8, 120, 0.5e12), llama(), mode="infer")), SERVED_8B),
    ),
    Rule(
        id="R607",
        words="many requests at once: an engine with pages and continuous batching",
        look=chosen("engine", "vllm"),
        takes=(
            on(H100, llama(), mode="infer", concurrency=64),
            # without links, four devices that exchange sums earn less each than three that hold layers in turn
            joined(on(H100, LLAMA_70B, devices=8, mode="infer", concurrency=64)),
        ),
        leaves=(on(PLAIN_CPU, mode="infer"), on(gpu("6.1", 24, 12, 0.5e12), mode="infer")),
    ),
    Rule(
        id="R608",
        words="what one GPU cannot hold is spread over several",
        look=both(chosen("parallelism", "device-map"), emits("device_map", '"auto"', place="infer_model_arguments")),
        takes=by_transformers(joined(on(H100, LLAMA_70B, devices=4, mode="infer"))),
        leaves=(
            by_transformers(joined(on(H100, llama(), devices=4, mode="infer"))),
            by_transformers(on(PLAIN_CPU, mode="infer")),
        ),
    ),
    Rule(
        id="R609",
        words="every device keeps a gigabyte or more that no weights are planned for",
        look=leaves_room,
        takes=by_transformers(joined(on(H100, LLAMA_70B, devices=4, mode="infer"))),
        leaves=SERVED_8B,
    ),
    Rule(
        id="R021",
        words="on XLA the plain AdamW, never the fused one",
        look=both(chosen("optimizer", "adamw"), refused("optimizer=adamw-fused", "no part of the project")),
        takes=on(TPU),
        leaves=on(),
    ),
    Rule(
        id="R044",
        words="TensorFlow on Transformers below 5 and Keras 2",
        look=lambda of: (
            (of.stack.version("transformers") or "").startswith("4.") and bool(of.stack.version("tf-keras"))
        ),
        takes=replace(IN_TENSORFLOW, stack=load_stack("train-tensorflow", "cpu")),
        leaves=(on(), on(PLAIN_CPU)),
    ),
    Rule(
        id="R510",
        words="TPU: static shapes padded to what its lanes take, whole batches, bf16; PyTorch/XLA on its own pins",
        look=both(chosen("precision", "bf16"), lambda of: of.skeleton is not None and of.skeleton.multiple == 128),
        takes=on(TPU),
        leaves=(on(), on(TPU, train="lora")),
    ),
    Rule(
        id="R511",
        words="the rules of XLA hold in what is emitted: it counts its compilations (tests/test_xla.py reads the code)",
        look=lambda of: of.skeleton is not None and all("expect_one" in text for text in read_leaves(of)),
        takes=(on(TPU), IN_TENSORFLOW),
        leaves=on(),
    ),
    Rule(
        id="R512",
        words="jit_compile for TensorFlow on a CPU, not for a TPU",
        look=lambda of: of.skeleton is not None and all("jit_compile=True" in text for text in read_leaves(of)),
        takes=IN_TENSORFLOW,
        leaves=on(TPU),
    ),
    Rule(
        id="R605",
        words="a cache that does not fit is kept in 8 bits, where an engine's kernels read them; offloaded ones are not emitted",
        look=chosen("cache", "engine-fp8"),
        takes=on(L40S, llama(), mode="infer", seq_len=8000, new_tokens=200, concurrency=32),
        leaves=(
            on(L40S, llama(), mode="infer", seq_len=8000, new_tokens=200, concurrency=8),
            on(
                gpu("8.0", 40, 312, 1.5e12, "A100"), llama(), mode="infer", seq_len=1000, new_tokens=200, concurrency=32
            ),
            SERVED,
        ),
    ),
    Rule(
        id="R606",
        words="one answer at a time and a small model of the same vocabulary: that proposes, the model checks",
        look=chosen("speculation", "draft-model"),
        takes=on(H100, llama(), mode="infer", draft=SMALL),
        leaves=(
            on(H100, llama(), mode="infer"),
            on(H100, llama(), mode="infer", draft=SMALL, concurrency=8),
            on(H100, llama(), mode="infer", draft=replace(SMALL, params=llama().params // 2)),
            on(H100, tiny(), mode="infer", draft=SMALL),
        ),
    ),
    Rule(
        id="R610",
        words="CPU inference: the precision of its instructions, and generate compiles nothing",
        look=both(refused("compile=static-decode", "accelerators only"), chosen("precision", "bf16")),
        takes=by_transformers(on(BF16_CPU, features=WITH_BF16, mode="infer")),
        leaves=(by_transformers(on(PLAIN_CPU, mode="infer")), SERVED),
    ),
    Rule(
        id="R612",
        words="the model is not compiled where generate does it",
        look=compiles_itself,
        takes=(SERVED, SERVED_8B),
        leaves=(by_transformers(on(PLAIN_CPU, mode="infer")), pin(SERVED, "cache=dynamic")),
    ),
)
