"""TensorFlow on a CPU, compiled by XLA: the guides' page, on the last line of Transformers that had its models."""

from __future__ import annotations

from generator.case.vendors.vendor import Skeleton, Vendor
from generator.case.workload import Workload
from generator.model import ModelSpec

MODELS = ("gpt2", "mistral")
"""Of the decoders that Transformers 4.57 has in TensorFlow (TF_MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), those
that were looked at"""
MULTIPLE = 32
"""of the guide's own training (docs, TPU training with TensorFlow: multiples of 32 or 64)"""


def explain_work(workload: Workload, model: ModelSpec) -> str | None:
    if workload.mode == "infer" and not workload.after_training:
        return "no server of TensorFlow is emitted: infer.py of a training project generates by XLA"
    if workload.train != "full":
        return f"--train {workload.train}: PEFT has no TensorFlow, so --train full"
    if workload.task != "causal-lm":
        return f"--task {workload.task} is not in the TensorFlow project, which trains causal-lm"
    if model.model_type not in MODELS:
        return f"Transformers 4.57 has no TensorFlow model of type {model.model_type} that this project knows: {', '.join(MODELS)}"
    if model.model_type != "gpt2" and model.tied_embeddings:
        return f"Transformers 4.57 does not tie the embeddings of {model.model_type} in TensorFlow: {model.name} would be another model"
    if workload.from_scratch:
        return "its project starts from trained weights: give a model that has some"
    return None


VENDORS = (
    Vendor(
        name="tensorflow",
        devices=(("tensorflow", "cpu"),),
        title="CPU",
        torch_device="cpu",
        guard="cpu",
        backend="",
        choose_build=lambda role, device, driver: "cpu",
        framework="tensorflow",
        pad_to_multiple_of=MULTIPLE,
        environment=(("TF_USE_LEGACY_KERAS", "1"), ("TF_CPP_MIN_LOG_LEVEL", "2")),
        skeleton=Skeleton(
            role="train-tensorflow",
            packages=("tensorflow-cpu", "tf-keras", "transformers", "datasets", "pyyaml", "numpy", "safetensors"),
            leaves={"train": "tensorflow/train", "infer": "tensorflow/infer", "weights": "tensorflow/weights"},
            sequences={"causal-lm": "sequences/blocks"},
            techniques=frozenset(
                [
                    *("parallelism=single", "offload=none", "trained=full", "adapter=none", "precision=fp32"),
                    *("attention=eager", "checkpointing=off", "optimizer=adamw", "loss=plain", "compile=off"),
                    *("packing=packed", "packing=padded", "data-loading=in-process", "cpu-threads=default"),
                    *("engine=transformers", "quantization=none", "cache=dynamic", "speculation=off"),
                ]
            ),
            multiple=MULTIPLE,
            explain_work=explain_work,
            untested=("GPUs and TPUs under TensorFlow: neither was there, and TPUStrategy wants a TPU's name",),
            beside=(
                "PyTorch is recommended, here and on every device: TensorFlow's models ended with Transformers 4.57, which gets no more "
                "fixes; this project is for whoever must keep a TensorFlow code base",
            ),
        ),
    ),
)
