"""The weights of a checkpoint, all of them: also those that Transformers saves under other names than the model's."""

from functools import partial
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file
from transformers import PreTrainedModel, Trainer
from transformers.conversion_mapping import get_model_conversion_mapping

from loaded_weights import check_loaded


def load_all_weights(trainer: Trainer) -> None:
    """Where Trainer reads a checkpoint, to resume it or to end with the best model, every weight is read.

    Trainer looks for the names of the model, and keeps the weights of the start where it does not find one: the experts
    of a mixture are one tensor in the model, and saved one by one.
    """
    trainer._load_from_checkpoint = partial(read_weights, trainer.model)
    trainer._load_best_model = lambda: read_weights(trainer.model, trainer.state.best_model_checkpoint)


def read_weights(model: PreTrainedModel, folder: str) -> None:
    """File by file where they are saved as they are; else by from_pretrained, which holds them a second time.

    Ends the process where one is missing.
    """
    files = sorted(Path(folder).glob("model*.safetensors"))
    saved = {name for path in files for name in safe_open(path, "pt").keys()}  # noqa: SIM118, it is no dict
    tied = model.all_tied_weights_keys.keys()  # of those one is saved
    converts = get_model_conversion_mapping(model, add_legacy=False)
    if not converts and model.state_dict().keys() - tied == saved - tied:
        for path in files:
            model.load_state_dict(load_file(path), strict=False)
        return
    whole, loading = type(model).from_pretrained(
        folder,
        dtype=model.dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(whole, loading)
    model.load_state_dict(whole.state_dict())
