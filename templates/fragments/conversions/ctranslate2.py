"""Write the model in CTranslate2's format, as config.yaml says, by its own converter: `python convert.py`."""

import quiet_imports  # noqa: F401  # isort: skip

import json
import sys
from pathlib import Path

from ctranslate2.converters import TransformersConverter

from converted_weights import convert_weights
from loaded_weights import check_files


def main() -> None:
    convert_weights(("ctranslate2", "torch", "transformers"), write_model, {})


def write_model(model: Path, folder: Path, weights: str) -> None:
    check_files(model)
    try:
        TransformersConverter(str(model)).convert(str(folder), quantization=weights, force=True)
    except ValueError as error:
        sys.exit(f"CTranslate2's converter cannot write {model}: {error}")
    name_tokens(folder / "config.json")


def name_tokens(path: Path) -> None:
    """Where the tokenizer has no token to begin a text with, or for unknown words, the converter writes null for some
    types of models, and CTranslate2 loads no such file. Neither is asked for here: prompts are whole."""
    config = json.loads(path.read_text(encoding="utf-8"))
    instead = {"bos_token": config["eos_token"], "unk_token": ""}
    missing = {name: token for name, token in instead.items() if config[name] is None}
    path.write_text(json.dumps(config | missing, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
