"""A. Validity gates (R001 to R050): what is refused, because it raises or silently does nothing."""

from __future__ import annotations

from dataclasses import replace

from making import A100, H100, SMALL, T4, V100, case, cost, llama

from generator.decide.plan import decide
from generator.emit.evaluation import keeps_best
from rules.table import (
    BF16_CPU,
    PLAIN_CPU,
    RTX_4090,
    WITH_BF16,
    Case,
    Rule,
    both,
    by_transformers,
    chosen,
    conflicting,
    emits,
    encoder,
    error,
    laid_out,
    layouts,
    mixture,
    on,
    pin,
    plan,
    refused,
    room,
    tiny,
    without,
    written,
)

FOUR, TWO_NODES = on(devices=4), on(devices=4, nodes=2)
PARTS_OF_3 = llama(**SMALL | {"heads": 6, "kv_heads": 6, "hidden": 768, "ffn": 1536})
BF16_CPU_CASE = on(BF16_CPU, features=WITH_BF16)
EP_NODES = case(H100, mixture(8), devices=4, nodes=3, global_batch=24)
DEEPSPEED_KEYS = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("bf16", "fp16", "zero_optimization", "zero_force_ds_cpu_optimizer", "zero_allow_untested_optimizer", "aio"),
    *("communication_data_type", "data_types", "steps_per_print", "wall_clock_breakdown", "optimizer", "scheduler"),
}
"""top-level keys of deepspeed.json (DeepSpeed 0.19, docs "config-json"), which it reads without complaint about others"""


def trainer_recomputes(of: Case) -> bool:
    """The Trainer then sets use_cache=False and find_unused_parameters=False by itself: nothing may say otherwise."""
    told = written(of)
    other = told.get("ddp_find_unused_parameters") == "True" or "use_cache" in written(of, "model_arguments")
    return told.get("activation_checkpointing") == "True" and not other


def fsdp_recomputes(of: Case) -> bool:
    told = written(of, "accelerate").get("fsdp_config.fsdp_activation_checkpointing")
    return bool(told) and written(of).get("activation_checkpointing") != "True"


def sharded_checkpoints(of: Case) -> bool:
    kind = written(of, "accelerate").get("fsdp_config.fsdp_state_dict_type")
    return kind == "SHARDED_STATE_DICT" and "save_only_model" not in written(of)


def known_deepspeed_keys(of: Case) -> bool:
    told = {key.split(".")[0] for key in written(of, "deepspeed")}
    return bool(told) and told <= DEEPSPEED_KEYS


def prefetches(of: Case) -> bool:
    told = written(of)
    return "dataloader_prefetch_factor" in told and int(told["dataloader_num_workers"]) > 0


def every_part_fits_together(of: Case) -> bool:
    """Expert parallel sizes divide the experts and the devices over which the rest is sharded; some size exists."""
    found = layouts(of, "expert")
    return bool(found) and all(of.model.experts % x.ep == 0 and (x.shard * x.tp) % x.ep == 0 for x in found)


def pipelines(of: Case) -> bool:
    found = [x for name in ("pipeline", "tensor-pipeline") for x in layouts(of, name)]
    return bool(found) and all(x.pp > 1 and x.strategy in ("none", "zero1", "fsdp_shard_grad_op") for x in found)


def parts_with_plain_copies(of: Case) -> bool:
    """Tensor parts whose copies hold everything: Transformers joins them with sharded copies only. Copies of sequence parts sum
    their gradients themselves (loop.py)."""
    split = [x for name in room(of).layouts for x in room(of).layouts[name] if x.tp > 1]
    return any(x.replicate > 1 and x.shard == 1 and x.pp == 1 for x in split)


def dividing_parts(of: Case) -> bool:
    """Copies beside tensor parts exist, and each of them shards."""
    found = [x for x in layouts(of, "tensor-fsdp2") if x.dp > 1]
    return bool(found) and not parts_with_plain_copies(of)


def with_kernels(of: Case) -> Case:
    """A stack in which the kernels hub can be used."""
    return replace(of, stack=replace(of.stack, packages=(*of.stack.packages, ("kernels", "0.18.2")), missing=()))


def one_device_a_process(of: Case) -> bool:
    return written(of, "model_arguments").get("device_map") == '{"": args.local_process_index}'


RULES = (
    Rule(
        id="R001",
        words="one half precision at a time",
        look=error("contradict"),
        takes=(pin(on(), "precision=bf16", "precision=fp16"), pin(on(), "precision=bf16", "precision=tf32")),
        leaves=(pin(on(), "precision=bf16"), pin(on(T4), "precision=fp16")),
    ),
    Rule(
        id="R002",
        words="bf16 only on hardware that has it, whatever PyTorch says",
        look=both(refused("precision=bf16", "compute capability 8.0"), chosen("precision", "fp16")),
        takes=(on(T4), on(V100)),
        leaves=(on(A100), on(H100)),
    ),
    Rule(
        id="R003",
        words="without an accelerator, bf16 needs the CPU's instructions",
        look=refused("precision=bf16", "no bf16 instructions"),
        takes=on(PLAIN_CPU),
        leaves=BF16_CPU_CASE,
    ),
    Rule(
        id="R004",
        words="tf32 only on CUDA, compute capability 8.0 or more",
        look=both(refused("precision=tf32"), without(lambda of: "tf32" in written(of))),
        takes=(on(T4), on(PLAIN_CPU)),
        leaves=(on(A100), on(RTX_4090)),
    ),
    Rule(
        id="R005",
        words="recomputing activations leaves use_cache and find_unused_parameters to the Trainer",
        look=trainer_recomputes,
        takes=(
            pin(on(), "checkpointing=full"),
            pin(FOUR, "checkpointing=full", "parallelism=ddp"),
            pin(on(H100, encoder(), task="text-classification", seq_len=512), "checkpointing=full"),
        ),
        leaves=pin(FOUR, "checkpointing=off"),
    ),
    Rule(
        id="R006",
        words="under FSDP, FSDP recomputes, and the Trainer does not",
        look=fsdp_recomputes,
        takes=(
            pin(FOUR, "parallelism=fsdp2", "checkpointing=full"),
            pin(TWO_NODES, "parallelism=hsdp", "checkpointing=full"),
        ),
        leaves=pin(FOUR, "parallelism=ddp", "checkpointing=full"),
    ),
    Rule(
        id="R007",
        words="saved activations are offloaded from an accelerator only",
        look=refused("checkpointing=offloaded", "no accelerator"),
        takes=on(PLAIN_CPU),
        leaves=(on(), on(T4)),
    ),
    Rule(
        id="R008",
        words="DeepSpeed or FSDP, never both",
        look=error("contradict"),
        takes=pin(FOUR, "parallelism=zero3", "parallelism=fsdp2"),
        leaves=(pin(FOUR, "parallelism=zero3"), pin(FOUR, "parallelism=fsdp2")),
    ),
    Rule(
        id="R011",
        words="sharded checkpoints are whole ones: not with save_only_model",
        look=sharded_checkpoints,
        takes=pin(FOUR, "parallelism=fsdp2"),
        leaves=pin(FOUR, "parallelism=fsdp2-at-load"),
    ),
    Rule(
        id="R010",
        words="a sharded model that is saved without its optimizer does not end with its best checkpoint",
        look=lambda of: keeps_best(decide(of, cost(of)).best.layout),
        takes=(pin(FOUR, "parallelism=fsdp2"), pin(FOUR, "parallelism=zero3")),
        leaves=pin(FOUR, "parallelism=fsdp2-at-load"),
    ),
    Rule(
        id="R012",
        words="a model sharded by DistributedConfig is saved without its optimizer",
        look=emits("save_only_model", "True"),
        takes=pin(FOUR, "parallelism=fsdp2-at-load"),
        leaves=pin(FOUR, "parallelism=fsdp2"),
    ),
    Rule(
        id="R013",
        words="device_map, tensor parallelism and ZeRO-3 do not share a model",
        look=error(),
        takes=(
            pin(by_transformers(on(devices=4, mode="infer")), "parallelism=device-map", "parallelism=tensor"),
            pin(on(devices=4, train="qlora"), "parallelism=zero3"),
        ),
        leaves=(
            pin(by_transformers(on(devices=4, mode="infer")), "parallelism=device-map"),
            pin(FOUR, "parallelism=zero3"),
        ),
    ),
    Rule(
        id="R014",
        words="no training on a model that is spread by device_map",
        look=error("no such technique"),
        takes=pin(FOUR, "parallelism=device-map"),
        leaves=pin(by_transformers(on(devices=4, mode="infer")), "parallelism=device-map"),
    ),
    Rule(
        id="R015",
        words="quantized weights are trained through adapters, and not compiled",
        look=both(refused("compile=default", "quantized"), lambda of: "get_peft_model" in str(plan(of).edits)),
        takes=on(train="qlora"),
        leaves=(on(train="lora"), on(train="full")),
    ),
    Rule(
        id="R016",
        words="quantized weights: one device a process, and they are not sharded",
        look=both(one_device_a_process, chosen("parallelism", "ddp")),
        takes=tuple(
            on(**several, train="qlora", optimize_for="time")
            for several in ({"devices": 4}, {"devices": 2, "nodes": 2})
        ),
        leaves=(on(train="qlora"), on(devices=4, train="lora")),
    ),
    Rule(
        id="R019",
        words="prefetch only with workers",
        look=prefetches,
        takes=pin(on(), "data-loading=workers"),
        leaves=pin(on(), "data-loading=in-process"),
    ),
    Rule(
        id="R020",
        words="low-rank optimizers name their targets",
        look=emits("optim_target_modules"),
        takes=(pin(on(), "optimizer=galore"), pin(on(), "optimizer=apollo")),
        leaves=(on(), pin(on(), "optimizer=adamw-8bit")),
    ),
    Rule(
        id="R022",
        words="optimizers that are gone cannot be asked for; fused AdamW is their successor",
        look=error("no such technique", "adamw-fused"),
        takes=(pin(on(), "optimizer=adamw-apex-fused"), pin(on(), "optimizer=adamw-hf")),
        leaves=pin(on(), "optimizer=adamw-fused"),
    ),
    Rule(
        id="R023",
        words="tensor parts divide heads, key-value heads and the feed-forward width",
        look=refused("parallelism=tensor", "key-value heads", "feed-forward"),
        takes=(
            on(H100, tiny(kv_heads=1), devices=2),
            on(H100, tiny(heads=9, hidden=576, kv_heads=3), devices=2),
            on(H100, tiny(ffn=1407), devices=2),
        ),
        leaves=(FOUR, on(H100, PARTS_OF_3, devices=3, global_batch=33)),
    ),
    Rule(
        id="R024",
        words="expert parts divide the experts",
        look=refused("parallelism=expert", "cannot be divided evenly"),
        takes=on(H100, mixture(3, layers=2), devices=2),
        leaves=(on(H100, mixture(8, layers=2), devices=2), on(H100, mixture(6, layers=2), devices=4)),
    ),
    Rule(
        id="R025",
        words="expert parts divide the devices that shard the rest",
        look=both(every_part_fits_together, laid_out("expert-fsdp2", nodes=3, ep=4)),
        takes=EP_NODES,
        leaves=(case(H100, mixture(8), devices=4, nodes=4), case(H100, llama(), devices=4)),
    ),
    Rule(
        id="R026",
        words="under a pipeline no weights are gathered for each micro-batch: plain copies, ZeRO-1, or FSDP of gradients and states",
        look=pipelines,
        takes=(FOUR, on(devices=8), on(devices=8, nodes=4)),
        leaves=on(),
    ),
    Rule(
        id="R027",
        words="the sizes multiply to the processes that are started",
        look=without(laid_out("tensor", per_node=3)),
        takes=(on(devices=3), on(H100, PARTS_OF_3, devices=3, global_batch=33)),  # rows of 2,048 tokens
        leaves=on(H100, PARTS_OF_3, devices=3, global_batch=33, seq_len=3072),
    ),
    Rule(
        id="R028",
        words="Ulysses divides heads and sequence",
        look=without(laid_out("ulysses", cp=4)),
        takes=(on(H100, PARTS_OF_3, devices=4), on(devices=4, seq_len=2050)),
        leaves=FOUR,
    ),
    Rule(
        id="R029",
        words="context or sequence parallelism, not both",
        look=error("contradict"),
        takes=pin(FOUR, "parallelism=context", "parallelism=ulysses"),
        leaves=pin(FOUR, "parallelism=context"),
    ),
    Rule(
        id="R030",
        words="tensor parts are joined with sharded copies, not with plain ones",
        look=dividing_parts,
        takes=(FOUR, TWO_NODES),
        leaves=on(devices=2),
    ),
    Rule(
        id="R031",
        words="ring attention is FSDP2, SDPA and a causal mask",
        look=both(
            conflicting("parallelism=context", "attention=eager", "SDPA"),
            laid_out("context-fsdp2", strategy="fsdp_full_shard"),
        ),
        takes=FOUR,
        leaves=on(H100, encoder(), devices=4, task="text-classification", seq_len=512),
    ),
    Rule(
        id="R032",
        words="no tensor parallelism on a CPU",
        look=refused("parallelism=tensor", "there is one CPU"),
        takes=on(PLAIN_CPU),
        leaves=FOUR,
    ),
    Rule(
        id="R033",
        words="no FSDP where it silently becomes DDP",
        look=refused("parallelism=fsdp2"),
        takes=on(PLAIN_CPU),
        leaves=FOUR,
    ),
    Rule(
        id="R034",
        words="CUDA graphs only where shapes stay the same",
        look=error("cannot stand together", "fixed shapes"),
        takes=pin(by_transformers(on(mode="infer")), "compile=static-decode", "cache=dynamic"),
        leaves=pin(by_transformers(on(mode="infer")), "compile=static-decode", "cache=static"),
    ),
    Rule(
        id="R035",
        words="generate compiles nothing that cannot be compiled",
        look=both(chosen("compile", "off"), chosen("cache", "dynamic")),
        takes=(
            pin(by_transformers(on(mode="infer")), "quantization=bnb-nf4"),
            pin(by_transformers(on(mode="infer")), "quantization=bnb-int8"),
            by_transformers(on(PLAIN_CPU, mode="infer")),
        ),
        leaves=by_transformers(on(mode="infer")),
    ),
    Rule(
        id="R036",
        words="assisted generation: one answer at a time, on request, and from a cache that grows",
        look=both(chosen("speculation", "prompt-lookup"), chosen("cache", "dynamic")),
        takes=pin(by_transformers(on(mode="infer")), "speculation=prompt-lookup"),
        leaves=(by_transformers(on(mode="infer")), by_transformers(on(PLAIN_CPU, mode="infer"))),
    ),
    Rule(
        id="R037",
        words="flash attention is 16-bit and CUDA: otherwise SDPA",
        look=both(refused("attention=flash-attention", "compute capability 8.0"), chosen("attention", "sdpa")),
        takes=(on(T4), on(PLAIN_CPU)),
        leaves=(with_kernels(on()), on()),
    ),
    Rule(
        id="R041",
        words="quantizers without an operator are not offered; bitsandbytes is",
        look=error("no such technique", "bnb-nf4"),
        takes=(
            pin(by_transformers(on(mode="infer")), "quantization=hqq"),
            pin(by_transformers(on(mode="infer")), "quantization=higgs"),
        ),
        leaves=pin(by_transformers(on(mode="infer")), "quantization=bnb-nf4"),
    ),
    Rule(
        id="R048",
        words="deepspeed.json holds only keys that DeepSpeed reads",
        look=known_deepspeed_keys,
        takes=(
            pin(FOUR, "parallelism=zero1"),
            pin(FOUR, "parallelism=zero2", "offload=optimizer-cpu"),
            pin(FOUR, "parallelism=zero3", "offload=all-cpu"),
        ),
        leaves=pin(FOUR, "parallelism=fsdp2"),
    ),
    Rule(
        id="R050",
        words="a mesh of two dimensions needs Accelerate 1.12",
        look=lambda of: (
            "parallelism_config.parallelism_config_dp_shard_size" in written(of, "accelerate")
            and tuple(map(int, (of.stack.version("accelerate") or "0").split("."))) >= (1, 12)
        ),
        takes=pin(TWO_NODES, "parallelism=hsdp"),
        leaves=pin(TWO_NODES, "parallelism=fsdp2"),
    ),
)
