from generator.edits import Code, Edits, argument
from generator.technique import Technique


class Fp32(Technique):
    """Compute and keep everything in 32 bits.

    Always works. On a GPU with tensor cores it leaves most of the chip idle; on a CPU without bf16 instructions it is
    the fastest there is.
    """

    axis = "precision"
    name = "fp32"
    baseline = True
    modes = ("train", "infer")

    def effects(self, case):
        return {"weights_dtype": "float32"}

    def edits(self, case):
        return weights_edits("float32")


def weights_edits(dtype: str, why: str = "", **more) -> Edits:
    """Load the weights as ``dtype``, for training and for inference (Transformers 5 otherwise takes the checkpoint's)."""
    stored = (argument("dtype", Code(f"torch.{dtype}"), why),)
    return Edits(
        imports=("import torch",),
        infer_imports=("import torch",),
        model_arguments=stored,
        infer_model_arguments=stored,
        **more,
    )
