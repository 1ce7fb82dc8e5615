from collections.abc import Mapping
from typing import ClassVar

from generator.case.layout import Layout
from generator.case.limits import ServingLimits
from generator.techniques.base import Published
from generator.techniques.engines import Flag, GpuEngine, drop_ones


class Sglang(GpuEngine):
    """SGLang: paged keys and values, a radix tree of shared prefixes, an OpenAI-compatible server.

    What it does: what vLLM does, and finds prefixes that requests share in a tree of all of them.
    When it loses: nothing published beside vLLM 0.33 says which is faster for a workload without shared prefixes.
    Known problems: pins torch and Transformers to versions of its own; not run here; reads marks of the chat template in a message as
    the template's.
    """

    name = "sglang"
    engine = (
        "vllm"  # no published figures of its own stand in the tables: priced as the engine that is built most like it
    )
    role = "serve-sglang"
    leaf = "sglang"
    checkpoints = frozenset({"awq", "bitsandbytes", "compressed-tensors", "fp8", "gptq", "mxfp4"})
    """of sglang/srt/layers/quantization (0.5.23)"""
    unknown_types = frozenset(
        [
            *("bamba", "biogpt", "bloom", "codegen", "cpmant", "falcon", "gpt_neo", "gpt_neox_japanese", "jamba"),
            *("minimax", "mpt", "olmo_hybrid", "openai-gpt", "recurrent_gemma", "reformer", "rwkv", "xglm", "xlm"),
            *("xlnet", "xlstm", "zamba", "zamba2"),
        ]
    )
    """by EntryClass of sglang/srt/models (0.5.23) and is_backend_compatible of Transformers' class"""
    command = ("python", "-m", "sglang.launch_server")
    request_only = "no measurement at hand says that it beats vLLM"
    evidence = (
        Published(
            "https://arxiv.org/abs/2312.07104", "RadixAttention: up to 6.4 times the throughput with shared prefixes"
        ),
    )

    flag_reasons: ClassVar = {
        "dtype": "the decision precision",
        "context-length": "serving.max_context",
        "max-running-requests": "of serving.max_concurrency, the share of one copy of the model",
        "max-queued-requests": "of serving.max_waiting, the share of one copy of the model",
        "chunked-prefill-size": "tokens of prompts in one pass",
        "mem-fraction-static": "weights and cache; activations and CUDA graphs come beside them",
        "enable-metrics": "/metrics, in Prometheus' form",
        "quantization": "the decision quantization",
        "kv-cache-dtype": "the decision cache",
        "tp-size": "the decision parallelism",
        "pp-size": "the decision parallelism",
        "dp-size": "the decision parallelism: copies of the model",
        "nnodes": "the nodes that hold one copy together",
    }

    def list_flags(self, limits: ServingLimits, layout: Layout, dtype: str, weights: str) -> Mapping[str, Flag]:
        """Of sglang/srt/arg_groups/fields (0.5.23). Each copy counts its own requests (mem_cache/kv_cache_configurator.py)."""
        return {
            "dtype": dtype,
            "context-length": limits.max_context,
            "max-running-requests": limits.of_one_copy,
            "max-queued-requests": -(-limits.max_waiting // layout.replicate),
            "chunked-prefill-size": limits.batched_tokens,
            "mem-fraction-static": limits.static_share,
            "enable-metrics": True,
            **({"quantization": "fp8"} if weights == "fp8" else {}),
            **drop_ones(
                {"tp-size": layout.tp, "pp-size": layout.pp, "nnodes": layout.nodes, "dp-size": layout.replicate}
            ),
        }

    def list_cache_flags(self, dtype: str) -> Mapping[str, Flag]:
        """Of sglang/srt/arg_groups/fields (0.5.23)."""
        return {"kv-cache-dtype": {"float8": "fp8_e4m3"}[dtype]}
