"""Run in the environment of an engine with a server of its own: whether it runs the models of each type.

Standard input: {type: whether it has states beside keys and values}; standard output: {type: whether it is run}, of decoders that
Transformers has there."""

import ast
import importlib.util
import json
import sys
from pathlib import Path

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def list_vllm() -> set[str]:
    from vllm import ModelRegistry

    return set(ModelRegistry.get_supported_archs())


def list_sglang() -> set[str]:
    """Read, as its models import CUDA's kernels."""
    folder = Path(*importlib.util.find_spec("sglang").submodule_search_locations, "srt", "models")
    assigned = [
        node.value
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EntryClass"
    ]
    return {name.id for value in assigned for name in ast.walk(value) if isinstance(name, ast.Name)}


def takes_attention(engine: str, architecture: str) -> bool:
    """Of Transformers' code, by what each engine asks it."""
    model = getattr(transformers, architecture)
    return model.is_backend_compatible() or (engine == "vllm" and model._can_set_attn_implementation())


def main() -> None:
    engine = sys.argv[1]
    own = {"vllm": list_vllm, "sglang": list_sglang}[engine]()
    answers = {}
    for kind, recurrent in json.load(sys.stdin).items():
        architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
        if isinstance(architecture, str):
            answers[kind] = architecture in own or (not recurrent and takes_attention(engine, architecture))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
