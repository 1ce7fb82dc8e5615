"""Write the model as OpenVINO's in the format of config.yaml, by Transformers' own exporter: `python convert.py`."""

import quiet_imports  # noqa: F401  # isort: skip

import shutil
from pathlib import Path

import nncf
import openvino
import torch
from openvino_tokenizers import convert_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.exporters.exporter_openvino import OpenVINOConfig, OpenVINOExporter
from transformers.exporters.utils import decompose_prefill_decode

from converted_weights import convert_weights
from loaded_weights import check_files

COMPRESSION = {
    "int8": {"mode": "INT8_ASYM"},
    "int4": {"mode": "INT4_ASYM", "group_size": 64, "ratio": 1.0},
}
"""Of weights alone; embeddings and head are int8 in both."""


def main() -> None:
    convert_weights(("openvino", "nncf", "torch", "transformers"), write_model, COMPRESSION)


def write_model(model: Path, folder: Path, weights: str) -> None:
    check_files(model)
    program = export_step(model, torch.bfloat16 if weights == "bfloat16" else torch.float32)
    if weights in COMPRESSION:
        settings = dict(COMPRESSION[weights])
        mode = nncf.CompressWeightsMode[settings.pop("mode")]
        program = nncf.compress_weights(program, mode=mode, **settings)
    openvino.save_model(program, folder / "openvino_model.xml", compress_to_fp16=False)
    tokenizer, detokenizer = convert_tokenizer(AutoTokenizer.from_pretrained(model), with_detokenizer=True)
    openvino.save_model(tokenizer, folder / "openvino_tokenizer.xml")
    openvino.save_model(detokenizer, folder / "openvino_detokenizer.xml")
    for name in ("config.json", "generation_config.json"):
        if (model / name).is_file():
            shutil.copy(model / name, folder)


def export_step(model: Path, dtype: torch.dtype) -> openvino.Model:
    """Several tokens behind those that the state holds, or none: a prompt and a step of an answer alike."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, use_safetensors=True).eval()
    example = {"input_ids": torch.arange(24).reshape(2, 12), "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    step, inputs = decompose_prefill_decode(loaded, example, multi_token_decode=True)["decode"]
    return OpenVINOExporter().export(step, inputs, config=OpenVINOConfig(dynamic=True, stateful=True)).program


if __name__ == "__main__":
    main()
