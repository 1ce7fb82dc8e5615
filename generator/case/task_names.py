"""What people call tasks that have another name here, or that perfgen does not have: by lower-case name, what there is instead."""

from __future__ import annotations

from collections.abc import Mapping

PREFERENCES = (
    "nothing is trained on preferences yet; --task sft learns what was chosen, and leaves out what was rejected"
)
PAIRS = "no encoder-decoder is trained yet; --task sft trains a decoder on rows of input and target"
MASKS = "masked language modelling is not emitted yet; --task text-classification trains an encoder"
OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("dpo", "orpo", "kto", "ppo", "grpo", "rlhf", "reward", "preference"), PREFERENCES),
    **dict.fromkeys(("seq2seq", "text2text-generation", "summarization", "translation"), PAIRS),
    **dict.fromkeys(("fill-mask", "masked-lm", "mlm"), MASKS),
    **dict.fromkeys(("text-generation", "clm", "pretraining", "pretrain"), "it is --task causal-lm"),
    **dict.fromkeys(("chat", "instruct", "finetune", "fine-tuning", "question-answering"), "it is --task sft"),
    **dict.fromkeys(
        ("classification", "sequence-classification", "sentiment-analysis"), "it is --task text-classification"
    ),
    "ner": "it is --task token-classification, with --mode infer",
    "embeddings": "it is --task feature-extraction, with --mode infer",
    "asr": "it is --task automatic-speech-recognition, with --mode infer",
}
"""Of the hub's pipelines, TRL's trainers and other tools' flags."""
