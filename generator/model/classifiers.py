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
    | {"bart", "bigbird_pegasus", "lilt", "mbart", "mt5", "mvp", "plbart", "t5", "t5gemma", "t5gemma2", "umt5"}
    | {"modernvbert", "qwen3_5", "ultravbert"}
    | {"starcoder2", "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod", "yoso", "zamba", "zamba2"}
)
"""Types of models that AutoModelForSequenceClassification takes (Transformers 5.23,
MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES) and trains from tokens alone; for others it raises before the first step."""
NEEDS = {
    "layoutlmv2": "where each word stands on its page, and an image of that",
    "layoutlmv3": "where each word stands on its page, and an image of that",
    "markuplm": "the path of each word in its HTML page",
    "tapas": "a table for each question",
}
"""What the classifiers of other types read beside a text: without it their tokenizers take none (tokenization_layoutlmv3.py: boxes,
tokenization_markuplm.py: xpaths, tokenization_tapas.py: table)."""
READS_END = frozenset({"bart", "bigbird_pegasus", "mbart", "mt5", "mvp", "plbart", "t5", "umt5"})
"""Types whose head reads the state of the end token, of which every row needs as many (modeling_bart.py, modeling_t5.py: eos_mask)."""
NAMES_NO_LABELS = frozenset({"qwen3_5"})
"""Types whose forward takes labels by ``**kwargs`` (modeling_qwen3_5.py): Trainer looks for the names of labels in its signature."""
HEAD = "ForSequenceClassification"
"""How the class ends that a checkpoint with a trained head for labels names in ``architectures``."""
