from generator.techniques.base import Published, Technique
from generator.techniques.edits import argument
from generator.techniques.precision.fp32 import no_autocast, told, weights_edits


class Tf32(Technique):
    """Keep 32 bits, let matrix products round their inputs to 19 bits (TF32).

    One line, no loss scaling, up to eight times the matrix rate of FP32 on Ampere and later. Slower than bf16 and saves no
    memory. Older GPUs and ROCm builds refuse it.
    """

    axis = "precision"
    name = "tf32"
    evidence = (
        Published(
            "https://huggingface.co/docs/transformers/v4.41.3/en/perf_train_gpu_one#tf32",
            "up to 3x the throughput of fp32 training, depending on the model",
        ),
    )

    def obstacle(self, case):
        return lacks_tf32(case)

    def effects(self, case):
        return {"weights_dtype": "float32", "tf32": True}

    def edits(self, case):
        return weights_edits(
            "float32",
            training_arguments=(argument("tf32", True, "matrix products in TF32"), *no_autocast(case)),
            accelerate=told(case, "no"),
        )


def lacks_tf32(case) -> str | None:
    if not case.on_cuda:
        return "TF32 exists on NVIDIA GPUs only"
    if case.capability < (8, 0):
        return f"TF32 needs compute capability 8.0 or more, {case.device.name} has {case.device.compute_capability}"
    return None
