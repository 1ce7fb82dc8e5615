from typing import ClassVar

from generator.techniques.base import Published, Technique
from generator.techniques.edits import Edits
from generator.techniques.launch import is_by_accelerate


class OptimizerCpu(Technique):
    """Optimizer states and float32 master weights in host memory, updated by the CPU.

    16 bytes a parameter move from the devices to the host; every step sends gradients there and weights back. For models whose
    states do not fit even when divided.
    """

    axis = "offload"
    name = "optimizer-cpu"
    resort = 2
    optimizer: ClassVar[str] = "cpu"
    params: ClassVar[str] = "none"
    strategies: ClassVar[tuple[str, ...]] = ("zero2", "zero3")
    evidence = (Published("https://arxiv.org/abs/2101.06840", "ZeRO-Offload: 13B parameters on one GPU of 32 GB"),)

    def obstacle(self, case):
        if case.on_cpu or case.portable:
            return "there is no accelerator to offload from"
        return self.lacks(case)

    def lacks(self, case) -> str | None:
        memory = case.hardware.memory
        return None if memory.total_bytes or memory.limit_bytes else "the host's memory could not be read"

    def clash(self, other, case):
        if other.axis == "parallelism" and other.name not in self.strategies:
            return f"only {' and '.join(self.strategies)} can offload this"
        if other.axis == "optimizer" and other.name not in ("adamw", "adamw-fused"):
            return "the update on the host is written for AdamW"
        return None

    def effects(self, case):
        return {"offload_optimizer": self.optimizer, "offload_params": self.params}

    def edits(self, case):
        if is_by_accelerate(case.layout):
            return Edits(accelerate=(("fsdp_config.fsdp_offload_params", True),))
        settings: dict[str, object] = {
            # PyTorch's fused AdamW is vectorized on CPUs too; DeepSpeed's own has to be compiled, with nvcc
            "zero_force_ds_cpu_optimizer": False,
        }
        for what, where in (("optimizer", self.optimizer), ("param", self.params)):
            if where != "none":
                block = f"zero_optimization.offload_{what}"
                settings |= {f"{block}.device": where, f"{block}.pin_memory": True} | self.place(block, case)
        return Edits(deepspeed=tuple(settings.items()))

    def place(self, block: str, case) -> dict[str, object]:
        """More of one offload block of deepspeed.json."""
        return {}
