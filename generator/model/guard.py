"""What a config says that the table does not understand: then Transformers counts, for a wrong number is worse than a slow one."""

from __future__ import annotations

import re

from generator.model.settings import ESSENTIAL, SIZES, MissingSize, Settings, known
from generator.model.spec import NeedsMetaDevice

SIZE_LIKE = re.compile(
    r"layer|hidden|width|depth|heads|dim$|_dim|_size|expert|moe|bias|norm$|_norm|rank|ffn|mlp|proj|gate|shared|attn|conv|embed"
)
"""names that sizes and switches go by"""
NO_MATTER = re.compile(
    r".*(dropout|_token_index|_token_id|_prob|_eps|_epsilon|_std|_range|_scale|_scaling|_multiplier|_coef|_coeff|_alpha|_freq"
    r"|_impl|_implementation|_theta|_activation|_act|_type|_aux|position_ids|_aux_loss)$|pooler_.*|rope_.*|router_.*|norm_topk_prob"
    r"|num_nextn_predict_layers|ep_size|max_window_layers|pretraining_tp|.*_checkpointing|use_cache|task_specific_params|projection_dim|.*_file|n_ctx"
)
"""names that look so but that Transformers does not build by: rates and factors, and what old releases wrote"""


def check_understood(c: Settings, refuses: tuple[str, ...] = ()) -> None:
    """Raises ``NeedsMetaDevice`` for a key with a size's name that the type's classes do not read, and for what ``refuses`` names."""
    if c.type not in known()["types"]:
        raise NeedsMetaDevice(f"{c.type!r} is not in perfgen's tables")
    for key in (*refuses, "add_cross_attention", *(() if c.defaults.get("is_decoder") else ("is_decoder",))):
        if c.told.get(key):
            raise NeedsMetaDevice(f"a config of type {c.type!r} that says {key} is not in perfgen's tables")
    nested = c.entry.get("nested", {})
    common = {*known()["common"], *c.entry.get("derived", ())}
    for key, value in c.told.items():
        if c.knows(key) or key in common or not value or isinstance(value, (str, float)):
            continue
        if SIZE_LIKE.search(key) and not NO_MATTER.fullmatch(key):
            raise NeedsMetaDevice(f"a config of type {c.type!r} that says {key} is not in perfgen's tables")
    for key in nested:
        if isinstance(c.told.get(key), dict):
            check_understood(c.inner(key))


def check_said(c: Settings) -> None:
    """Raises ``MissingSize`` where the config of a language model leaves out how large it is, though its class has a default."""
    for what in ESSENTIAL:
        own = [name for key in SIZES[what] for name in c.names(key) if name in c.defaults]
        if own and not any(c.says(key) for key in SIZES[what]):
            raise MissingSize(f"the config has none of {', '.join(dict.fromkeys(own))}")
