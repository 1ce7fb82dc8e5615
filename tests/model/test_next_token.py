"""What is planned to learn the next token does: its loss is of that token, and no token sees those behind it."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # benchmarks
sys.path.insert(0, str(Path(__file__).resolve().parent))  # small.py and variants.py lie beside this file

from small import small
from variants import configs

from benchmarks.zoo import OWN, fit_to_tokenizer, list_types, stop_drawing
from generator import pipeline
from generator.case.request import Request
from generator.errors import UsageError
from generator.model.next_token import LEARNS_OWN_TOKEN

SHIFTS = re.compile(r"self\.loss_function\(|\[(:|\.\.\.), ?(:-1|1:)")
"""Transformers' own loss of a causal model, or labels and logits cut by a token."""
NOBODY_BUILDS = {"musicgen", "musicgen_melody", "whisper"}
"""by a small config of their own"""


def make_small(model_type: str):
    from transformers import AutoModelForCausalLM

    from generator.inputs.meta_device import build_model, make_config
    from generator.model.families import find_family

    family = find_family(model_type)
    written = (configs(model_type)[0] if family else small(model_type)) | OWN.get(model_type, {})
    config = make_config(stop_drawing(fit_to_tokenizer(written)))
    kind = family.kind if family else build_model(config)[1]
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval(), kind


def compare_tokens(model) -> tuple[bool, bool]:
    """Whether its loss is of the next token, and whether what it predicts knows a token behind."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    tokens = torch.randint(4, 90, (2, 24))
    other = tokens.clone()
    other[:, -1] = (tokens[:, -1] + 3) % 86 + 4
    with torch.no_grad():
        made = model(input_ids=tokens, labels=tokens)
        logits, changed = made.logits.float(), model(input_ids=other).logits.float()
    shifted = cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    ahead = (logits[:, :-1] - changed[:, :-1]).abs().max()
    return bool((made.loss - shifted).abs() < 1e-4), bool(ahead > 1e-6)


def test_the_table_is_that_of_transformers():
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as classes

    unshifted = set()
    for model_type, name in classes.items():
        forward = getattr(transformers, name).forward
        if "labels" in inspect.signature(forward).parameters and not SHIFTS.search(inspect.getsource(forward)):
            unshifted.add(model_type)
    assert unshifted == LEARNS_OWN_TOKEN


@pytest.mark.parametrize("model_type", sorted(LEARNS_OWN_TOKEN - NOBODY_BUILDS))
def test_the_loss_is_of_the_token_itself(model_type):
    assert not compare_tokens(make_small(model_type)[0])[0]


@pytest.mark.slow
def test_every_decoder_learns_the_next_token_and_sees_none_behind():
    compared, wrong = [], []
    for model_type in list_types("causal-lm"):
        try:
            model, kind = make_small(model_type)
            of_next, sees_ahead = compare_tokens(model)
        except Exception:  # sizes that do not go together, packages that are not there: of this config
            continue
        if kind == "decoder" and model_type not in LEARNS_OWN_TOKEN:
            compared.append(model_type)
            wrong += [model_type] * (sees_ahead or not of_next)
    assert len(compared) > 120
    assert not wrong


CONFIGS = {
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64},
    "cpmant": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "dim_head": 16, "dim_ff": 64},
    "bart": {"is_encoder_decoder": False, "is_decoder": True, "d_model": 32, "decoder_layers": 2}
    | {"encoder_layers": 2, "decoder_attention_heads": 2, "encoder_attention_heads": 2, "decoder_ffn_dim": 64},
    "bert-generation": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}


def plan(folder: Path, model_type: str, task: str, mode: str = "train"):
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIGS[model_type] | {"model_type": model_type, "vocab_size": 300}))
    asked = {"hardware": "cpu:1", "task": task, "given": ("task",), "offline": True, "seq_len": 16, "mode": mode}
    return pipeline.plan_request(Request(model=str(path), **asked))


@pytest.mark.parametrize("task", ["causal-lm", "sft"])
@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("bart", "learn to repeat what it reads"),
        ("bert-generation", "needs a decoder of text"),
        ("cpmant", "learn to repeat what it reads"),
        ("xlnet", "learn to repeat what it reads"),
    ],
)
def test_what_learns_no_next_token_is_not_trained_on_text(tmp_path, model_type, words, task):
    with pytest.raises(UsageError, match=words):
        plan(tmp_path, model_type, task)
    if model_type == "xlnet":
        assert plan(tmp_path, model_type, "text-classification").plan.best
