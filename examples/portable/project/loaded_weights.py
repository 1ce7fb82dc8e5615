"""Whether the files of a model held all of it: what they lack Transformers makes up, and only its log says so."""

import sys

from transformers import PreTrainedModel

SHOWN = 3


def check_loaded(model: PreTrainedModel, loading: dict, adds_head: bool = False) -> None:
    """Ends the process where weights were missing. ``loading``: what from_pretrained says of it (output_loading_info).

    ``adds_head``: what stands outside the base model, and a pooler, are new, and learned.
    """
    missing = [name for name, _ in model.named_parameters() if name in loading["missing_keys"]]
    if adds_head:
        own = "" if model.base_model is model else f"{model.base_model_prefix}."
        missing = [
            name for name in missing if name.startswith(own) and not name.removeprefix(own).startswith("pooler.")
        ]
    if missing:
        first = ", ".join(missing[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
        sys.exit(
            f"{model.name_or_path} lacks {len(missing)} weights that its config.json tells of: {first}\n"
            "They would be random. Download it again, or give the config.json that it was saved with."
        )
