"""The model in TensorFlow, from weights that PyTorch or TensorFlow saved."""

from safetensors import safe_open
from safetensors.tensorflow import load_file
from transformers import AutoConfig, TFAutoModelForCausalLM
from transformers.modeling_tf_pytorch_utils import load_pytorch_state_dict_in_tf2_model
from transformers.utils import cached_file


def load_model(source, revision: str | None = None):
    """One file of safetensors. Transformers 4.57 iterates over an open file, which safetensors does not let it."""
    path = cached_file(source, "model.safetensors", revision=revision)
    with safe_open(path, framework="np") as archive:
        by_torch = (archive.metadata() or {}).get("format") == "pt"
    if not by_torch:
        return TFAutoModelForCausalLM.from_pretrained(source, revision=revision, trust_remote_code=False)
    config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
    return load_pytorch_state_dict_in_tf2_model(TFAutoModelForCausalLM.from_config(config), load_file(path))
