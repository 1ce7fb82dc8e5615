"""Rules without a case: those that perfgen obeys because it never writes what they forbid, and those about what it does not offer.

Each row names words that no technique, template or launcher holds. Who adds such a thing finds the rule's test here, and
moves the rule to its table with a case that takes it and one that does not.
"""

from __future__ import annotations

NEVER: dict[str, tuple[str, tuple[str, ...]]] = {
    "R009": ("the micro-batch is computed: the Trainer does not search for one", ("auto_find_batch_size=",)),
    "R017": ("the optimizer is named (optim=), never built by the script", ("optimizers=(",)),
    "R018": ("the model is given, not a function that makes it", ("model_init=",)),
    "R039": ("paged attention belongs to generate_batch, which is not used", ('"paged|', ".model.generate_batch")),
    "R047": (
        "nothing that needs the hub at run time is chosen: the kernels hub is off in the tested stack (R037); no sweeps",
        ("use_kernels", "estimate-memory", "wandb.sweep", "wandb agent"),
    ),
    "R222": ("the learning rate is the user's on any number of devices", ("scale_lr", "learning_rate *")),
    "R508": (
        "arguments that Transformers 5 has dropped",
        (
            "use_ipex",
            "jit_mode_eval",
            "no_cuda",
            '"ccl"',
            "half_precision_backend",
            "evaluation_strategy",
            "torch_dtype=",
        ),
    ),
}
"""Rule: why it cannot be broken, and the words that would break it."""

OUT_OF_SCOPE: dict[str, tuple[str, tuple[str, ...]]] = {
    # gates of what is not offered
    "R038": ("FlashAttention-2 only: 3 and 4 are not offered", ("flash_attention_3", "flash-attn3", "flash-attn4")),
    "R040": ("the cache is dynamic or static, on the device", ("offloaded_static", '"quantized"')),
    "R042": ("no FP8 or FP4 quantizer", ("FineGrainedFP8", "FbgemmFp8", "NVFP4")),
    "R043": ("no fp8 training", ("fp8_config", "AORecipe", "TERecipe")),
    "R045": ("no exporters", ("optimum", "OnnxConfig", "OVModel")),
    "R046": ("SigOpt is no backend: search.py asks Optuna", ("sigopt",)),
    "R049": (
        "the limit of locked memory is not read: DeepSpeed and FSDP2 are left to pin as they do (containers of several nodes "
        "lift it, for RDMA: tests/test_containers.py)",
        ("RLIMIT_MEMLOCK", "lockable_bytes"),
    ),
    # parallelism
    "R216": (
        "gradients are exchanged as they are: compressing them changes the result",
        ("comm_hook", "PowerSGD", "LocalSGD"),
    ),
    "R217": ("Transformers have no buffers that training changes: nothing is gained", ("ddp_broadcast_buffers=",)),
    # precision and speed
    "R407": (
        "advice beyond the software: other models and machines (the ladder of a refusal names machines)",
        ("nvcr.io",),
    ),
    # CPU, Apple, Gaudi, TPU
    "R502": ("one CPU process: several, one a socket, are a later issue", ("numactl", "bind_cores_to_rank")),
    "R504": ("allocators were measured and are no axis: FINDINGS.md", ("tcmalloc", "jemalloc", "KMP_")),
    "R506": ("no multi-process CPU training yet", ("ACCELERATE_USE_CPU",)),
    "R513": ("Gaudi is not planned for", ("PT_HPU", "habana")),
    # inference
    "R611": ("server.py is in front of Transformers, never its own server", ("transformers serve",)),
    # search
    "R701": (
        "search.py asks Optuna, which is no choice of the engine (tests/templates/test_search.py); Ray and W&B need a server",
        ("ray.tune", "wandb.sweep"),
    ),
    "R702": ("each trial is train.py in a process of its own, which makes its model", ("model_init",)),
    "R703": ("a trial on several devices is started by their launcher: nothing is broadcast", ("hp_space",)),
    "R704": ("one objective, by which the best model is kept", ("directions=",)),
    "R705": ("no sweeps of W&B", ('"objective"',)),
    # debugging and advice about hardware
    "R801": (
        "callbacks.py stops at a loss that is not finite; the tracer of overflows is a later issue",
        ("underflow_overflow",),
    ),
    "R802": ("advice for hangs is a later issue", ("NCCL_DEBUG", "ACCELERATE_DEBUG_MODE")),
    "R803": (
        "host memory is planned (R109), so that nothing is killed silently; the diagnosis is a later issue",
        ("dmesg",),
    ),
    "R804": ("the Trainer fills the fp16 block", ("initial_scale_power",)),
    "R805": ("nothing is built from source", ("TORCH_CUDA_ARCH_LIST", "DS_BUILD")),
    "R806": ("temperatures are advice about a machine, not part of a plan", ("temperature.gpu",)),
    "R807": ("power supplies are advice about a machine, not part of a plan", ("power.limit",)),
    "R808": ("links are read, kept and priced: R206, R207 and R209 are the cases", ("topo -m",)),
    "R809": ("what links give is priced; the test of switching them off is a later issue", ("NCCL_P2P_LEVEL",)),
    "R810": ("no operator of DeepSpeed is built (zero_force_ds_cpu_optimizer is off)", ("torch_extensions",)),
}
"""Rule: why no choice of the engine can show it, and words that would come with it."""
