"""What benchmarks/engines.py runs its engines on, and benchmarks/engine_errors.py predicts: models, and lengths in tokens."""

SHAPES = {
    "llama-87m": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 2048}
    | {"vocab_size": 32000},
    "qwen2.5-0.5b": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2}
    | {"intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True},
}
"""Random weights: speed does not depend on them."""
PROMPT, PREFILL, PROMPTS, CONTEXT = 32, 512, 8, 1024
"""Tokens of a short and of a long prompt, prompts at a time, and the longest text that an engine has room for."""
