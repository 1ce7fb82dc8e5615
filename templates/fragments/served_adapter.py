"""The adapter of config.yaml, in the weights of the model that it was trained for."""

from pathlib import Path

from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel

from loaded_weights import load_adapter


def add_adapter(model: PreTrainedModel, folder: Path | str) -> None:
    """Ends the process where its file lacks some of it. Packed weights keep it beside them, where it is not rounded."""
    load_adapter(model, Path(folder))
    model.eval()
    if getattr(model, "is_quantized", False):
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BaseTunerLayer):
                child.merge()
                setattr(parent, name, child.get_base_layer())
