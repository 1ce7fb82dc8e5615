"""What a config holds that the tables do not understand: then Transformers counts, for a wrong number is worse than a
slow one."""

from __future__ import annotations

import re

from generator.model.settings import ESSENTIAL, SIZES, MissingSize, Settings, load_defaults
from generator.model.spec import NeedsMetaDevice

SIZE_LIKE = re.compile(
    r"layer|hidden|width|depth|heads|dim$|_dim|_size|expert|moe|bias|norm$|_norm|rank|ffn|mlp|proj|gate|shared|attn|conv|embed"
)
"""names that sizes and switches go by"""
WITHOUT_EFFECT = re.compile(
    r".*(dropout|_token_index|_token_id|_prob|_eps|_epsilon|_std|_range|_scale|_scaling|_multiplier|_coef|_coeff|_alpha|_freq"
    r"|_impl|_implementation|_theta|_activation|_act|_type|_aux|position_ids|_aux_loss)$|pooler_.*|rope_.*|router_.*|norm_topk_prob"
    r"|num_nextn_predict_layers|ep_size|max_window_layers|pretraining_tp|.*_checkpointing|use_cache|task_specific_params|projection_dim|.*_file|n_ctx"
)
"""names that look so but that Transformers does not build by: rates and factors, and what old releases wrote"""


def check_understood(c: Settings, refuses: tuple[str, ...] = ()) -> None:
    """Raises ``NeedsMetaDevice`` for a key with a size's name that the type's classes do not read, and for what
    ``refuses`` names."""
    if c.type not in load_defaults()["types"]:
        raise NeedsMetaDevice(f"{c.type!r} is not in perfgen's tables")
    # either rebuilds the model: cross attention adds a block per layer, an encoder as a decoder is another class
    for key in (*refuses, "add_cross_attention", *(() if c.defaults.get("is_decoder") else ("is_decoder",))):
        if c.values.get(key):
            raise NeedsMetaDevice(f"a config of type {c.type!r} that says {key} is not in perfgen's tables")
    nested = c.entry.get("nested", {})
    common = {*load_defaults()["common"], *c.entry.get("derived", ())}
    for key, value in c.values.items():
        # text and fractions are activations, types and rates; null, 0 and false add nothing
        if c.is_read(key) or key in common or not value or isinstance(value, (str, float)):
            continue
        if SIZE_LIKE.search(key) and not WITHOUT_EFFECT.fullmatch(key):
            raise NeedsMetaDevice(f"a config of type {c.type!r} that says {key} is not in perfgen's tables")
    for key in nested:
        if isinstance(c.values.get(key), dict):
            check_understood(c.nested(key))


def check_sizes_given(c: Settings) -> None:
    """Raises ``MissingSize`` where the config of a language model leaves out how large it is, though its class has a
    default.

    ``LlamaConfig()`` is a 7B model: a config.json without sizes would silently be planned as one.
    """
    for size in ESSENTIAL:
        own = [name for key in SIZES[size] for name in c.spellings(key) if name in c.defaults]
        if own and not any(c.has(key) for key in SIZES[size]):
            raise MissingSize(f"the config has none of {', '.join(dict.fromkeys(own))}")
