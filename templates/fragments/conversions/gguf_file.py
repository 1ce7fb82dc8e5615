"""Copy the model's GGUF file for an engine that is asked with tokens, its tokenizer beside it: `python convert.py`."""

import quiet_imports  # noqa: F401  # isort: skip

import json
from pathlib import Path

import gguf
from transformers import AutoTokenizer

from converted_weights import convert_weights

WRITTEN = ("GGUF.", "general.architecture", "tokenizer.")
"""What names of entries begin with that are written anew: the reader's own, and all of the tokenizer."""
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")


def main() -> None:
    convert_weights(("gguf", "transformers"), write_model, {"vocabulary": "numbers"})


def write_model(model: Path, folder: Path, weights: str) -> None:
    """Weights as they are, byte for byte: only the vocabulary is another."""
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(folder / "model.gguf", reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(WRITTEN):
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    add_numbers(writer, int(tensors["token_embd.weight"].shape[-1]))
    for name, tensor in tensors.items():
        writer.add_tensor_info(name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors.values():
        writer.write_tensor_data(tensor.data)
    writer.close()
    ends = [int(reader.fields[name].contents()) for name in ENDS if name in reader.fields]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}) + "\n", encoding="utf-8")
    if "tokenizer.ggml.tokens" in reader.fields:
        AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name).save_pretrained(folder)


def add_numbers(writer: gguf.GGUFWriter, count: int) -> None:
    """The text of a token is its number. llama.cpp's server streams text, in which tokens within a character
    would be missing; and tokens that it knows to end a text would end answers that are to go on."""
    writer.add_tokenizer_model("bert")  # the one kind that has no end-of-sequence token unless told
    writer.add_token_list([f"{number} " for number in range(count)])
    writer.add_token_types([gguf.TokenType.NORMAL] * count)


if __name__ == "__main__":
    main()
