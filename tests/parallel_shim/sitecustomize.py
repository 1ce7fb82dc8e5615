"""For tests only, put on PYTHONPATH: lets Accelerate and DeepSpeed divide a model over CPU processes as they would over GPUs.

Accelerate shards nothing on a CPU, and says nothing: it is told that the processes are GPU processes that talk over gloo.
DeepSpeed would compile a shared-memory operator for a minute. Nothing that is generated knows of this file.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

PATCHES = {}


def after_import(name):
    def register(function):
        PATCHES[name] = function
        return function

    return register


@after_import("accelerate.state")
def gloo_instead_of_nccl(module):
    import torch

    kinds = module.DistributedType

    def backend(self, cpu=False, sagemaker_dp=False, backend=None):
        return ("gloo", kinds.MULTI_GPU) if "LOCAL_RANK" in os.environ else (None, kinds.NO)

    def device(self):
        self.device = torch.device("cpu")

    if "PERFGEN_TEST_GPUS" in os.environ:
        module.PartialState._prepare_backend = backend
        module.PartialState.set_device = device


@after_import("transformers.training_args")
def bf16_as_on_a_gpu(module):
    if "PERFGEN_TEST_GPUS" in os.environ:
        module.is_torch_bf16_gpu_available = lambda: True


@after_import("deepspeed.comm.torch")
def no_compiled_operator(module):
    module.build_shm_op = lambda: None


@after_import("bitsandbytes.nn.modules")
def weights_as_on_a_gpu(module):
    """A project for a GPU does not know that a CPU with AVX512-BF16 packs weights in eval mode, for a kernel without gradients."""
    module.has_avx512bf16 = lambda: False


@after_import("wrapping")
def write_down_what_is_held(module):
    """Beside the project's own look at the model: what this process really holds, for the test to judge."""
    describe_wrapping = module.describe_wrapping

    def describe(trainer):
        description = describe_wrapping(trainer)
        wrapped = getattr(trainer, "model_wrapped", trainer.model)  # a loop of its own wraps nothing
        held = {"full": 0, "local": 0, "kinds": [kind.__name__ for kind in type(wrapped).__mro__]}
        for weight in trainer.model.parameters():
            local = weight.to_local() if hasattr(weight, "to_local") else getattr(weight, "ds_tensor", weight)
            held["full"] += getattr(weight, "ds_numel", weight.numel())
            held["local"] += local.numel()
        optimizer = getattr(wrapped, "optimizer", None)
        if hasattr(optimizer, "single_partition_of_fp32_groups"):
            held["states"] = sum(part.numel() for part in optimizer.single_partition_of_fp32_groups)
        Path(os.environ["PERFGEN_TEST_HELD"], f"{os.environ['RANK']}.json").write_text(json.dumps(held))
        return description

    if "PERFGEN_TEST_HELD" in os.environ:
        module.describe_wrapping = describe


@after_import("stopping")
def slow_steps(module):
    """So that a signal comes in the middle of a run."""
    seconds = float(os.environ.get("PERFGEN_TEST_SECONDS_A_STEP", 0))
    on_step_end = module.SaveOnSignal.on_step_end

    def slow(*args, **kwargs):
        time.sleep(seconds)
        return on_step_end(*args, **kwargs)

    module.SaveOnSignal.on_step_end = slow


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in PATCHES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            PATCHES[name](module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
