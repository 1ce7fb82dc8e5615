"""Whether the files of a model held all of it: what they lack Transformers makes up, and only its log says so."""

import sys
from collections.abc import Collection
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

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
        end_incomplete(model.name_or_path, missing, "config.json")


def load_adapter(model: PreTrainedModel, folder: Path) -> None:
    """Put the adapter of ``folder`` beside the weights. Ends the process where its file lacks some of it."""
    # DoRA's magnitudes have this name in the model, and PEFT alone knows that it is not that of the file
    weights = {
        f"{name}.weight" if name.endswith("lora_magnitude_vector") else name: weight
        for name, weight in load_file(folder / "adapter_model.safetensors").items()
    }
    missing = model.load_adapter(str(folder), adapter_state_dict=weights).missing_keys
    if missing:
        end_incomplete(folder, sorted(missing), "adapter_config.json")


def check_files(folder: Path) -> None:
    """The same before anything else reads them: a meta device takes the names of weights, and none of their bytes."""
    check_loaded(
        *AutoModelForCausalLM.from_pretrained(
            folder, device_map="meta", output_loading_info=True, use_safetensors=True, trust_remote_code=False
        )
    )


def end_incomplete(folder: str | Path, missing: Collection[str], config: str) -> None:
    first = ", ".join(list(missing)[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
    sys.exit(
        f"{folder} lacks {len(missing)} weights that its {config} tells of: {first}\n"
        f"They would be random. Download it again, or give the {config} that it was saved with."
    )
