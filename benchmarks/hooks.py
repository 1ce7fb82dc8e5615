"""Host time that a sharding's hooks add to a block of a Llama, in turn with the model that is not sharded.

usage: python benchmarks/hooks.py [fsdp2 fsdp1 zero3 zero2 ddp] [--adapters] [--checkpointing] [--rounds N]
                                                      writes benchmarks/results/hooks.json (rows of other forms stay)

One process over gloo, one thread, blocks so small (64 wide, 8 tokens) that all of their time is the host's. CPU seconds of the thread
that issues, the fastest of all rounds; a block's are the difference of models of 16 and of 4 blocks over 12.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from flattened import name_processor

RESULTS = Path(__file__).resolve().parent / "results" / "hooks.json"
FORMS = ("fsdp2", "fsdp1", "zero3", "zero2", "ddp")
FEW, MANY = 4, 16
WIDTH, TOKENS = 64, 8
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 1_000_000,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": True}},
    "zero_allow_untested_optimizer": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forms", nargs="*", default=list(FORMS))
    parser.add_argument("--adapters", action="store_true", help="LoRA of all linear layers")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--here", action="store_true", help="in this process, one form: what each is started with")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(measure(asked)))
        sys.stdout.flush()
        os._exit(0)  # process groups and DeepSpeed's threads are left as they are
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    for form in asked.forms:
        command = [sys.executable, __file__, form, "--here", "--rounds", str(asked.rounds)]
        command += ["--adapters"] * asked.adapters + ["--checkpointing"] * asked.checkpointing
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        row = json.loads(shown.splitlines()[-1])
        print(row, flush=True)
        names = ("form", "adapters", "checkpointing")
        rows = [other for other in rows if any(other[name] != row[name] for name in names)] + [row]
        result = {
            "schema": 1,
            "what": "CPU milliseconds of the issuing thread for a block, forward and backward: not sharded, and sharded over one process",
            "device": f"{name_processor()}, one thread, other programs beside it",
            "versions": {name: version(name) for name in ("torch", "transformers", "deepspeed", "peft")},
            "rows": rows,
        }
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(asked: argparse.Namespace) -> dict:
    form = asked.forms[0]
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_SIZE="1"
    )
    os.environ.update(CROSS_RANK="0", CROSS_SIZE="1", DS_ACCELERATOR="cpu")
    import torch

    torch.set_num_threads(1)
    if form in WRAPPED:  # DeepSpeed makes its own
        torch.distributed.init_process_group("gloo")
    steps: dict[tuple[str, int], Callable[[], None]] = {}
    for blocks in (FEW, MANY):
        steps["plain", blocks] = take_step(build_model(blocks, asked))
        steps[form, blocks] = shard(build_model(blocks, asked), form)
    best = dict.fromkeys(steps, float("inf"))
    for number in range(asked.rounds + 4):
        for name, step in steps.items():
            began = time.thread_time()
            step()
            if number >= 4:  # first steps trace, allocate and learn the order of modules
                best[name] = min(best[name], time.thread_time() - began)
    plain, sharded = (1000 * (best[name, MANY] - best[name, FEW]) / (MANY - FEW) for name in ("plain", form))
    row = {"form": form, "adapters": asked.adapters, "checkpointing": asked.checkpointing, "rounds": asked.rounds}
    return row | {"plain_ms": round(plain, 3), "sharded_ms": round(sharded, 3)}


def build_model(blocks: int, asked: argparse.Namespace):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": blocks, "vocab_size": WIDTH}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, use_cache=False))
    if asked.adapters:
        model = get_peft_model(model, LoraConfig(target_modules="all-linear", r=8, task_type="CAUSAL_LM"))
    if asked.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    return model.to(torch.bfloat16).train()  # adapters too: FSDP1 has one dtype a unit


def take_step(model) -> Callable[[], None]:
    tokens = draw_tokens()
    return lambda: model(input_ids=tokens, labels=tokens).loss.backward()


def draw_tokens():
    import torch

    return torch.randint(0, WIDTH, (1, TOKENS))


def shard(model, form: str) -> Callable[[], None]:
    by_stage = re.fullmatch(r"zero(\d)", form)
    return shard_by_deepspeed(model, int(by_stage[1])) if by_stage else take_step(WRAPPED[form](model))


def divide_by_fsdp2(model):
    from torch.distributed.fsdp import fully_shard

    for block in list_blocks(model):
        fully_shard(block)
    fully_shard(model)
    return model


def divide_by_fsdp1(model):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({type(list_blocks(model)[0])})
    device = torch.device("cpu")
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, use_orig_params=True, device_id=device)


def copy_by_ddp(model):
    import torch

    return torch.nn.parallel.DistributedDataParallel(model)


WRAPPED = {
    function.__name__.rpartition("_")[2]: function for function in (divide_by_fsdp2, divide_by_fsdp1, copy_by_ddp)
}


def list_blocks(model):
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return base.model.layers


def shard_by_deepspeed(model, stage: int) -> Callable[[], None]:
    import deepspeed

    # as the Trainer sets them by the width of a model: norms stay whole, weights are gathered
    zero = {"stage": stage, "stage3_param_persistence_threshold": 10 * WIDTH}
    zero["stage3_prefetch_bucket_size"] = int(0.9 * WIDTH * WIDTH)
    trained = [p for p in model.parameters() if p.requires_grad]
    config = DEEPSPEED | {"zero_optimization": zero}
    engine = deepspeed.initialize(model=model, config=config, model_parameters=trained)[0]
    tokens = draw_tokens()

    def step() -> None:
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()

    return step


if __name__ == "__main__":
    main()
