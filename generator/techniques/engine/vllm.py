import json
from collections.abc import Mapping
from typing import ClassVar

from generator.case.layout import Layout
from generator.case.limits import GRACE_SECONDS, ServingLimits
from generator.techniques.base import Published
from generator.techniques.engines import Flag, GpuEngine, drop_ones
from generator.techniques.traits import Trait

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""of adapters"""


class Vllm(GpuEngine):
    """vLLM: paged keys and values, continuous batching, CUDA graphs, tensor parallelism, an OpenAI-compatible server.

    What it does: computes all requests of a moment together, and keeps their cache in pages, so that none is reserved.
    When it loses: in time to start (it compiles and captures graphs), and where one short answer is all that is wanted.
    Known problems: pins torch and Transformers to versions of its own; reserves its share of the GPU at once; its server reads marks
    of the chat template in a message as the template's.
    """

    name = "vllm"
    engine = "vllm"
    role = "serve-vllm"
    leaf = "vllm"
    command = ("vllm", "serve")
    of_copies = ("drain",)
    provides = frozenset({Trait.CHECKS_PROPOSALS, Trait.RUNS_DRAFT_MODEL, Trait.COPIES_OVER_NODES})
    checkpoints = frozenset({"awq", "compressed-tensors", "fp8", "gptq", "mxfp4"})
    """of vllm/model_executor/layers/quantization (0.33)"""
    checkpoint_capabilities: ClassVar = {"mxfp4": "8.0"}
    """get_min_capability of the same"""
    unknown_types = frozenset(
        [
            *("bamba", "codegen", "cpmant", "gpt_neo", "gpt_neox_japanese", "minimax", "mpt", "openai-gpt"),
            *("recurrent_gemma", "reformer", "rwkv", "xglm", "xlm", "xlnet", "xlstm", "zamba"),
        ]
    )
    """by vllm/model_executor/models/registry.py (0.33) and is_backend_compatible, _can_set_attn_implementation of Transformers' class"""
    bfloat16_types = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
    """_FLOAT16_NOT_SUPPORTED_MODELS of vllm/config/model.py (0.33), for numerical instability"""
    adapters = frozenset({"lora", "rslora"})
    """of vllm/lora/peft_helper.py (0.33), which refuses DoRA, and scales every layer by one alpha and one rank"""
    unadapted = frozenset(
        [
            *("BloomForCausalLM", "DbrxForCausalLM", "FalconForCausalLM", "FalconMambaForCausalLM", "GPT2LMHeadModel"),
            *("GPTJForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "StableLmForCausalLM", "Zamba2ForCausalLM"),
        ]
    )
    """whose class in vllm/model_executor/models (0.33) is no SupportsLoRA: "does not support LoRA yet" ends the start"""
    evidence = (
        Published(
            "https://arxiv.org/abs/2309.06180",
            "PagedAttention: 2 to 4 times the throughput of FasterTransformer and Orca at the same latency",
        ),
    )

    flag_reasons: ClassVar = {
        "dtype": "the decision precision",
        "max-model-len": "serving.max_context",
        "max-num-seqs": "of serving.max_concurrency, the share of one copy of the model",
        "max-num-batched-tokens": "tokens of prompts in one pass: the engine's own default for large boards",
        "gpu-memory-utilization": "weights, activations and cache together; the rest is CUDA's own",
        "max-num-queued-reqs": "serving.max_concurrency and max_waiting together, as it counts those that run, too; of copies "
        "each has a process that speaks HTTP, which counts its own alone: its share",
        "shutdown-timeout": "seconds for answers that are being written when it is told to stop",
        "quantization": "the decision quantization",
        "enable-lora": "config.yaml names an adapter",
        "max-lora-rank": "room for the rank of the adapter, in a size that vLLM has",
        "kv-cache-dtype": "the decision cache",
        "speculative-config": "the decision speculation",
        "tensor-parallel-size": "the decision parallelism",
        "pipeline-parallel-size": "the decision parallelism",
        "data-parallel-size": "the decision parallelism: copies of the model",
        "nnodes": "the decision parallelism: nodes of one server",
    }

    def list_flags(self, limits: ServingLimits, layout: Layout, dtype: str, weights: str) -> Mapping[str, Flag]:
        """Of vllm/engine/arg_utils.py (0.33)."""
        return {
            "dtype": dtype,
            "max-model-len": limits.max_context,
            "max-num-seqs": limits.of_one_copy,
            "max-num-batched-tokens": limits.batched_tokens,
            "gpu-memory-utilization": limits.memory_share,
            "max-num-queued-reqs": -(-(limits.max_concurrency + limits.max_waiting) // layout.replicate),
            "shutdown-timeout": GRACE_SECONDS,
            **({"quantization": "fp8"} if weights == "fp8" else {}),
            **drop_ones(
                {
                    "tensor-parallel-size": layout.tp,
                    "pipeline-parallel-size": layout.pp,
                    "nnodes": layout.nodes,
                    "data-parallel-size": layout.replicate,
                }
            ),
        }

    def list_cache_flags(self, dtype: str) -> Mapping[str, Flag]:
        """Of vllm/config/cache.py (0.33): e4m3 on NVIDIA's and AMD's boards alike."""
        return {"kv-cache-dtype": {"float8": "fp8"}[dtype]}

    def list_adapter_flags(self, rank: int) -> Mapping[str, Flag]:
        """Of vllm/config/lora.py (0.33), which has places for some ranks."""
        return {"enable-lora": True, "max-lora-rank": next((most for most in RANKS if rank <= most), rank)}

    def list_lookup_flags(self, tokens: int) -> Mapping[str, Flag]:
        """Of vllm/config/speculative.py (0.33): n-grams of the text itself, found on the CPU."""
        asked = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
        return {"speculative-config": json.dumps(asked)}

    def list_draft_flags(self, tokens: int) -> Mapping[str, Flag]:
        """Of vllm/config/speculative.py (0.33); its launcher adds the model."""
        return {"speculative-config": json.dumps({"method": "draft_model", "num_speculative_tokens": tokens})}
