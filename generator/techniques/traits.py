"""What techniques bring that others cannot stand beside: the vocabulary of conflicts, and those that follow from it.

A technique declares traits (``Technique.provides``), and may need or exclude those of others. What holds for whoever
brings a trait stands here, once: a new form of compilation that provides ``COMPILED_GRAPH`` refuses what every compiled
graph refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Trait(Enum):
    """A fact about the program that a plan makes."""

    # attention
    SDPA = "attention runs through PyTorch's scaled_dot_product_attention"
    SCORE_MATRIX = "attention holds the whole score matrix"
    VARIABLE_LENGTH_KERNEL = "attention keeps texts of one sequence apart without a dense mask"
    # the model's graph
    COMPILED_GRAPH = "torch.compile runs the model, or its decoding step, as one graph"
    CAPTURED_GRAPH = "each pass is one CUDA graph, captured once and replayed"
    COMPILED_LAYERS = "torch.compile runs each layer of the model as a graph of its own"
    COMPILED_BLOCKS = "torch.compile fuses the operators of a layer, whatever it does around them"
    UNCOMPILEABLE_LAYERS = "layers of a library whose kernels torch.compile cannot trace"
    WHOLE_LOGITS = "logits of all tokens are held at once, whatever the trainer of the task would do"
    LOSS_OF_TRL = "SFTTrainer's own loss, which never holds all logits"
    FUSED_KERNELS = "another library's kernels fuse what torch.compile would"
    CHUNKED_FORWARD = "the model's forward is replaced by one that loops over chunks of the hidden states"
    EAGER_STEPS = "generate launches every operator by itself"
    FUSES_UNPACKING = "products with one row unpack their weights as they read them"
    STATIC_CACHE = "keys and values have a place of fixed shape from the start"
    # batches
    VARYING_SHAPES = "batches differ in length"
    LENGTH_GROUPS = "texts of similar length are put together, so that lengths follow an order"
    FLATTENED_ROWS = "the texts of a batch stand one after the other, without padding, and none sees the others"
    JOINED_CONVERSATIONS = "several conversations share a sequence, and none may see the others"
    # precision of weights
    FLOAT32_ARITHMETIC = "matrix products take 32-bit values"
    BFLOAT16_ARITHMETIC = "matrix products take bfloat16"
    FLOAT16_ARITHMETIC = "matrix products take and give float16, which ends at 65,504"
    LOSS_SCALING = "the loss is multiplied before the backward pass, and gradients are divided by it"
    NO_MASTER_WEIGHTS = "weights are updated in 16 bits, without a 32-bit copy"
    QUANTIZED_BASE = "the frozen weights beneath the adapters are packed 4-bit values"
    PACKED_SHARDS = "packed 4-bit weights stay whole, or are divided as they are"
    PACKED_ON_CPU = "an engine on a CPU multiplies rounded weights in a format that it takes by itself"
    UNPACKED_BY_OPERATORS = "weights are unpacked by operators of PyTorch's own, which a compiled graph may fuse"
    # who owns weights, gradients and states
    TORCH_ADAMW = "the optimizer is PyTorch's own AdamW, with 32-bit states"
    COLLECTIVES = "devices exchange weights, gradients or activations within a step"
    DTENSOR = "parameters and gradients are sharded tensors (DTensor)"
    OWN_LOOP = "the project trains with a loop of its own (loop.py), not with Trainer"
    DEEPSPEED_ENGINE = "DeepSpeed wraps model and optimizer: hooks on every module, flat master weights of its own"
    OPTIMIZER_OFFLOAD = "optimizer states alone can live in host memory"
    WEIGHTS_OFFLOAD = "weights, gradients and states can live in host memory"
    NVME_OFFLOAD = "weights or states can live on an NVMe disk"
    # what serves
    TRANSFORMERS_MODEL = "a setting of Transformers' own code of the model, or of its generate"
    OWN_KERNELS = "the engine runs the model with code of its own: kernels, cache and graphs"
    PACKS_8_BITS = "the engine packs weights into 8 bits, and multiplies them so"
    PACKS_4_BITS = "the engine packs weights into 4 bits, and multiplies them so"
    COMPUTES_IN_32_BITS = "the engine's kernels multiply plain weights in 32 bits"
    SERVES_16_BITS = "the engine computes in 16 bits, and in 8-bit floating point where the device has it"
    CHECKS_PROPOSALS = "the engine checks several proposed tokens in one pass, and takes back what is wrong"
    RUNS_DRAFT_MODEL = "the engine runs a small model beside the served one, and checks what it proposes"
    DIVIDES_SERVED_MODEL = "the engine divides the model over devices, and runs copies of it"
    COPIES_OVER_NODES = "the engine's server hands requests out to copies on other nodes"
    # recomputation
    FSDP_RECOMPUTATION = "FSDP itself recomputes activations, around the blocks that it shards"
    SELECTED_OPERATORS = "operators are looked at one by one: the outputs of some are kept, others run again"
    PARTIAL_RECOMPUTATION = "some layers are recomputed and others keep their activations"


OF_PLAIN_WEIGHTS = "{other} is of plain weights: what rounded ones are multiplied in is the engine's own choice"

EXCLUDED_BY_TRAIT: Mapping[Trait, Mapping[Trait, str]] = {
    Trait.COMPILED_GRAPH: {
        Trait.VARYING_SHAPES: "batches of changing length would compile again for every new shape",
        Trait.FUSED_KERNELS: "Liger's kernels and Inductor fuse the same operators",
        Trait.CHUNKED_FORWARD: "the chunk loop breaks the compiled graph",
        Trait.DEEPSPEED_ENGINE: "DeepSpeed's hooks on every module break the compiled graph",
        Trait.UNCOMPILEABLE_LAYERS: "bitsandbytes layers are not compileable",
        Trait.SELECTED_OPERATORS: "Inductor chooses by itself what a compiled graph computes again",
        Trait.QUANTIZED_BASE: "a quantized model must not be compiled for training (Transformers refuses it)",
    },
    Trait.COMPILED_LAYERS: {
        Trait.FLATTENED_ROWS: "attention is called once a text: every number of texts would compile again",
        Trait.FUSED_KERNELS: "Liger's kernels and Inductor fuse the same operators",
        Trait.DEEPSPEED_ENGINE: "DeepSpeed's hooks on every module break the compiled graph",
        Trait.UNCOMPILEABLE_LAYERS: "bitsandbytes layers are not compileable",
        Trait.QUANTIZED_BASE: "a quantized model must not be compiled for training (Transformers refuses it)",
        Trait.SELECTED_OPERATORS: "Inductor chooses by itself what a compiled graph computes again",
        Trait.DTENSOR: "layers that FSDP gathers were not compiled each by itself: compile=default is",
    },
    Trait.OWN_KERNELS: {
        Trait.TRANSFORMERS_MODEL: "it runs the model with its own code, which {other} says nothing to",
    },
    Trait.CAPTURED_GRAPH: {
        Trait.COLLECTIVES: "nobody ran collectives between captured graphs here: one device",
    },
    Trait.DTENSOR: {
        Trait.LOSS_SCALING: "fp16's loss scaling was not run on sharded gradients (DTensor); DeepSpeed brings its own",
    },
    Trait.OWN_LOOP: {
        Trait.COMPILED_GRAPH: "compiled graphs were not run with the loop that trains a divided model",
        Trait.COMPILED_LAYERS: "compiled layers were not run with the loop that trains a divided model",
        Trait.CHUNKED_FORWARD: "the loop asks the model for its loss, with its own count of tokens",
        Trait.LOSS_OF_TRL: "the loss in chunks is of SFTTrainer, whose place loop.py takes",
        Trait.FUSED_KERNELS: "Liger's kernels were not run on a model divided so",
        Trait.LOSS_SCALING: "the loop that trains a divided model scales no loss (fp16)",
        Trait.LENGTH_GROUPS: "the loop takes rows in random order",
        Trait.FLATTENED_ROWS: "the loop gives attention rows of one length",
        Trait.JOINED_CONVERSATIONS: "the loop gives every conversation a row of its own",
        Trait.NO_MASTER_WEIGHTS: "weights of 16 bits were not run with the loop that trains a divided model",
        Trait.SELECTED_OPERATORS: "the loop recomputes whole layers",
        Trait.PARTIAL_RECOMPUTATION: "the loop recomputes every layer or none",
    },
    Trait.PACKED_ON_CPU: {
        Trait.BFLOAT16_ARITHMETIC: OF_PLAIN_WEIGHTS,
        Trait.FLOAT16_ARITHMETIC: OF_PLAIN_WEIGHTS,
    },
    Trait.FSDP_RECOMPUTATION: {Trait.PARTIAL_RECOMPUTATION: "FSDP recomputes every layer or none"},
    Trait.DEEPSPEED_ENGINE: {
        Trait.NO_MASTER_WEIGHTS: (
            "DeepSpeed keeps float32 master weights beside 16-bit ones by itself: that is precision=bf16"
        ),
        Trait.QUANTIZED_BASE: (
            "adapters have too few states to be worth dividing, and DeepSpeed cannot divide packed 4-bit weights"
        ),
    },
}
"""By trait: what whoever brings it cannot stand beside, and why."""

NEEDED_BY_TRAIT: Mapping[Trait, Mapping[Trait, str]] = {
    Trait.COMPUTES_IN_32_BITS: {Trait.FLOAT32_ARITHMETIC: "{other} is not of this engine: it computes in 32 bits"},
    Trait.DTENSOR: {Trait.TORCH_ADAMW: "{other} was not written for sharded tensors (DTensor)"},
    Trait.WHOLE_LOGITS: {Trait.OWN_LOOP: "TRL's SFTTrainer never holds all logits"},
    Trait.OWN_LOOP: {
        Trait.TORCH_ADAMW: "{other} was not run with the loop that trains a divided model",
        Trait.SDPA: "{other} was not run on a model divided so",
    },
    Trait.DEEPSPEED_ENGINE: {
        Trait.TORCH_ADAMW: (
            "DeepSpeed has tested its stages with 32-bit AdamW only (it asks for zero_allow_untested_optimizer)"
        )
    },
    Trait.QUANTIZED_BASE: {Trait.PACKED_SHARDS: "packed 4-bit weights cannot be divided so: only {able} take them"},
    Trait.JOINED_CONVERSATIONS: {
        Trait.VARIABLE_LENGTH_KERNEL: (
            "{other} would join the rows into one and mask it densely; only {able} packs without that"
        )
    },
}
"""By trait: what whoever brings it needs of the member of another axis, and why. ``{other}`` is a member without it,
``{able}`` those that have it."""
