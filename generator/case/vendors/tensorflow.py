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


REASONS = {
    "TF_USE_LEGACY_KERAS": "1: Transformers' TensorFlow models are of Keras 2, which is tf-keras; read when TensorFlow is imported",
    "TF_CPP_MIN_LOG_LEVEL": "2: errors alone; TensorFlow tells at every start what its build could use",
    # the model
    "revision": "config.yaml pins the version of the model that was looked at",
    "trust_remote_code": "no code of the model's repository is run, nor asked about",
    "output_loading_info": "weights that the files lack end the run; Transformers would make them up, and say so in its log alone",
    "framework": "who wrote the file stands in its head, and is read without a tensor",
    "safe_serialization": "safetensors, which PyTorch reads as well; pickled weights can run code",
    "training": "dropout in the step, none in the evaluation; both are graphs of their own",
    "input_ids": "padded to a multiple: every length in between would be another graph",
    "attention_mask": "what is padding is not seen",
    # the optimizer
    "beta_1": "adam_beta1, as TrainingArguments has it",
    "beta_2": "adam_beta2, as TrainingArguments has it",
    "epsilon": "adam_epsilon, as TrainingArguments has it",
    "var_names": "biases and norms do not decay, as with Trainer",
    "jit_compile": "on for the step, the evaluation and generate, each one graph of XLA; off for the optimizer, which the step contains",
    # answers
    "padding": "prompts are filled on the left, so that what is added follows the last token",
    "pad_to_multiple_of": "prompts of like lengths share one graph",
    "return_token_type_ids": "decoders have none, and generate refuses what a model does not take",
    "return_tensors": "tf: tensors of TensorFlow",
    "return_dict": "the tokens by their name",
    "max_new_tokens": "a part of the graph: another number is another graph",
    "do_sample": "off: answers are greedy, and equal to those of generate without XLA",
    "pad_token_id": "fills what is left after an answer has ended; the model's own where it has one, else its end",
    "skip_special_tokens": "the text alone, without marks such as the end of the sequence",
}


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
            reasons=REASONS,
            untested=("GPUs and TPUs under TensorFlow: neither was there, and TPUStrategy wants a TPU's name",),
            beside=(
                "PyTorch is recommended, here and on every device: TensorFlow's models ended with Transformers 4.57, which gets no more "
                "fixes; this project is for whoever must keep a TensorFlow code base",
            ),
        ),
    ),
)
