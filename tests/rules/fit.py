"""B. Does it fit (R101 to R112): what is done about memory, and that nothing is where there is enough."""

from __future__ import annotations

from making import H100, gpu, llama

from generator.case.request import Request
from generator.case.sources import Work
from generator.decide.plan import Planned
from generator.emit.project import describe_project
from generator.inputs.model_source import ModelSource
from rules.table import (
    BIG_GPU,
    NVME,
    PLAIN_CPU,
    RTX_4090,
    Case,
    Rule,
    both,
    chosen,
    joined,
    medium,
    on,
    pin,
    plan,
    room,
    tiny,
    without,
)

LONG = {"task": "causal-lm", "seq_len": 8192}
ADAPTERS = {"train": "lora", **LONG}
SMALL_HOST = {"host_gib": 20}
GPU_24, GPU_46 = gpu("9.0", 24, 989, 3.35e12, "a 24 GiB GPU"), gpu("9.0", 46, 989, 3.35e12, "a 46 GiB GPU")
GPU_12 = gpu("8.9", 12, 120, 0.5e12, "a 12 GiB GPU")
OFFLOADED = on(RTX_4090, medium())
SLOW_PAIR = joined(on(H100, medium(), devices=2, seq_len=512, global_batch=8), "sys")


def accumulates(of: Case) -> bool:
    """The micro-batch is the largest that fits, and accumulation makes up for the rest."""
    run = plan(of).best.execution
    split = [c for c in plan(of).splits if c.fits]
    largest = max(c.execution.micro_batch for c in split)
    whole = run.micro_batch * run.accumulation * run.dp == of.workload.global_batch
    return run.accumulation > 1 and run.micro_batch == largest and whole


def parts(*names: str):
    def look(of: Case) -> bool:
        told = {part.name for part in plan(of).best.estimate.memory}
        return set(names) <= told

    return look


def no_memory_technique(of: Case) -> bool:
    choice = plan(of).best.choice
    plain = {"checkpointing": "off", "optimizer": "adamw-fused", "offload": "none", "precision": "bf16"}
    return plan(of).best.risk == 0 and choice.items() >= plain.items()


def mixed_costs_more(of: Case) -> bool:
    """The peak of autocast over that of fp32, micro-batch 1: the copies in 16 bits against the activations that shrink."""
    run = plan(of).best.execution
    mixed = run.but(weights_dtype="float32", autocast_dtype="bfloat16", micro_batch=1, accumulation=2, compile=None)
    price = room(of).cost.peak_gib
    return price(mixed) > price(mixed.but(autocast_dtype=None))


def multiples_of_eight(of: Case) -> bool:
    """What the templates of ``train.py`` read."""
    source = ModelSource(
        kind="folder", path="m", config="{}", has_weights=True, has_tokenizer=True, has_chat_template=False, name="m"
    )
    work = Work(request=Request(model="m"), source=source, data=None, spec=of.model, workload=of.workload)
    return describe_project(Planned(work=work, plan=plan(of)), None).pad_to_multiple_of == 8


def divided(*names: str):
    """One of these forms is chosen."""
    return lambda of: plan(of).best.choice["parallelism"] in names


RULES = (
    Rule(
        id="R101",
        words="training holds weights, gradients, states and activations",
        look=parts("weights", "optimizer states", "context"),
        takes=(on(), on(train="lora"), on(seq_len=128, global_batch=1)),
        leaves=on(mode="infer"),
    ),
    Rule(
        id="R102",
        words="what fits gets no memory technique",
        look=no_memory_technique,
        takes=(on(BIG_GPU, llama()), on()),
        leaves=(OFFLOADED, on(GPU_46, llama(), **ADAPTERS)),
    ),
    Rule(
        id="R103",
        words="accumulation is what the largest fitting micro-batch leaves",
        look=accumulates,
        takes=(on(RTX_4090, seq_len=8192), on(H100, llama(), train="lora")),
        leaves=on(BIG_GPU, seq_len=2048),
    ),
    Rule(
        id="R104",
        words="activations are recomputed where they do not fit, in part where that is enough",
        look=without(chosen("checkpointing", "off")),
        takes=(on(GPU_46, llama(), **ADAPTERS), on(GPU_24, llama(), **ADAPTERS)),
        leaves=on(BIG_GPU, llama(), **ADAPTERS),
    ),
    Rule(
        id="R105",
        words="sequences that fit no device even so are divided",
        look=divided("context", "ulysses", "tensor", "tensor-pipeline"),
        takes=(
            pin(on(GPU_24, medium(), devices=8, train="lora", seq_len=131072, global_batch=1), "checkpointing=full"),
            on(GPU_24, medium(), devices=8, train="lora", seq_len=131072, global_batch=1, optimize_for="time"),
        ),
        leaves=on(GPU_24, medium(), devices=8, train="lora", seq_len=2048),
    ),
    Rule(
        id="R106",
        words="smaller optimizer states where nothing else fits: 8 bits before a factored moment",
        look=chosen("optimizer", "adamw-8bit", "paged-adamw-8bit", "adamw-torchao-8bit"),
        takes=on(gpu("9.0", 22, 989, 3.35e12, "a 22 GiB GPU"), medium(), seq_len=1024, **SMALL_HOST),
        leaves=(on(H100, medium(), seq_len=1024), on(PLAIN_CPU)),
    ),
    Rule(
        id="R107",
        words="weights that are too large to serve are quantized",
        look=without(chosen("quantization", "none")),
        takes=on(GPU_12, llama(), mode="infer"),
        leaves=on(H100, llama(), mode="infer"),
    ),
    Rule(
        id="R108",
        words="on one device, what does not fit is offloaded by DeepSpeed",
        look=both(chosen("parallelism", "zero2", "zero3"), without(chosen("offload", "none"))),
        takes=(OFFLOADED, on(H100, llama())),
        leaves=(on(RTX_4090), on(BIG_GPU, llama())),
    ),
    Rule(
        id="R109",
        words="to a disk where the host's memory is too small, and not at all without one",
        look=chosen("offload", "optimizer-nvme", "all-nvme"),
        takes=on(H100, llama(), host_gib=64, disks=NVME),
        leaves=(on(H100, llama(), host_gib=256, disks=NVME), on(H100, llama(), host_gib=64)),
    ),
    Rule(
        id="R110",
        words="no DeepSpeed and no offload for what fits without",
        look=both(chosen("parallelism", "single"), chosen("offload", "none")),
        takes=(on(), on(BIG_GPU, llama(), disks=NVME), SLOW_PAIR),
        leaves=OFFLOADED,
    ),
    Rule(
        id="R111",
        words="16-bit batches are padded to multiples of eight",
        look=multiples_of_eight,
        takes=on(task="text-classification"),
        leaves=on(PLAIN_CPU, task="text-classification"),
    ),
    Rule(
        id="R112",
        words="mixed precision costs memory for a large model and a small batch",
        look=mixed_costs_more,
        takes=on(BIG_GPU, llama(), seq_len=128, global_batch=1),
        leaves=on(BIG_GPU, tiny(layers=24), seq_len=8192, global_batch=1),
    ),
)
