"""Reading the user's model files: the edge where outside text becomes values. Nothing here imports torch."""

from __future__ import annotations

import json
import os
import re
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from queue import Empty, Queue

from generator.errors import SourceError
from generator.meta_device import describe_on_meta
from generator.model import ModelSpec, NeedsMetaDevice, describe

HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,95})?", re.ASCII)
HUB_ID_RULE = "a hub id is NAME or OWNER/NAME of letters, digits, dots, dashes and underscores"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "tekken.json")
MAX_HEADER_BYTES = 100_000_000
"""safetensors' own limit for a header"""
MAX_JSON_BYTES = 64 << 20
"""The largest index of a published checkpoint is a few MiB: what is larger is no config."""
HUB_SECONDS = 20
"""How long the hub may take to hand over a config.json of a few KiB."""
SHAPES = {
    "model_type": str,
    "architectures": (list, type(None)),
    "text_config": dict,
    "quantization_config": (dict, type(None)),
    "dtype": (str, type(None)),
    "torch_dtype": (str, type(None)),
}
"""What JSON holds under the keys that are read as something else than a size."""
COUNTS = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), (1, 10_000)),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "num_attention_heads", "n_head", "vocab_size"), (1, 10**9)),
    **dict.fromkeys(
        (
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "n_inner",
            "moe_intermediate_size",
            "num_local_experts",
            "num_experts",
            "n_routed_experts",
            "num_experts_per_tok",
            "type_vocab_size",
            "sliding_window",
        ),
        (0, 10**9),
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), (0, 10**12)),
}
"""The least and the most of the sizes that are read; 10^12 positions, for some configs say 1e9 or more for "no limit"."""
OTHER_WEIGHTS = re.compile(r".*\.(gguf|bin|pt|pth|ckpt|h5|msgpack|onnx)")
NO_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|rng_state.*|scaler)\.(bin|pt|pth)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model as found: ``kind`` folder, config or hub; ``path`` what the project's config.yaml will say."""

    kind: str
    path: str
    config: str
    """the parsed config.json, as JSON text"""
    has_weights: bool
    has_tokenizer: bool
    has_chat_template: bool
    name: str = ""
    revision: str | None = None
    weight_bytes: int | None = None
    tokenizer: str | None = None
    """its folder, where ``path`` is not that"""
    notes: tuple[str, ...] = ()


def read_model(source: str, *, offline: bool, config: str | None = None) -> ModelSource:
    """A folder, a config.json, or a hub id. ``config`` is a file to use for a hub id. Raises ``SourceError``."""
    path = Path(source)
    try:
        is_dir, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError) as error:
        raise SourceError(f"--model {source!r}: {error}", "give a folder, a config.json or a hub id") from error
    if is_dir:
        return read_folder(path.resolve(), source)
    if is_file:
        return read_config_file(path.resolve())
    if not is_hub_id(source):
        raise SourceError(f"--model {source!r} is neither a folder, nor a config.json, nor a hub id", HUB_ID_RULE)
    return read_hub(source, offline, config)


def is_hub_id(text: str) -> bool:
    return bool(HUB_ID.fullmatch(text)) and ".." not in text


def read_config_file(path: Path) -> ModelSource:
    """Only sizes: training from scratch. What lies beside it is not taken for its weights."""
    has_tokenizer = any((path.parent / name).is_file() for name in TOKENIZER_FILES)
    return ModelSource(
        kind="config",
        name=path.parent.name if path.stem == "config" else path.stem,
        path=str(path),
        config=json.dumps(load_config(path)),
        has_weights=False,
        has_tokenizer=has_tokenizer,
        has_chat_template=has_tokenizer and has_chat_template(path.parent),
        tokenizer=str(path.parent) if has_tokenizer else None,
        notes=(f"{path.name} holds sizes only: training starts from random weights",),
    )


def read_json(path: Path, hint: str) -> object:
    """The parsed content of a small JSON file. Raises ``SourceError``."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
            raise SourceError(f"{path} is no file of at most {MAX_JSON_BYTES >> 20} MiB", hint)
        found = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(found, ensure_ascii=False).encode()
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", hint) from error
    except UnicodeEncodeError as error:
        raise SourceError(f"{path} holds half a surrogate pair, which no file can hold", hint) from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not JSON: {error}", hint) from error
    return found


def load_config(path: Path) -> dict:
    """A Transformers config.json whose sizes are numbers. Raises ``SourceError``."""
    hint = "give a Transformers config.json"
    config = read_json(path, hint)
    if not isinstance(config, dict):
        raise SourceError(f"{path} holds no object but {type(config).__name__}", hint)
    if config.get("auto_map"):
        raise SourceError(
            f"{path}: the model needs its own Python code (auto_map), which perfgen never runs",
            "use a model that Transformers itself knows",
        )
    if "model_type" not in config:
        raise SourceError(f"{path} names no model_type", hint)
    for wrong in oddities(config):
        raise SourceError(f"cannot size {path}: {wrong}", "a config.json with the usual size fields is needed")
    return whole(config)


def oddities(config: dict) -> Iterator[str]:
    """What in a config cannot be meant: text where a number belongs, a negative size, a null object."""
    for key, value in config.items():
        if key in SHAPES and not isinstance(value, SHAPES[key]):
            yield f"{key} is {shown(value)}"
        elif key == "architectures" and not all(isinstance(name, str) for name in value or ()):
            yield f"{key} holds {shown(value)}, names are expected"
        elif key == "quantization_config" and value and not isinstance(quant_method(value), str):
            yield f"{key} names no quant_method"
        elif key in COUNTS:
            least, most = COUNTS[key]
            for number in value if isinstance(value, list) else [value]:  # a list: one for each layer
                if number is not None and not is_count(number, least, most):
                    yield f"{key} is {shown(number)}, a whole number from {least} to {most} is expected"
        elif isinstance(value, dict):
            yield from oddities(value)


def quant_method(told: dict) -> object:
    """Checkpoints of the first bitsandbytes releases say only ``load_in_4bit`` or ``load_in_8bit``."""
    old = told.get("load_in_4bit") or told.get("load_in_8bit")
    return told.get("quant_method") or ("bitsandbytes" if old else None)


def is_count(value: object, least: int, most: int) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and least <= value <= most and value == int(value)


def shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def whole(config: dict) -> dict:
    """The config with 1e9 read as the whole number that it is, and the quantization named."""
    made = {}
    for key, value in config.items():
        if key == "quantization_config" and value:
            made[key] = value | {"quant_method": quant_method(value)}
        elif isinstance(value, dict):
            made[key] = whole(value)
        else:
            made[key] = int(value) if key in COUNTS and isinstance(value, float) else value
    return made


def read_folder(folder: Path, said: str) -> ModelSource:
    try:
        names = {p.name for p in folder.iterdir()}
    except OSError as error:
        raise SourceError(f"{said}: {error.strerror}", "give a folder that you may read") from error
    if "config.json" not in names:
        raise SourceError(*without_config(said, names))
    config = load_config(folder / "config.json")
    check_tokenizer_config(folder)
    weight_bytes = check_weights(folder, names)
    if weight_bytes is None:
        refuse_other_weights(said, names)
    notes = () if weight_bytes is not None else (f"{said} holds no weights: training starts from random ones",)
    return ModelSource(
        kind="folder",
        name=folder.name,
        path=str(folder),
        config=json.dumps(config),
        has_weights=weight_bytes is not None,
        has_tokenizer=any(name in names for name in TOKENIZER_FILES),
        has_chat_template=has_chat_template(folder),
        weight_bytes=weight_bytes,
        notes=notes,
    )


def without_config(said: str, names: set[str]) -> tuple[str, str]:
    """What a folder without a config.json is, and what to give in its place."""
    if "adapter_config.json" in names:
        return f"{said} holds an adapter only", "give the base model; merge the adapter into it first"
    if any(name.endswith(".gguf") for name in names):
        return f"{said} holds GGUF files only", "give the safetensors checkpoint that they were made from"
    if "model_index.json" in names:
        return f"{said} holds a diffusion pipeline", "perfgen plans for language models and classifiers"
    return f"{said} holds no config.json", "give a Transformers model folder"


def refuse_other_weights(said: str, names: set[str]) -> None:
    """Without safetensors, random weights are meant only where there are no trained ones. Raises ``SourceError``."""
    if "adapter_config.json" in names:
        raise SourceError(*without_config(said, names))
    found = sorted(n for n in names if OTHER_WEIGHTS.fullmatch(n) and not NO_WEIGHTS.fullmatch(n))
    if any(name.endswith((".bin", ".pt", ".pth", ".ckpt")) for name in found):
        raise SourceError(
            f"{said} holds pickled weights only ({found[0]}), which can run code when they are loaded",
            "convert them to safetensors first: AutoModel.from_pretrained(...).save_pretrained(NEW_FOLDER)",
        )
    if found:
        raise SourceError(
            f"{said} holds no safetensors, only {', '.join(found[:3])}",
            "give the safetensors checkpoint; to train from random weights, give its config.json alone",
        )


def check_tokenizer_config(folder: Path) -> None:
    """Refuse a tokenizer that needs code of its own. Raises ``SourceError``."""
    path = folder / "tokenizer_config.json"
    told = read_json(path, "download it again") if path.exists() else {}
    if not isinstance(told, dict):
        raise SourceError(f"{path} holds no object but {type(told).__name__}", "download it again")
    if told.get("auto_map"):
        raise SourceError(
            f"{path}: the tokenizer needs its own Python code (auto_map), which perfgen never runs",
            "use a model that Transformers itself knows",
        )


def read_tokenizer(source: str) -> str:
    """``--tokenizer``: a folder (its full path is returned) or a hub id. Raises ``SourceError``."""
    path = Path(source)
    if path.is_dir():
        if not any((path / name).is_file() for name in TOKENIZER_FILES):
            raise SourceError(f"--tokenizer {source} holds none of {', '.join(TOKENIZER_FILES)}", "check the folder")
        check_tokenizer_config(path)
        return str(path.resolve())
    if not is_hub_id(source):
        raise SourceError(f"--tokenizer {source!r} is neither a folder nor a hub id", HUB_ID_RULE)
    return source


def has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def check_weights(folder: Path, names: set[str]) -> int | None:
    """Bytes of all shards, every header looked at; ``None`` without safetensors. Raises ``SourceError``."""
    if "model.safetensors.index.json" in names:
        shards = indexed_shards(folder / "model.safetensors.index.json")
    else:
        shards = sorted(name for name in names if name.endswith(".safetensors") and not name.startswith("adapter"))
    if not shards:
        return None
    return sum(check_shard(folder / name) for name in shards)


def indexed_shards(index: Path) -> list[str]:
    told = read_json(index, "download the checkpoint again")
    named = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(named, dict) or not named:
        raise SourceError(f"{index} has no weight_map", "download the checkpoint again")
    shards = sorted(set(map(str, named.values())))
    for name in shards:
        if Path(name).name != name:
            raise SourceError(f"{index} names a shard outside its folder: {name!r}", "do not use this checkpoint")
        if not (index.parent / name).is_file():
            raise SourceError(f"{index} names {name}, which is missing", "download the missing file")
    return shards


def check_shard(path: Path) -> int:
    """Size in bytes; the header must be whole and agree with the file's length."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
                raise SourceError(f"{path} is no whole safetensors file ({size} bytes)", "download it again")
            end = data_end(json.loads(file.read(length)))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}", "download it again") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise SourceError(f"{path} has a broken header: {error}", "download it again") from error
    if 8 + length + end != size:
        raise SourceError(f"{path} has {size} bytes, its header tells of {8 + length + end}", "download it again")
    return size


def data_end(header: dict) -> int:
    """Where the last tensor ends, in bytes. Raises ``ValueError`` (or what a header of another form raises)."""
    ends = [int(told["data_offsets"][1]) for name, told in header.items() if name != "__metadata__"]
    if not ends:
        raise ValueError("it names no tensor")
    return max(ends)


def read_hub(name: str, offline: bool, config: str | None) -> ModelSource:
    """From ``config``, the local cache, or the hub. Weights and tokenizer are taken to be there."""
    if config is not None:
        return ModelSource(
            **hub_fields(name),
            config=json.dumps(load_config(Path(config))),
            has_chat_template=False,
            notes=(f"sizes of {name} come from {Path(config).name}, its files were not looked at",),
        )
    path = cached_config(name)
    if path is None and not offline:
        path = fetch_config(name)
    if path is None:
        raise SourceError(
            f"the config.json of {name} is not in the local cache, and the hub may not be asked (offline)",
            "download it first (`hf download " + name + " config.json`), or give a folder, or --config FILE",
        )
    names = {p.name for p in path.parent.iterdir()}
    whole_model = any(n.endswith(".safetensors") for n in names)
    if not whole_model:
        refuse_other_weights(name, names)
    check_tokenizer_config(path.parent)
    missing = f"the weights of {name} are not in the local cache: the project downloads them when it first runs"
    return ModelSource(
        **hub_fields(name),
        config=json.dumps(load_config(path)),
        has_chat_template=has_chat_template(path.parent),
        revision=path.parent.name,
        notes=(missing,) if offline and not whole_model else (),
    )


def hub_fields(name: str) -> dict:
    return {"kind": "hub", "name": name, "path": name, "has_weights": True, "has_tokenizer": True}


def cached_config(name: str) -> Path | None:
    """The newest snapshot's config.json in the hub cache (HF_HUB_CACHE, HF_HOME), found without its library."""
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")  # noqa: PTH111  Path's raises without a home
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    repo = cache / ("models--" + name.replace("/", "--"))
    try:
        main = (repo / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    if not re.fullmatch(r"[0-9a-f]{7,64}", main):
        return None
    path = repo / "snapshots" / main / "config.json"
    return path if path.is_file() else None


def fetch_config(name: str) -> Path:
    """Ask the hub, for at most ``HUB_SECONDS``. Raises ``SourceError``."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise SourceError(
            f"{name} is not in the local cache, and huggingface_hub is not installed",
            "pip install huggingface_hub, or give a folder",
        ) from error
    answer: Queue[str | Exception] = Queue()

    def ask() -> None:
        try:
            answer.put(hf_hub_download(name, "config.json", etag_timeout=HUB_SECONDS / 2))
        except (HfHubHTTPError, OSError, ValueError) as error:
            answer.put(error)

    # a thread, for the library has no deadline of its own: it tries six times and waits longer each time
    threading.Thread(target=ask, daemon=True).start()
    hint = "check the name and your access, or give a folder, or --config FILE; --offline does not ask"
    try:
        found = answer.get(timeout=HUB_SECONDS)
    except Empty:
        raise SourceError(f"{name}: the model hub did not answer in {HUB_SECONDS} s", hint) from None
    if isinstance(found, Exception):
        raise SourceError(f"{name}: {(str(found).strip() or type(found).__name__).splitlines()[0]}", hint) from found
    return Path(found)


def read_plan(folder: Path, *keys: str) -> dict:
    """The plan.json of a generated project, with the parts that the caller reads. Raises ``SourceError``."""
    path, hint = folder / "plan.json", "give the folder of a generated project"
    plan = read_json(path, hint)
    if not isinstance(plan, dict):
        raise SourceError(f"{path} holds no object but {type(plan).__name__}", hint)
    missing = [key for key in keys if key not in plan]
    if missing:
        raise SourceError(f"{path} has no {', '.join(missing)}: it is no plan, or of another version", hint)
    return plan


def spec_of(source: ModelSource) -> ModelSpec:
    """Sizes from the config alone; for an architecture that the tables do not know, counted by Transformers itself.

    Raises ``SourceError`` for whatever a config can say wrong.
    """
    config = json.loads(source.config)
    try:
        spec = sized(config, source.name)
    except KeyError as error:
        raise SourceError(f"cannot size {source.path}: {error.args[0]}", SIZE_HINT) from error
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise SourceError(f"cannot size {source.path}: {error}", SIZE_HINT) from error
    for wrong in implausible(spec):
        raise SourceError(f"cannot size {source.path}: {wrong}", SIZE_HINT)
    return spec


SIZE_HINT = "a config.json with the usual size fields is needed"


def sized(config: dict, name: str) -> ModelSpec:
    inner = config.get("text_config", config)
    by_layer = sorted(key for key in COUNTS if isinstance(inner.get(key), list))
    if by_layer:
        return describe_on_meta(config, name, f"{', '.join(by_layer)} differ by layer")
    try:
        return replace(describe(config, name), notes=())
    except NeedsMetaDevice as unknown:
        return describe_on_meta(config, name, str(unknown))


def implausible(spec: ModelSpec) -> Iterator[str]:
    """What no model can be, whichever keys of the config it came from."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.type in ("int", "int | None") and value is not None and not is_count(value, 0, 1 << 62):
            yield f"{field.name} would be {shown(value)}"
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "params"):
        if getattr(spec, name) == 0:
            yield f"{name} would be 0"
    if spec.basis == "config" and spec.heads % spec.kv_heads:
        yield f"{spec.heads} attention heads cannot share {spec.kv_heads} key-value heads"
