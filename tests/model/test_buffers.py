"""Which types save buffers with their weights, by Transformers' own classes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parent))  # small.py and variants.py lie beside this file

import torch
from small import small
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.auto import modeling_auto
from variants import configs

from generator.inputs.meta_device import make_config
from generator.model.buffers import SAVED_BUFFERS
from generator.model.families import find_family

KINDS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": AutoModelForCausalLM,
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": AutoModelForSequenceClassification,
}
TYPES = sorted({(table, name) for table in KINDS for name in getattr(modeling_auto, table)})


def has_saved_buffers(table: str, model_type: str) -> bool | None:
    """``None`` where no small model of the type can be made."""
    try:
        config = configs(model_type)[0] if find_family(model_type) else small(model_type)
        with torch.device("meta"):
            model = KINDS[table].from_config(make_config(config))
    except Exception:  # whatever a class of Transformers raises for sizes that nobody chose for it
        return None
    weights = dict(model.named_parameters(remove_duplicate=False))
    return any(name not in weights for name in model.state_dict())


def test_types_with_saved_buffers_are_known():
    saved = {key: has_saved_buffers(*key) for key in TYPES}
    assert {name for (_, name), has in saved.items() if has} == SAVED_BUFFERS
    assert sum(has is None for has in saved.values()) < 30
