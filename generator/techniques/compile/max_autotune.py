from typing import ClassVar

from generator.techniques.base import Published
from generator.techniques.compile.reduce_overhead import ReduceOverhead


class MaxAutotune(ReduceOverhead):
    """torch.compile that times several kernels for each product and takes the fastest, in CUDA graphs (mode max-autotune).

    What it does: as reduce-overhead; matrix products of unusual shapes may get a better kernel than cuBLAS's.
    When it loses: in short runs: it times every candidate of every product before the first step.
    Known problems: those of reduce-overhead; what timing takes is not in the estimate, and neither is what it gains.
    """

    name = "max-autotune"
    mode: ClassVar[str] = "max-autotune"
    adds = 3
    request_only = "what its timing of kernels takes and gains is not in the estimate, and it was not run on a GPU"
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/en/torch_compile",
            "max-autotune: times kernels at compilation and takes the fastest (longer compilation)",
        ),
    )
