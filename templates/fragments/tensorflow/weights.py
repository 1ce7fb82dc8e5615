"""The model in TensorFlow, from weights that PyTorch or TensorFlow saved."""

import sys

from safetensors import safe_open
from safetensors.tensorflow import load_file
from transformers import AutoConfig, TFAutoModelForCausalLM
from transformers.modeling_tf_pytorch_utils import load_pytorch_state_dict_in_tf2_model
from transformers.utils import cached_file

SHOWN = 3


def load_model(source, revision: str | None = None):
    """One file of safetensors. Transformers 4.57 iterates over an open file, which safetensors does not let it."""
    path = cached_file(source, "model.safetensors", revision=revision)
    with safe_open(path, framework="np") as archive:
        by_torch = (archive.metadata() or {}).get("format") == "pt"
    if by_torch:
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
        model, loading = load_pytorch_state_dict_in_tf2_model(
            TFAutoModelForCausalLM.from_config(config),
            load_file(path),
            allow_missing_keys=True,
            output_loading_info=True,
        )
    else:
        model, loading = TFAutoModelForCausalLM.from_pretrained(
            source, revision=revision, output_loading_info=True, trust_remote_code=False
        )
    if missing := loading["missing_keys"]:
        first = ", ".join(missing[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
        sys.exit(
            f"{source} lacks {len(missing)} weights that its config.json tells of: {first}\n"
            "They would be random. Download it again, or give the config.json that it was saved with."
        )
    return model
