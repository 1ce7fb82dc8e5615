"""Sizes of an architecture that the tables do not know: Transformers builds it on the meta device, in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from math import inf
from pathlib import Path

from generator.errors import SourceError, quote_error, suggest_names
from generator.inputs.json_files import load_json, replace_file
from generator.inputs.kept_on_meta import measure_kept
from generator.inputs.saved_on_meta import measure_saved
from generator.model import Attended, ModelSpec
from generator.model.routers import WITH_LOSS
from generator.model.settings import load_defaults
from generator.model.stored_formats import has_stored_offsets, read_stored_bytes, read_stored_format
from hwdetect.machine.process import HeadAndTail, build_own_command, isolate_python, run_process

SHOWN = 40
"""Characters of a type's name in a message."""
NEWER = "`pip install perfgen[train]` if Transformers is missing; otherwise the model is newer than this stack, or its config contradicts itself"
SECONDS = 300
HEAD_BYTES, TAIL_BYTES = 0, 1 << 20
"""of what it prints: the counts are the last line"""
VERSION = 8
"""of what is counted: an older cache is not read"""
UNREAD = ("transformers_version", "quantization_config", "auto_map", "model_type")
SIZES = {
    "layers": ("num_hidden_layers", "num_layers", "n_layers", "encoder_layers"),
    "hidden": ("hidden_size", "d_model"),
    "heads": ("num_attention_heads", "encoder_attention_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "encoder_ffn_dim", "d_ff", "ffn_dim"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts"),
    "expert_ffn": ("moe_intermediate_size",),
    "max_positions": ("max_position_embeddings",),
}
UNPLANNED = {
    "fnet": "its layers mix tokens by Fourier transforms, without attention",
    "funnel": "its blocks see fewer and fewer tokens",
    "perceiver": "its layers attend from a fixed number of latents, whatever the length of the text",
    "prophetnet": "its decoder has a stream of states for each token that it predicts ahead",
    "reformer": "its layers attend within buckets of hashes, by blocks that are reversed in the backward pass",
}
"""Types that Transformers has, and whose layers no formula of the cost model is for."""
NUMBERS = dict.fromkeys((*SIZES, "params", "active_params", "linear_params", "embedding_params"), int)
LIMITED = NUMBERS | {
    "architecture": str, "kind": str, "gated": bool, "tied_embeddings": bool, "scans": bool, "attention": list, "state_elements": int, "saved": list,
}  # fmt: skip
COUNTED = (LIMITED, LIMITED | {"max_positions": type(None)})
"""What ``count`` gives: types by key."""


def describe_on_meta(config: dict, name: str, why: str) -> ModelSpec:
    """The spec as counted (cached by the config's content). Raises ``SourceError`` when Transformers cannot build it either."""
    if reason := UNPLANNED.get(config["model_type"]):
        raise SourceError(
            f"{name} ({config['model_type']}) is not planned: {reason}, and the cost model has no formula for that",
            "give a plain transformer, such as a BERT for --task text-classification or a Llama",
        )
    text = json.dumps(config, sort_keys=True)
    path = find_cache_folder() / f"{hashlib.sha256(f'{VERSION} {text}'.encode()).hexdigest()[:32]}.json"
    counts = read_cached(path) or count_in_child(text, name, path)
    missing = [key for key in ("layers", "hidden", "heads", "params") if not counts[key]]
    missing += ["num_experts_per_tok"] if counts["experts"] and not counts["experts_per_token"] else []
    if missing:
        raise SourceError(
            f"cannot size {name} ({config.get('model_type')}): its config says nothing of {', '.join(missing)}",
            "perfgen plans for transformers with these sizes",
        )
    sizes = {key: value for key, value in counts.items() if key not in ("scans", "attention", "saved")}
    attention = tuple(Attended(*kind) for kind in counts["attention"])
    return ModelSpec(
        name=name,
        model_type=config["model_type"],
        router_loss=bool(sizes["experts"]) and config["model_type"] in WITH_LOSS,
        dtype=config.get("dtype") or config.get("torch_dtype"),
        quantization=(config.get("quantization_config") or {}).get("quant_method"),
        stored_format=read_stored_format(config.get("quantization_config") or {}),
        stored_bytes=read_stored_bytes(config.get("quantization_config") or {}),
        stored_offsets=has_stored_offsets(config.get("quantization_config") or {}),
        basis="meta-device",
        notes=(f"{why}: {describe_counted(counts)}", *(describe_scans(counts) if counts["scans"] else ())),
        attention=attention,
        saved=tuple(counts["saved"]),
        **sizes | {"architecture": (config.get("architectures") or [counts["architecture"]])[0]},
    )


def describe_counted(counts: dict) -> str:
    """What is known of the model, and what is taken to be a plain transformer's."""
    traced = ", and so is what a block keeps for its backward pass" if counts["saved"] else ""
    assumed = [
        *([] if counts["saved"] else ["activations"]),
        *([] if counts["attention"] else ["the cache of keys and values"]),
    ]
    if not assumed:
        return f"counted by Transformers on the meta device{traced}"
    are = "are" if assumed[0] == "activations" else "is"
    return f"counted by Transformers on the meta device{traced}; {' and '.join(assumed)} {are} that of a plain transformer (assumed)"


def describe_scans(counts: dict) -> tuple[str, ...]:
    """Of layers that convolve the tokens, as those do that keep a recurrent state."""
    left_out = "the time of their scan is" if counts["saved"] else "memory and time of their scan are"
    return (
        f"its layers convolve the tokens, as those do that keep a recurrent state: {left_out} not in the estimates (Transformers may run "
        "it by plain PyTorch operators, slower and in more memory): smoke-run first",
    )


def find_cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "perfgen"  # noqa: PTH111  see sources


def read_cached(path: Path) -> dict | None:
    """``None`` for a file that is not there or damaged: what it holds is counted again."""
    try:
        counts = load_json(path)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(counts, dict) or {key: type(value) for key, value in counts.items()} not in COUNTED:
        return None
    numbers = len(counts["saved"]) in (0, 4) and all(type(n) in (int, float) and 0 <= n < inf for n in counts["saved"])
    return counts if numbers and all(is_kept(kind) for kind in counts["attention"]) else None


def is_kept(kind: object) -> bool:
    """Whether it is what ``Attended`` is made of: three whole numbers, and a window or none."""
    if not isinstance(kind, list) or len(kind) != 4:
        return False
    return all(type(number) is int for number in kind[:3]) and type(kind[3]) in (int, type(None))


def count_in_child(text: str, name: str, path: Path) -> dict:
    """Counted in another process, and kept in the file ``path`` of the cache. Raises ``SourceError``."""
    counts = ask_child(text, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(counts))
    except OSError:
        pass  # a read-only home: counted again next time
    return counts


def ask_child(text: str, name: str) -> dict:
    """What another process counts, which imports Transformers and may fail or hang. Raises ``SourceError``."""
    quiet = isolate_python() | {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = run_process(
        build_own_command("generator.inputs.meta_device"),
        SECONDS,
        environment=quiet,
        given=text.encode(),
        errors=subprocess.PIPE,
        output=HeadAndTail(HEAD_BYTES, TAIL_BYTES),
    )
    if ended.problem:
        raise SourceError(f"cannot size {name}: Transformers did not build it: {ended.problem}")
    if ended.code != 0:
        errors = ended.errors.decode("utf-8", "replace").strip().splitlines()
        reason = errors[-1] if errors else "no reason given"
        if "Unrecognized model identifier" in reason:  # and all hundreds that it knows
            model_type = str(json.loads(text).get("model_type"))[:SHOWN]
            raise SourceError(
                f"cannot size {name}: perfgen's tables and Transformers do not know {model_type!r}",
                suggest_names(model_type.lower().replace("-", "_"), load_defaults()["types"], NEWER),
            )
        raise SourceError(
            f"cannot size {name}: perfgen's tables do not know {str(json.loads(text).get('model_type'))[:SHOWN]!r} in this form, and "
            f"Transformers said: {quote_error(reason)}",
            NEWER,
        )
    return json.loads(ended.raw.decode().strip().splitlines()[-1])


def main(arguments: Sequence[str] = ()) -> None:
    """The other process: a config on standard input, its counts on the last line of standard output."""
    print(json.dumps(count(json.load(sys.stdin))))


def make_config(config_values: dict):
    """The config as Transformers reads it."""
    from transformers import AutoConfig

    read = restore_floats({k: v for k, v in config_values.items() if k not in UNREAD})
    return AutoConfig.for_model(config_values["model_type"], **read)


def restore_floats(value):
    """Numbers that JSON has no word for, as Transformers 5 writes them: ``{"__float__": "Infinity"}``."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {key: restore_floats(item) for key, item in value.items()}
    return [restore_floats(item) for item in value] if isinstance(value, list) else value


def build_model(config) -> tuple:
    """The model of ``ModelSpec.params`` on the meta device, and its kind: see there which class that is."""
    import torch
    from transformers import AutoModel
    from transformers.models.auto import modeling_auto as auto

    two = config.is_encoder_decoder
    # bert-generation has no class for masks, and sees as far ahead as BERT does
    both_ways = type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING or config.model_type == "bert-generation"
    both_ways = both_ways and not config.to_dict().get("is_decoder")
    classes = (
        ("encoder-decoder", auto.AutoModelForSpeechSeq2Seq, two),
        ("encoder-decoder", auto.AutoModelForSeq2SeqLM, two),
        ("decoder", auto.AutoModelForCausalLM, not two and not both_ways),
        ("multimodal", auto.AutoModelForImageTextToText, True),
        ("multimodal", auto.AutoModelForSeq2SeqLM, True),
        ("encoder", AutoModel, True),
    )
    with torch.device("meta"):
        for kind, cls, fits in classes:
            if fits and type(config) in cls._model_mapping:
                model = cls.from_config(config)
                return model, kind if kind != "encoder" else make_sense(model)
    raise ValueError(f"no model of Transformers is made from {type(config).__name__}")


def build_text_model(text, model):
    """What writes of a model, ready to be run on shapes: experts multiply in 16 bits alone."""
    import torch
    from transformers.models.auto import modeling_auto as auto

    if text is not model.config and type(text) in auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        with torch.device("meta"):
            model = auto.AutoModelForCausalLM.from_config(text)
    return model.bfloat16().eval()


def make_sense(model) -> str:
    """What a model without a head takes: text, images, sound, or several of them."""
    if "text_config" in model.config.sub_configs:
        return "multimodal"
    inputs = {"pixel_values": "vision", "input_values": "audio", "input_features": "audio"}
    return inputs.get(model.main_input_name, "encoder")


def count(config_values: dict) -> dict:
    """The sizes of a config and the counts of its model, as ``ModelSpec`` names them."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    config = make_config(config_values)
    text = config.get_text_config(decoder=config.is_encoder_decoder or None)
    model, kind = build_model(config)
    sizes = {size: next((n for key in keys if (n := describe_count(text, key))), 0) for size, keys in SIZES.items()}
    outside = {id(m) for m in find_embeddings(model) if m is not None}
    linears = [m for m in model.modules() if isinstance(m, (nn.Linear, Conv1D)) and id(m) not in outside]
    params = sum(p.numel() for p in model.parameters())
    if not any(p.dim() > 1 and p.shape[0] == sizes["experts"] for p in model.parameters()):
        sizes["experts"] = 0  # the config of Doge has their number where it builds none
    experts, active = sizes["experts"], sizes["experts_per_token"]
    routed = [p for n, p in model.named_parameters() if ".experts." in n and p.shape[0] == experts]
    fused = [p for p in routed if p.dim() == 3]
    idle = sum(p.numel() for p in routed) * (experts - active) // experts if experts and active else 0
    hidden, heads = sizes["hidden"], sizes["heads"]
    head_dim = sizes["head_dim"] or (hidden // heads if heads else 0)
    tied, attention, state_elements, saved = find_tied(model), [], 0, []
    if kind in ("decoder", "multimodal"):
        head = find_latent_head(text) or head_dim
        writer = build_text_model(text, model)
        attention, state_elements = measure_kept(writer, sizes["layers"], heads, head)
        saved = measure_saved(writer, sizes["layers"])
    return sizes | {
        "architecture": type(model).__name__,
        "kind": kind,
        "params": params,
        "active_params": params - idle,
        "linear_params": sum(m.weight.numel() for m in linears) + sum(p.numel() for p in fused),
        "embedding_params": sum(p.numel() for m in model.modules() if id(m) in outside for p in m.parameters()),
        "kv_heads": sizes["kv_heads"] or heads,
        "head_dim": head_dim,
        "experts_per_token": active if experts else 0,
        "expert_ffn": (sizes["expert_ffn"] or sizes["ffn"]) if experts else 0,
        "max_positions": sizes["max_positions"] or None,
        "gated": any(name.endswith(("gate_proj", "gate_up_proj", "w3")) for name, _ in model.named_modules())
        or bool(fused),
        "tied_embeddings": tied,
        "attention": attention,
        "state_elements": state_elements,
        "saved": saved,
        "scans": kind == "decoder" and any(convolves_tokens(m) for m in model.modules()),
    }


def describe_count(config, key: str) -> int | None:
    """A whole number of the config, ``None`` where it says nothing or one for each layer."""
    value = config.to_dict().get(config.attribute_map.get(key, key))
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def find_latent_head(config) -> int:
    """Of a model that keeps a latent for all heads (DeepSeek): the mean of a key's and a value's size; 0 for others."""
    keys = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = [size for key in keys if (size := describe_count(config, key))]
    return sum(sizes) // 2 if len(sizes) == len(keys) else 0


def convolves_tokens(module) -> bool:
    """Whether it is the convolution of each channel by itself that stands before a state space or a linear attention."""
    from torch import nn

    return isinstance(module, nn.Conv1d) and module.groups == module.in_channels > 1


def find_embeddings(model) -> tuple:
    """The input embedding and the output layer, ``None`` for what a model has not: those of images raise where it is asked for."""
    try:
        return model.get_input_embeddings(), model.get_output_embeddings()
    except NotImplementedError:
        return None, None


def find_tied(model) -> bool:
    """Whether the output layer is the input embedding (or there is none)."""
    embedding, head = find_embeddings(model)
    return head is not None and embedding is not None and head.weight is embedding.weight
