"""Write the model in CTranslate2's format, as config.yaml says, by its own converter: `python convert.py`."""

import quiet_imports  # noqa: F401  # isort: skip

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


if __name__ == "__main__":
    main()
