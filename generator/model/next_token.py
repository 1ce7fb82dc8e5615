"""Which language models of Transformers learn the next token: of a few types the class compares what it predicts with the token itself."""

from __future__ import annotations

LEARNS_OWN_TOKEN = frozenset(
    {"bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart"}
    | {"cpmant", "musicgen", "musicgen_melody", "trocr", "whisper", "xlm", "xlnet"}
)
"""Types whose class of MODEL_FOR_CAUSAL_LM_MAPPING_NAMES (Transformers 5.23) computes its loss without shifting the labels by a token,
so that the labels that the Trainer and TRL make of a text teach it to repeat what it reads: their decoders were written for pairs
whose labels are shifted beforehand. CPM-Ant and XLNet let each token see those behind it besides."""
