"""Which models can be classifiers of texts: Transformers has a class with a head for labels for some types, and for others none."""

from __future__ import annotations

CLASSIFIED = frozenset(
    {"albert", "arcee", "bert", "big_bird", "biogpt", "bloom", "camembert", "canine", "convbert", "ctrl"}
    | {"data2vec-text", "deberta", "deberta-v2", "deepseek_v2", "deepseek_v3", "diffllama", "distilbert", "doge"}
    | {"electra", "ernie", "esm", "eurobert", "exaone4", "falcon", "flaubert", "fnet", "funnel", "gemma", "gemma2"}
    | {"gemma3_text", "glm", "glm4", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj"}
    | {"gte", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "ibert", "jamba", "jetmoe", "layoutlm", "llama"}
    | {"longformer", "luke", "megatron-bert", "minicpm3", "minimax", "ministral", "ministral3", "mistral"}
    | {"mistral4", "mixtral", "mobilebert", "modernbert", "modernbert-decoder", "mpnet", "mpt", "mra", "nemotron"}
    | {"nomic_bert", "nystromformer", "olmo", "olmo2", "olmo3", "openai-gpt", "opt", "persimmon", "phi", "phi3"}
    | {"phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_text", "qwen3_moe", "qwen3_next", "rembert", "roberta"}
    | {"roberta-prelayernorm", "roc_bert", "roformer", "seed_oss", "smollm3", "squeezebert", "stablelm"}
    | {"axk1", "axk2", "cohere_compass_text", "esmc", "gemma3", "jina_embeddings_v3", "ultrabert"}
    | {"starcoder2", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod", "yoso", "zamba", "zamba2"}
)
"""Types of encoders and decoders that AutoModelForSequenceClassification takes (Transformers 5.23,
MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES); for others it raises before the first step."""
HEAD = "ForSequenceClassification"
"""How the class ends that a checkpoint with a trained head for labels names in ``architectures``."""
