"""Google's TPUs, and the CPU runtime of the same compiler: PyTorch/XLA, in a project of its own (templates/fragments/xla)."""

from __future__ import annotations

from dataclasses import replace

from generator.case.stacks import NO_BUILD
from generator.case.vendors.vendor import Skeleton, Vendor, has
from generator.case.workload import Workload
from generator.model import ModelSpec
from hwdetect.types import Device

ROLE = "train-xla"
LANES = 128
"""A TPU's matrix unit and vector registers take 128 values at once (https://cloud.google.com/tpu/docs/performance-guide)"""


MODELS = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
"""of one form by their code in Transformers: layers in ``model.layers``, one kind of mask that infer.py gives, and no values read on
the host. llama was run; the others were not."""


def explain_work(workload: Workload, model: ModelSpec) -> str | None:
    if workload.mode == "infer" and not workload.after_training:
        return "no server of PyTorch/XLA is emitted: infer.py of a training project generates with static shapes"
    if workload.train != "full":
        return f"--train {workload.train} was not run on PyTorch/XLA: its project trains every weight, so --train full"
    if workload.task not in ("causal-lm", "sft"):
        return f"--task {workload.task} was not run on PyTorch/XLA: its project trains causal-lm and sft"
    if model.model_type not in MODELS:
        return (
            f"models of type {model.model_type} are not in the project of PyTorch/XLA, which has {', '.join(MODELS)} "
            "(llama was run, the others have its form)"
        )
    if workload.from_scratch:
        return "its project starts from trained weights: give a model that has some"
    return None


REASONS = {
    "PJRT_DEVICE": "the runtime of the compiler that the scripts are started with: the devices of the plan",
    # the model
    "dtype": "trained weights stay in fp32, bf16 is for the arithmetic (autocast); answers are computed in bf16 where training was",
    "attn_implementation": "eager: XLA fuses attention itself, and the decomposition of SDPA mixes dtypes under its autocast",
    "revision": "config.yaml pins the version of the model that was looked at",
    "trust_remote_code": "no code of the model's repository is run, nor asked about",
    "output_loading_info": "weights that the files lack end the run; Transformers would make them up, and say so in its log alone",
    "use_safetensors": "pickled weights can run code when they are loaded",
    "state_dict": "the trained weights, read back from the devices",
    "use_cache": "off in training, where no token is added; on in infer.py, whose second graph reads the cache",
    "num_items_in_batch": "places that the whole optimizer step learns from, so that micro-batches count by their tokens",
    # the optimizer
    "lr": "a tensor: a number would be a constant of the graph, compiled anew whenever the schedule changes it",
    "betas": "adam_beta1 and adam_beta2, as TrainingArguments has them",
    "eps": "adam_epsilon, as TrainingArguments has it",
    "capturable": "step and rate are tensors on the device, so that nothing is read on the host and every step is one graph",
    "foreach": "off: XLA fuses the operators of one weight after the other by itself",
    "set_to_none": "gradients are made anew by each backward pass, so that no graph begins with zeros",
    # computing
    "device": "where a tensor is made: a copy from the host would be an input of the graph",
    "enabled": "bf16 of the plan: the decision precision",
    # answers
    "config": "the shapes of the model that the cache is made for",
    "max_cache_len": "the padded prompt and the padded answer: a cache that grew would be another graph for each token",
    "input_ids": "the padded prompt at first, then one token",
    "attention_mask": "made by infer.py: the padding on the left and the empty places of the cache are not seen",
    "position_ids": "counted from the prompt's first token, not from its padding",
    "min": "what is padding has position 0, which no mask lets through",
    "past_key_values": "StaticCache: keys and values at fixed places",
    "logits_to_keep": "of the last place alone: the next token follows from it",
    "add_generation_prompt": "ends with the mark that an answer comes now",
    "return_dict": "the tokens by their name",
    "skip_special_tokens": "the text alone, without marks such as the end of the sequence",
}


WITHOUT_ACCELERATE = (
    "Transformers 5.23 finds its device (tpu:0), and Accelerate 1.15 knows none such: it takes the CPU, moves the model there and has no "
    "torch.distributed for several chips; the wheel of 0.2.0 (for torch 2.11 to 2.15) has no CPU runtime in which anything else could be seen"
)
"""accelerate/state.py, PartialState.default_device; seen on 2026-11-25"""
SKELETON = Skeleton(
    role=ROLE,
    packages=("torch", "torch-xla", "transformers", "datasets", "pyyaml", "numpy", "safetensors"),
    leaves={
        "train": "xla/train",
        "infer": "xla/infer",
        **{name: name for name in ("loaded_weights", "template_limits")},
    },
    sequences={"causal-lm": "sequences/blocks", "sft": "sequences/examples"},
    techniques=frozenset(
        [
            *("parallelism=single", "parallelism=spmd", "offload=none", "trained=full", "adapter=none"),
            *("precision=fp32",),
            *("precision=bf16", "attention=eager", "checkpointing=off", "checkpointing=full", "optimizer=adamw"),
            *("loss=plain", "compile=off", "packing=padded", "packing=packed", "data-loading=in-process"),
            *("cpu-threads=default", "engine=transformers", "quantization=none", "cache=dynamic", "speculation=off"),
        ]
    ),
    multiple=LANES,
    explain_work=explain_work,
    reasons=REASONS,
    untested=(
        "no TPU was there: the project was run on the CPU runtime of the same compiler alone (PJRT_DEVICE=CPU, one device and "
        "several, to the losses of eager PyTorch), so smoke-run first",
        "the images of TPU VMs (tpu-ubuntu2204-base, v2-alpha-tpuv5-lite, v2-alpha-tpuv6e) have Python 3.10, and the project needs 3.11: "
        "install one and say `make setup PYTHON=python3.11`",
        "slices of several hosts: one process a host is started by your own tool (gcloud ... --worker=all), and was not run",
        "torch 2.9 is the last that PyTorch/XLA has a build for; it is below this template's floor for torch.load (CVE-2026-24747), so "
        "the project reads and writes safetensors and JSON alone",
    ),
    beside=(
        f"torch-tpu, PyTorch's own successor of PyTorch/XLA (--framework torch-tpu plans for it): {WITHOUT_ACCELERATE}, so no project is made of it",
        "JAX with Flax (MaxText) is what larger TPU trainings are written in: Transformers 5 has no Flax models, so a project would "
        "be a model of its own, which is not made here",
    ),
)
BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}
"""chips of one process, in each direction of the mesh: without them the runtime waits for the chips that it is not shown
(https://github.com/pytorch/xla/pull/4121; Ray sets the same, python/ray/_private/accelerators/tpu.py)"""


def set_bounds(count: int) -> str | None:
    return f"TPU_PROCESS_BOUNDS=1,1,1 TPU_CHIPS_PER_PROCESS_BOUNDS={BOUNDS[count]}" if count in BOUNDS else None


REACHED = {"tpu-v4": 30.75}
"""GiB that a program may have, where the runtime keeps more than a plan leaves free anyway: "reserved 1.25G"
(https://github.com/erfanzar/EasyDeL/issues/166)"""


def reach_memory(device: Device, memory_bytes: int) -> int:
    return min(memory_bytes, round(REACHED[device.id] * 2**30)) if device.id in REACHED else memory_bytes


ON_A_TPU = replace(SKELETON, packages=(*SKELETON.packages, "libtpu"))
"""With the runtime of a TPU: torch-xla alone finds no device (its extra "tpu" asks for that version)"""
TPU = Vendor(
    name="google",
    devices=(("google", "tpu"), ("google", "gpu")),
    title="TPU",
    torch_device="xla",
    guard="xla",
    backend="xla",
    collectives="the inter-chip links",
    visible_devices="TPU_VISIBLE_CHIPS",
    set_beside=set_bounds,
    sees_all=True,
    choose_build=lambda role, device, driver: "xla" if role == ROLE else NO_BUILD.name,
    abilities={
        "bf16": has,
        "fp16": lambda device: f"{device.name} has bf16, which is as fast and cannot overflow",
        "fsdp": has,
        "sharding-marks": has,
    },
    missing={"deepspeed": "DeepSpeed was not looked at there", "bitsandbytes": "bitsandbytes has no kernels for it"},
    pad_to_multiple_of=LANES,
    environment=(("PJRT_DEVICE", "TPU"),),
    contain=None,
    reach_memory=reach_memory,
    framework="pytorch-xla",
    skeleton=ON_A_TPU,
)
VENDORS = (
    TPU,
    replace(
        TPU,
        name="torch-tpu",
        devices=(("torch-tpu", "tpu"),),
        torch_device="tpu",
        guard="tpu",
        choose_build=lambda role, device, driver: NO_BUILD.name,
        framework="torch-tpu",
        skeleton=None,
        explain_unemitted=lambda device: WITHOUT_ACCELERATE,
    ),
    replace(
        TPU,
        name="xla-cpu",
        devices=(("pytorch-xla", "cpu"),),
        title="CPU",
        missing={},
        environment=(("PJRT_DEVICE", "CPU"),),
        pad_to_multiple_of=32,
        skeleton=replace(
            SKELETON,
            multiple=32,
            techniques=SKELETON.techniques - {"parallelism=spmd"},
            untested=(
                "this is the CPU runtime of a compiler for TPUs: a way to try a TPU's project, and slower than PyTorch's own",
            ),
        ),
    ),
)
