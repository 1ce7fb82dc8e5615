"""Whether the files of a model held all of it: what they lack Transformers makes up, and only its log says so."""

import logging
import os
import sys
from collections.abc import Collection
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import WeightRenaming

SHOWN = 3
AS_SAVED = [WeightRenaming("lora_", "lora_")]
"""Names of an adapter are those of the model in memory: Transformers would rename them as those of files (Laguna)."""


def check_loaded(model: PreTrainedModel, loading: dict, adds_head: bool = False) -> None:
    """Ends the process where weights were missing, or of other sizes. ``loading``: what from_pretrained says of it
    (output_loading_info, ignore_mismatched_sizes).

    ``adds_head``: what stands outside the base model, and a pooler, are new, and learned.
    """
    missing = [name for name, _ in model.named_parameters() if name in loading["missing_keys"]]
    places = {name: place for place, name in enumerate(model.state_dict())}
    mismatched = sorted(loading["mismatched_keys"], key=lambda each: places.get(each[0], len(places)))  # a set
    sizes = {name: (tuple(stored), tuple(made)) for name, stored, made in mismatched}
    if adds_head:
        missing = [name for name in missing if not is_of_head(model, name)]
        if (replaced := [name for name in sizes if is_of_head(model, name)]) and os.environ.get("RANK", "0") == "0":
            stored, made = sizes[replaced[0]]
            print(f"{model.name_or_path}: its head of {stored[0]} labels is left out, here there are {made[0]}")
        sizes = {name: both for name, both in sizes.items() if name not in replaced}
    if missing:
        end_incomplete(model.name_or_path, missing, "config.json")
    for name, (stored, made) in sizes.items():
        sys.exit(
            f"{model.name_or_path}: {name} is {list(stored)} in its files, and {list(made)} by its config.json\n"
            "Give the config.json that it was saved with."
        )


def is_of_head(model: PreTrainedModel, name: str) -> bool:
    """Outside of the base model, or its pooler."""
    own = "" if model.base_model is model else f"{model.base_model_prefix}."
    return not name.startswith(own) or name.removeprefix(own).startswith("pooler.")


def hide_report() -> None:
    """Of a head that the adapter has: Transformers would report it as missing, and advise to train."""
    logging.getLogger("transformers.modeling_utils").addFilter(lambda record: "LOAD REPORT" not in record.getMessage())


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put the adapter of ``folder`` beside the weights. Ends the process where its file lacks some of it."""
    # DoRA's magnitudes have this name in the model, and PEFT alone knows that it is not that of the file
    weights = {
        f"{name}.weight" if name.endswith("lora_magnitude_vector") else name: weight
        for name, weight in load_file(folder / "adapter_model.safetensors").items()
    }
    missing = model.load_adapter(str(folder), adapter_state_dict=weights, weight_mapping=AS_SAVED).missing_keys
    missing &= {name for name, _ in model.named_parameters()}  # tokens of a head that is the embedding stand there
    if missing:
        end_incomplete(folder, sorted(missing), "adapter_config.json")


def check_files(folder: Path) -> None:
    """The same before anything else reads them: a meta device takes the names of weights, and none of their bytes."""
    check_loaded(
        *AutoModelForCausalLM.from_pretrained(
            folder,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    )


def end_incomplete(folder: str | Path, missing: Collection[str], config: str) -> None:
    first = ", ".join(list(missing)[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
    sys.exit(
        f"{folder} lacks {len(missing)} weights that its {config} tells of: {first}\n"
        f"They would be random. Download it again, or give the {config} that it was saved with."
    )
