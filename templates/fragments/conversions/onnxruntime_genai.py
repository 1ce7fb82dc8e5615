"""Write the model as an ONNX graph in the format of config.yaml by onnxruntime-genai's builder: `python convert.py`."""

import quiet_imports  # noqa: F401  # isort: skip

import signal
import subprocess
import sys
from pathlib import Path

from converted_weights import convert_weights
from loaded_weights import check_files

PRECISIONS = {"float32": "fp32", "int8": "int8", "int4": "int4"}
OPTIONS = {"prune_lm_head": "true"}
"""Logits of a prompt's last token alone, which is all that an answer needs."""
QUANTIZED = {"accuracy_level": "4", "block_size": "32"}
"""Products in int8, a scale for every 32 weights."""
FOUR_BITS = {"algo_config": "k_quant_mixed"}
"""llama.cpp's mixture: the output layer and the most sensitive products keep 8 bits."""


def main() -> None:
    convert_weights(
        ("onnxruntime-genai", "onnx-ir", "torch", "transformers"),
        write_graph,
        {"all": OPTIONS, "int": QUANTIZED, "int4": FOUR_BITS},
    )


def write_graph(model: Path, folder: Path, weights: str) -> None:
    check_files(model)
    options = OPTIONS | (QUANTIZED if weights.startswith("int") else {}) | (FOUR_BITS if weights == "int4" else {})
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(model), "-o", str(folder)]
    command += ["-p", PRECISIONS[weights], "-e", "cpu", "-c", str(folder / "cache")]
    command += ["--extra_options", *(f"{name}={value}" for name, value in options.items())]
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and the builder ends too
    ended = subprocess.run(command, capture_output=True, text=True, close_fds=False)  # it holds the lock too
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        sys.exit(f"onnxruntime-genai's builder could not write {model}: {lines[-1] if lines else ended.returncode}")


if __name__ == "__main__":
    main()
