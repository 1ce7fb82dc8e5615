"""Sizes of an architecture that the tables do not know: Transformers builds it on the meta device, in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from generator.errors import SourceError
from generator.model import ModelSpec

SECONDS = 300
COUNT = """
import json, sys
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

told = json.load(sys.stdin)
kind = told.pop("model_type")
config = AutoConfig.for_model(kind, **{k: v for k, v in told.items() if k not in ("transformers_version", "quantization_config")})
text = config.get_text_config()
with torch.device("meta"):
    try:
        model, head = AutoModelForCausalLM.from_config(config), True
    except ValueError:
        model, head = AutoModel.from_config(config), False
blocks = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and "." in n and "head" not in n.split(".")[-1]]
get = lambda *names: next((v for n in names if isinstance(v := getattr(text, n, None), int)), 0)
embedding = model.get_input_embeddings()
heads = get("num_attention_heads", "encoder_attention_heads", "n_heads")
experts = get("num_local_experts", "num_experts", "n_routed_experts")
print(json.dumps({
    "architecture": type(model).__name__,
    "kind": "encoder-decoder" if config.is_encoder_decoder else "decoder" if head else "encoder",
    "params": sum(p.numel() for p in model.parameters()),
    "linear_params": sum(m.weight.numel() for m in blocks),
    "embedding_params": 0 if embedding is None else embedding.weight.numel(),
    "layers": get("num_hidden_layers", "encoder_layers", "n_layers"),
    "hidden": get("hidden_size", "d_model"),
    "heads": heads,
    "kv_heads": get("num_key_value_heads") or heads,
    "head_dim": get("head_dim") or (get("hidden_size", "d_model") // heads if heads else 0),
    "ffn": get("intermediate_size", "encoder_ffn_dim", "d_ff", "ffn_dim"),
    "vocab": get("vocab_size"),
    "experts": experts,
    "experts_per_token": get("num_experts_per_tok", "num_experts_per_token") if experts else 0,
    "expert_ffn": get("moe_intermediate_size") if experts else 0,
    "max_positions": get("max_position_embeddings") or None,
    "tied_embeddings": bool(getattr(text, "tie_word_embeddings", False)),
}))
"""


def describe_on_meta(config: dict, name: str, why: str) -> ModelSpec:
    """The spec as counted (cached by the config's content). Raises ``SourceError`` when Transformers cannot build it either."""
    text = json.dumps(config, sort_keys=True)
    path = cache_folder() / f"{hashlib.sha256((text + COUNT).encode()).hexdigest()[:32]}.json"
    found = cached(path) or counted(text, name, path)
    missing = [key for key in ("layers", "hidden", "heads", "params") if not found[key]]
    if missing:
        raise SourceError(
            f"cannot size {name} ({config.get('model_type')}): its config says nothing of {', '.join(missing)}",
            "perfgen plans for transformers with these sizes",
        )
    active = found["params"]
    return ModelSpec(
        name=name,
        model_type=config["model_type"],
        active_params=active,
        dtype=config.get("dtype") or config.get("torch_dtype"),
        quantization=(config.get("quantization_config") or {}).get("quant_method"),
        basis="meta-device",
        notes=(
            f"{why}: counted by Transformers on the meta device; activations are those of a plain transformer (assumed)",
        ),
        **found,
    )


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "perfgen"  # noqa: PTH111  see sources


def cached(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def counted(text: str, name: str, path: Path) -> dict:
    quiet = os.environ | {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", COUNT]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=SECONDS, env=quiet, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"cannot size {name}: Transformers did not build it in {SECONDS} s") from error
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no reason given"
        raise SourceError(
            f"cannot size {name}: perfgen's tables do not know {json.loads(text).get('model_type')!r}, and Transformers said: {reason}",
            "`pip install perfgen[train]` if Transformers is missing; otherwise the model is newer than this stack",
        )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found), encoding="utf-8")
    except OSError:
        pass  # a read-only home: counted again next time
    return found
