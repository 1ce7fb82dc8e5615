"""Which weights and tokenizer answer: names, sizes and samples of their files' bytes, for a job that goes on later."""

import hashlib
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sources import find_source

PACKAGES = (
    *("torch", "transformers", "onnxruntime-genai", "onnxruntime", "openvino-genai", "openvino", "ctranslate2"),
    *("xllamacpp", "mlx", "mlx-lm", "vllm", "sglang"),
)
"""Those that compute; another version may round otherwise."""
SAMPLES, SAMPLE_BYTES = 16, 1 << 16
"""Spread over each file: weights that were trained on differ everywhere."""


def describe_model(config: dict, here: Path) -> dict:
    """For comparison: the model as config.yaml has it, a hash of its files, and what computes with them."""
    named = {key: find_source(config, key) for key in ("model", "tokenizer", "adapter") if key in config}
    converted = config.get("serving", {}).get("converted")  # a project without a server converts nothing
    places = [place for place in named.values() if isinstance(place, Path)]
    if converted and not (here / converted).is_dir():
        sys.exit(f"{here / converted} is not here: make the engine's weights with `make setup`, or python convert.py")
    places += [here / converted] if converted else []
    return {
        "model": config["model"],
        "revision": config.get("revision"),
        **{key: config[key] for key in ("tokenizer", "tokenizer_revision", "adapter") if key in config},
        "weights_sha256": hash_samples(places),
        "versions": list_versions(),
    }


def list_versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def hash_samples(places: list[Path]) -> str:
    value = hashlib.sha256()
    for place in places:
        files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
        for path in files:
            size = path.stat().st_size
            value.update(f"{path.relative_to(place) if place.is_dir() else path.name} {size}\n".encode())
            with path.open("rb", buffering=0) as stream:
                for start in sorted({size * number // SAMPLES for number in range(SAMPLES)}):
                    stream.seek(start)
                    value.update(stream.read(SAMPLE_BYTES))
    return value.hexdigest()
