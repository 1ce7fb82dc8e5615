"""Copy the model's GGUF file for an engine that is asked with tokens, its tokenizer beside it: `python convert.py`."""

import quiet_imports  # noqa: F401  # isort: skip

import json
from pathlib import Path

import gguf
from tokenizers import decoders, normalizers, pre_tokenizers
from transformers import AutoTokenizer

from config_file import read_config
from converted_weights import convert_weights

WRITTEN = ("GGUF.", "general.architecture", "tokenizer.")
"""What names of entries begin with that are written anew: the reader's own, and all of the tokenizer."""
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
SINGLE_DIGITS = ("codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder")
"""Values of tokenizer.ggml.pre by which each digit stands alone. Transformers 5.23 has no rule for them, and takes
GPT-2's."""
WHOLE_WORDS = ("falcon-h1", "falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "midm-2.0", "pixtral", "tekken")
"""Those by which a word of the vocabulary is never put together, and a text has a token that begins it unless the file
says otherwise."""


def main() -> None:
    own = "tokenizer" not in read_config()
    options = {"vocabulary": "numbers", "tokenizer": "of the file" if own else "another"}
    convert_weights(("gguf", "transformers"), write_own if own else write_model, options)


def write_own(model: Path, folder: Path, weights: str) -> None:
    write_model(model, folder, weights)
    read_tokenizer(model).save_pretrained(folder)


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


def add_numbers(writer: gguf.GGUFWriter, count: int) -> None:
    """The text of a token is its number. llama.cpp's server streams text, in which tokens within a character
    would be missing; and tokens that it knows to end a text would end answers that are to go on."""
    writer.add_tokenizer_model("bert")  # the one kind that has no end-of-sequence token unless told
    writer.add_token_list([f"{number} " for number in range(count)])
    writer.add_token_types([gguf.TokenType.NORMAL] * count)


def read_tokenizer(model: Path):
    """The file's, which reads texts as llama.cpp does. Transformers alone leaves out what follows here."""
    fields = gguf.GGUFReader(model).fields
    entries = {
        name: fields[key].contents()
        for name in ("model", "pre", "add_bos_token", "add_space_prefix")
        if (key := f"tokenizer.ggml.{name}") in fields
    }
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    if entries["model"] == "llama":
        space_words(tokenizer.backend_tokenizer, entries.get("add_space_prefix", True))
    elif entries.get("pre") in SINGLE_DIGITS:
        own = tokenizer.backend_tokenizer.pre_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, own])
    elif entries.get("pre") in WHOLE_WORDS:
        tokenizer.backend_tokenizer.model.ignore_merges = True
        tokenizer.add_bos_token = entries.get("add_bos_token", True)
    return tokenizer


def space_words(backend, prefix: bool) -> None:
    """As SentencePiece does: a space before each text between marks, whatever it begins with, or before none."""
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    backend.pre_tokenizer = None
    shown = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*shown, decoders.Strip(" ", 1, 0)] if prefix else shown)


if __name__ == "__main__":
    main()
