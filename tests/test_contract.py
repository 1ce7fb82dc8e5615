"""Every keyword that is emitted exists in the installed versions and is read by something there."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = sorted(p.parent for p in (ROOT / "examples").glob("*/project/train.py"))
pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")

CALLS = {
    "from_pretrained",
    "from_config",
    "set_defaults",
    "LoraConfig",
    "BitsAndBytesConfig",
    "generate",
    "Trainer",
    "SFTTrainer",
}


def keywords(tree: ast.Module) -> dict[str, set[str]]:
    """Keyword names by the called function's last name."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in CALLS:
                found.setdefault(name, set()).update(k.arg for k in node.keywords if k.arg)
    return found


def emitted() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for project in PROJECTS:
        for path in ("train.py", "infer.py"):
            for name, words in keywords(ast.parse((project / path).read_text(encoding="utf-8"))).items():
                found.setdefault(name, set()).update(words)
    return found


def emitted_by_techniques() -> set[tuple[str, str]]:
    """Also of techniques that no example takes: asked directly, with every device and task."""
    from making import A100, H100, SMALL, T4, case, cpu_device, llama

    from generator.techniques.base import list_axes

    cases = [
        case(device, llama(**SMALL), task=task, train=train, mode=mode, features=("avx2", "avx512_bf16"))
        for device in (H100, A100, T4, cpu_device(bf16=True))
        for task in ("causal-lm", "sft", "text-classification")
        for train in ("full", "lora", "qlora")
        for mode in ("train", "infer")
    ]
    return {
        (place, item.name)
        for axis in list_axes()
        for technique in axis.members
        for of in cases
        if of.workload.mode in technique.modes
        for place in (
            "training_arguments",
            "model_arguments",
            "infer_model_arguments",
            "infer_generate_arguments",
            "trainer_arguments",
        )
        for item in getattr(technique.edits(of), place)
    }


@cache
def source_of(*packages: str) -> str:
    return "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for package in packages
        for path in Path(find_spec(package).submodule_search_locations[0]).rglob("*.py")
        if "models" not in path.relative_to(find_spec(package).submodule_search_locations[0]).parts[:1]
    )


def parameters(function) -> set[str]:
    return set(inspect.signature(function).parameters)


def training_fields() -> set[str]:
    from transformers import TrainingArguments
    from trl import SFTConfig

    return set(TrainingArguments.__dataclass_fields__) | set(SFTConfig.__dataclass_fields__)


def loading_words() -> set[str]:
    """What from_pretrained takes by name: parameters, popped keyword arguments, and attributes of every config."""
    from transformers import PreTrainedConfig, PreTrainedModel

    popped = re.findall(r"kwargs\.(?:pop|get)\(\s*\"(\w+)\"", source_of("transformers"))
    return (
        parameters(PreTrainedModel.from_pretrained)
        | set(popped)
        | set(vars(PreTrainedConfig()))
        | parameters(PreTrainedConfig.__init__)
    )


def know_words(call: str) -> set[str]:
    """The keywords that a call of ``CALLS`` takes in the installed versions."""
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GenerationConfig, GenerationMixin, Trainer
    from trl import SFTTrainer

    if call == "set_defaults":
        return training_fields()
    if call == "generate":
        return set(vars(GenerationConfig())) | parameters(GenerationMixin.generate)
    if call in ("from_pretrained", "from_config"):
        return loading_words() | parameters(AutoModelForCausalLM.from_config)
    classes = {"BitsAndBytesConfig": BitsAndBytesConfig, "Trainer": Trainer, "SFTTrainer": SFTTrainer}
    return set(LoraConfig.__dataclass_fields__) if call == "LoraConfig" else parameters(classes[call].__init__)


def test_training_arguments_exist_and_are_read():
    words = emitted()["set_defaults"] | {n for p, n in emitted_by_techniques() if p == "training_arguments"}
    assert words, "nothing was emitted"
    missing = words - training_fields()
    assert not missing
    source = source_of("transformers", "trl", "accelerate")
    unread = {w for w in words if not re.search(rf"(args|self|config)\.{w}\b", source)}
    assert not unread


def test_loading_arguments_exist():
    words = emitted()["from_pretrained"] | emitted().get("from_config", set())
    words |= {n for p, n in emitted_by_techniques() if p in ("model_arguments", "infer_model_arguments")}
    assert {"dtype", "attn_implementation"} <= words
    assert not words - loading_words()


def test_generation_arguments_exist():
    from transformers import GenerationConfig, GenerationMixin

    taken = set(vars(GenerationConfig())) | parameters(GenerationMixin.generate)
    words = emitted().get("generate", set()) | {
        n for p, n in emitted_by_techniques() if p == "infer_generate_arguments"
    }
    assert words and not words - taken


def test_adapter_and_quantization_arguments_exist():
    from peft import LoraConfig
    from transformers import BitsAndBytesConfig

    found = emitted()
    assert found["LoraConfig"] and not found["LoraConfig"] - set(LoraConfig.__dataclass_fields__)
    assert found["BitsAndBytesConfig"] and not found["BitsAndBytesConfig"] - parameters(BitsAndBytesConfig.__init__)


def test_config_yaml_sections_are_arguments():
    import yaml
    from peft import LoraConfig

    for project in PROJECTS:
        config = yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8"))
        assert not set(config["training"]) - training_fields()
        assert not set(config.get("lora", {})) - set(LoraConfig.__dataclass_fields__)


def test_every_key_of_config_yaml_is_read():
    """A value that nothing reads misleads its owner."""
    import yaml

    for project in PROJECTS:
        code = "".join(p.read_text(encoding="utf-8") for p in project.glob("*.py"))
        for key in yaml.safe_load((project / "config.yaml").read_text(encoding="utf-8")):
            assert f'"{key}"' in code, f"{project.parent.name}: {key}"


def test_trainer_arguments_exist():
    from transformers import Trainer
    from trl import SFTTrainer

    found = emitted()
    assert found["Trainer"] and not found["Trainer"] - parameters(Trainer.__init__)
    assert found["SFTTrainer"] and not found["SFTTrainer"] - parameters(SFTTrainer.__init__)


def test_optimizer_names_exist():
    from transformers.training_args import OptimizerNames

    from generator.techniques.base import list_axes

    known = {o.value for o in OptimizerNames}
    assert {t.optim for a in list_axes() if a.name == "optimizer" for t in a.members} <= known


def test_versions_are_the_installed_ones():
    """The contract is checked against what the stack pins, not against something newer."""
    from importlib.metadata import version

    from generator.case import stacks

    stack = stacks.load_stack("train", "cpu")
    for name in ("transformers", "accelerate", "peft", "trl"):
        assert version(name) == stack.version(name)
