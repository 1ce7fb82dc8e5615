"""One row of a table of runs as values: its machine (machines.py), its model (models.py) and, here, the script that ran."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from generator.case.strategies import RING, SEQUENCE_FORMS, STRATEGIES, TRAINER
from generator.case.vendors import find_vendor
from generator.cost.device import find_context
from generator.cost.execution import BYTES, Execution
from generator.cost.served_memory import count_cached_sequences
from generator.cost.shape import NAMES, build_shape, select_adapted
from generator.errors import suggest_names
from generator.estimate.cells import Uncostable, read_count
from generator.estimate.machines import read_device, read_network
from generator.estimate.models import read_spec
from generator.estimate.optimizers import list_optimizer_states
from generator.estimate.spellings import SPLIT, fold, spell_row
from generator.model import ModelSpec
from hwdetect.types import Device

UNSTATED_DROPOUT = 0.05
"""LoRA dropout of rows that state targets and not this: published recipes use 0.05 or 0.1, and either keeps a mask"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A case: the machine, the model and the script of one row."""

    device: Device
    memory_bytes: int
    network_bytes_per_s: float | None
    """one node's rate to the others, where the row or its source says"""
    spec: ModelSpec
    execution: Execution
    task: str


def read_row(row: dict[str, str]) -> TableRow:
    """Raises ``Uncostable``."""
    stated = {
        key: (value or "").strip() for key, value in row.items() if key is not None and not isinstance(value, list)
    }
    get = (spell_row(stated) | CORRECTED.get(stated.get("source", ""), {})).get
    device, memory = read_device(get)
    spec = read_spec(get)
    return TableRow(
        device=device,
        memory_bytes=memory,
        network_bytes_per_s=read_network(get),
        spec=spec,
        execution=_read_execution(get, spec, device, memory),
        task="causal-lm",
    )


CORRECTED = {
    # Their simulator's configurations say use_checkpoint, and leave it out in the last stage. Were each block run forward twice, its
    # products would take 11 of 17 ms beside 6 of the bytes that eager attention moves: 317 TFLOP/s of a board that has 312 (hidden
    # 2,048, 8 sequences). Of pipelines a micro-batch takes l / pp blocks and the output layer, whatever the stages before repeat.
    # The vocabulary is that of src/config.py.
    "VIA-Research/vTrain@f8dda847:data/ground_truth_single.csv": {"activation_checkpointing": "none", "vocab": "50257"},
    # Megatron pads it to a multiple of 128 words for each tensor part
    "bigscience-workshop/bigscience@9e64edec:experiments/gpt2.md": {"vocab": "50688"},
    # its table of prompts came with that commit, of 2023-08-25, the one of answers a week before
    "huggingface/optimum@09638629:tests/benchmark/README.md": {"software_date": "2023-08"},
}
"""what a source's rows say and its own files or physics say otherwise"""


def _read_date(get) -> str:
    """Year and month of the software, ``""`` where the row does not say."""
    for column in ("software_date", "notes"):
        match = re.search(r"\b(20\d\d-\d\d)\b", get(column, ""))
        if match:
            return match[1]
    return ""


def _read_dtype(get, name: str) -> str | None:
    text = get(name, "").lower()
    if text in ("", "none"):
        return None
    known = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "tf32": "float32", "fp8": "float8"}
    dtype = known.get(text, text)
    if dtype not in BYTES:
        raise Uncostable(f"{name} {text!r} is not known: float32, bfloat16, float16, fp8 are")
    return dtype


LEARNED_POSITIONS = {"santacoder": 2048, "gpt2": 1024, "opt-": 2048, "bert": 512}
"""table sizes of models with learned positions (their config.json): a longer sequence cannot have been run"""
UNSTATED_PROMPT, UNSTATED_NEW_TOKENS = 64, 128


PRECISIONS = {
    r"bfloat16": "bf16",
    r"float(?=\d)|fp-(?=\d)": "fp",
    r"\bhalf\b": "fp16",
    r"\bsingle\b": "fp32",
    r"^(?=(16|32)\b)": "fp",  # 16-mixed and 32-true, as Lightning writes them
}
"""What sources write, by what it is read as."""
KNOWN_PRECISION = re.compile(r"[bf][fp]\d|tf32|amp|mixed|auto|default|int\d|q\d|nf4|\d *bit")


def _fold_precision(text: str) -> str:
    """In the words that are read. Raises ``Uncostable`` where none of them is."""
    text = text.lower()
    for pattern, word in PRECISIONS.items():
        text = re.sub(pattern, word, text)
    if text and not KNOWN_PRECISION.search(text):
        raise Uncostable(
            f"precision_text {text!r} has no formula: bf16, fp16, fp32, tf32 and fp8 have, each also mixed"
        )
    return text


def _read_precision(get, mode: str) -> tuple[str, str | None, bool]:
    """Storage dtype, autocast dtype and TF32, from the two columns or else from the source's own words."""
    stored, autocast = _read_dtype(get, "weights_dtype"), _read_dtype(get, "autocast_dtype")
    text = _fold_precision(get("precision_text", ""))
    in_fp16 = "fp16" in text or text.startswith("amp") or get("framework", "").lower().startswith("llama.cpp")
    half = "float16" if in_fp16 else "bfloat16"
    mixed = mode == "train" and re.search(r"amp|mixed|master", text)
    if stored == "float32" and not get("autocast_dtype", "") and mixed:  # only the stored dtype has its column
        return stored, "float8" if text.startswith("fp8") else half, False
    # containers of those frameworks' day: PyTorch multiplied in TF32 unless told otherwise until 1.12, NVIDIA's builds still do
    by_default = get("framework", "").lower().startswith(MASTERS)
    if "tf32" in (get("weights_dtype", "").lower(), get("autocast_dtype", "").lower()):
        return "float32", None, True
    if stored or autocast:
        return stored or autocast or "bfloat16", autocast, by_default and not autocast
    if text.startswith("fp8") and mode == "train":
        return "bfloat16", "float8", False
    if text.startswith(("fp32", "tf32")):
        return "float32", None, text.startswith("tf32") or by_default
    mixed = mixed or (half == "float16" and mode == "train")
    return ("float32", half, False) if mixed and mode == "train" else (half, None, False)


def _read_batch(get, parallel: dict[str, Any]) -> tuple[int, int]:
    """Micro-batch and accumulation. Where only the global batch is stated: one sequence at a time through pipeline stages, which
    idle otherwise, and else all sequences of a device at once."""
    each = max(1, round(read_count(get, "global_batch", 1) / parallel["dp"]))
    if get("micro_batch", ""):
        micro_batch = read_count(get, "micro_batch")
    elif parallel["pp"] > 1 and not get("grad_accum", ""):
        micro_batch = 1
    else:
        micro_batch = max(1, round(each / read_count(get, "grad_accum", 1)))
    if get("grad_accum", "") or not get("global_batch", ""):
        return micro_batch, read_count(get, "grad_accum", 1)
    return micro_batch, max(1, round(each / micro_batch))


ATTENTION = {
    "flash": "flash",
    "sdpa": "sdpa",
    "eager": "eager",
    "flex": "sdpa",
    "cudnn": "sdpa",
    "fused": "sdpa",
    "varlen": "flash",
}
"""by how the column begins"""
QUANT = {
    "": "none",
    "none": "none",
    "bnb-nf4": "nf4",
    "nf4": "nf4",
    "gptq-4bit": "gptq-4bit",
    "gptq-8bit": "gptq-8bit",
    "int8": "int8",
    "gguf-q4-k-m": "gguf-4bit",
    "gguf-q4_k_m": "gguf-4bit",
    "mlx-4bit": "int4",
    "mlx-8bit": "int8",
    "cuda_pytorch_llama": "none",
    "fbgemm_fp8": "float8",
    "fp8": "float8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}


SERVED_BY = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt": "tensorrt-llm",
    "optimum-nvidia": "optimum-nvidia",
    "gpt-fast": "gpt-fast",
    "exllama": "exllama",
    "llama.cpp": "llama-cpp",
    "mlx": "mlx",
    "ctranslate2": "ctranslate2",
    "deepspeed-mii": "deepspeed-mii",
    "autoawq": "autoawq",
}
"""rows of ``generator.cost.engines.ENGINES``, by how a row's framework begins"""
VLLM_SINCE = {"": "vllm-0", "2024-09": "vllm-0.6", "2025-02": "vllm-0.8", "2026-01": "vllm"}
"""0.6 plans several steps at once, its second engine is the default since 0.8, scheduling beside the device since 0.14"""
FLASH_IN_LLAMA_CPP = "2025-09"
"""since when llama.cpp takes flash attention by itself where its device has it (--flash-attn auto)"""
BEFORE_FLASH = "-2024"
"""the row of such an engine as it was until then (``generator.cost.engines.ENGINES``)"""


def _fill_server(run: Execution, spec: ModelSpec, device: Device, memory_bytes: float) -> Execution:
    """With as many requests as its cache holds: they wait in a queue that never ends. Each keeps room for its whole answer."""
    shape = build_shape(spec, "causal-lm", 0)
    tokens = run.seq_len + run.new_tokens
    sequences = count_cached_sequences(shape, run, memory_bytes, tokens, find_context(device.vendor))
    if not sequences:
        raise Uncostable(f"not one sequence of {tokens} tokens fits beside the weights")
    return run.but(micro_batch=sequences, continuous=True)


def _read_execution(get, spec: ModelSpec, device: Device, memory_bytes: float) -> Execution:
    mode = get("phase", "")
    if mode not in ("train", "infer"):
        raise Uncostable(f"phase is {mode!r}, not train or infer")
    quant = _read_quant(get)
    date = _read_date(get)
    stored, autocast, tf32 = _read_precision(get, mode)
    if mode == "train" and BYTES[stored] <= BYTES["int8"] and stored != "float8":
        raise Uncostable(f"weights_dtype {stored!r} cannot be trained: a quantized base has the column quant")
    parallel = _read_parallel(get, mode)
    if mode == "train" and BYTES[autocast or stored] < BYTES["float32"]:
        parallel |= _read_masters(get, parallel["strategy"], autocast or stored)
    micro_batch, accumulation = _read_batch(get, parallel)
    common: dict[str, Any] = {
        "mode": mode,
        "micro_batch": micro_batch,
        "weights_dtype": stored,
        "tf32": tf32,
        "quant": quant,
        "attention": _read_attention(get, date),
        "attention_kernel": _read_attention_kernel(get),
        "attention_biased": spec.model_type.startswith(BIASED),
        "fused_kernels": _read_fused_kernels(get),
        "repeats_keys": bool(re.match(r"mi[sx]tral|qwen2", spec.model_type)) and date < "2025-01",
        "compile": _read_compile(get),
        "expert_loop": bool(spec.experts) and _loops_over_experts(get, date),
        "padding_free": _read_padding_free(get),
        **parallel,
        **_read_offload(get),
        "checkpoint_offload": _offloads_checkpoints(get),
    }
    if mode == "infer":
        loaded = bool(re.search(r"max(imum)? throughput", get("notes", "")))
        if not get("micro_batch", "") and not get("global_batch", "") and not loaded:
            raise Uncostable("the batch is not stated")
        if common["micro_batch"] > 1 and not get("in_len", "") and not get("out_len", ""):
            raise Uncostable("neither the prompt's nor the answer's length is stated")
        if not get("in_len", "") and "includes prefill" in get("notes", ""):
            raise Uncostable("the prompt's time is in the speed, and its length is not stated")
        framework = get("framework", "").lower()
        engine = next((name for words, name in SERVED_BY.items() if framework.startswith(words)), "")
        if engine == "vllm" and date:
            engine = max((since, version) for since, version in VLLM_SINCE.items() if since <= date)[1]
        if engine:
            common["compile"] = "reduce-overhead"
        if engine == "llama-cpp" and date < FLASH_IN_LLAMA_CPP:
            common["attention"] = "eager"
        vendor = find_vendor(device.vendor, device.kind)
        if vendor and engine in vendor.engines:
            engine = vendor.engines[engine] + ("" if date >= FLASH_IN_LLAMA_CPP else BEFORE_FLASH)
        run = Execution(
            **common,
            engine=engine,
            cache_dtype="float8" if engine == "tensorrt-llm" and quant in ("float8", "nvfp4") else None,
            double_quant="dq" in get("quant_text", ""),
            repeats_heads=bool(date) and date < "2025-01",
            seq_len=max(1, read_count(get, "in_len", UNSTATED_PROMPT, least=0)),
            new_tokens=_read_new_tokens(get),
            keeps_all_logits=bool(date) and date < "2024-09",
            cache="static" if engine or common["compile"] else "tuple" if date and date < "2023-12" else "dynamic",
        )
        return _fill_server(run, spec, device, memory_bytes) if loaded else run
    return Execution(
        **common,
        autocast_dtype=autocast,
        accumulation=accumulation,
        **_read_training(get, spec, date),
    )


def _read_new_tokens(get) -> int:
    """None of one token alone: such rows count the tokens of their prompts. What is not stated is the middle of what the row's own
    words say, such as 5-20 new tokens."""
    words = re.search(r"\b(\d+)-(\d+) new tokens", get("notes", ""))
    middle = round((int(words[1]) + int(words[2])) / 2) if words else UNSTATED_NEW_TOKENS
    count = read_count(get, "out_len", middle, least=0)
    return count if count > 1 else 0


def _read_quant(get) -> str:
    """The storage of the base weights; a GPTQ or AWQ checkpoint is one whatever the column says."""
    text = get("quant", "").lower()
    first = re.split(r"[ {]", text)[0]
    if get("quant_text", "").endswith(OWN_KERNELS):
        raise Uncostable(f"products of {get('quant_text', '')!r} have no formula")
    if first in ("", "none", "cuda_pytorch_llama") and re.search(r"gptq|awq", get("model", "").lower()):
        return "gptq-4bit"
    framework = get("framework", "").lower()
    if first in ("int8", "int4") and framework.startswith("llama.cpp"):
        return "gguf-8bit" if first == "int8" else "gguf-4bit"
    if first == "int4" and framework.startswith("hf transformers"):
        return "nf4"  # load_in_4bit, which was its only one
    if "int4_weight_only" in text or first.startswith("int4wo"):
        return "torchao-int4-g32" if first.endswith("-g32") else "torchao-int4"
    if "int8_weight_only" in text or first.startswith("int8wo"):
        return "torchao-int8"
    if first in ("awq", "int4"):
        return "gptq-4bit"
    if first not in QUANT:
        raise Uncostable(f"quant {get('quant', '')!r} has no formula{_suggest(first, QUANT)}")
    return QUANT[first]


def _suggest(wrong: str, known: Iterable[str]) -> str:
    near = suggest_names(wrong, known)
    return f"; {near}" if near else ""


OWN_KERNELS = ("cuda-old",)
"""of auto-gptq before exllama's: slower with every row, and unpacking whole prompts by torch's operators"""


OWN_ATTENTION = ("nemo", "megatron-bridge")
"""frameworks whose attention is cuDNN's, with kernels of each architecture's own (Transformer Engine)"""
BIASED = ("mpt", "bloom", "falcon-rw")
"""models with ALiBi"""


SDPA_IN_TRANSFORMERS = "2023-12"
"""its release 4.36"""


def _read_attention(get, date: str) -> str:
    own = get("framework", "").startswith("HF") and date and date < SDPA_IN_TRANSFORMERS
    text = get("attention", "").lower() or ("eager" if own else "sdpa")
    named = next((name for key, name in ATTENTION.items() if text.startswith(key)), None)
    if named is None:
        raise Uncostable(f"attention {text!r} has no formula: {', '.join(ATTENTION)} have")
    return named


def _read_attention_kernel(get) -> str:
    """FlashAttention-2's, unless the row or its framework has another."""
    text = get("attention", "").lower()
    if text.startswith("cudnn"):
        return "cudnn"
    own = get("framework", "").lower().startswith(OWN_ATTENTION)
    return "flash3" if own or text.startswith("flash_attention_3") else "flash2"


COMPILED = ("regional", "max-autotune", "reduce-overhead")


def _read_compile(get) -> str | None:
    """A mode of torch.compile."""
    text = fold(get("compile", ""))
    if text in ("", "false"):
        return None
    if text in COMPILED:
        return text
    if not text.startswith("true"):
        raise Uncostable(f"compile {text!r} has no formula: true, false, {', '.join(COMPILED)} have")
    return "default"


def _read_padding_free(get) -> bool:
    text = get("padding_free", "").lower()
    if text not in ("", "true", "false"):
        raise Uncostable(f"padding_free {text!r} has no formula: true and false have")
    return text == "true"


PRETRAINING = ("llm-foundry", "megatron", "nemo", "nanotron", "torchtitan", "internlm", "vectorlm")
"""frameworks whose blocks bring fused norms and an in-place loss"""


def _loops_over_experts(get, date: str) -> bool:
    """Transformers 4 did, whatever trained with it; Megatron and its like, and serving engines, group the products of all. A row that
    names what ran, and not when, is of then; one that names neither is of today."""
    framework = get("framework", "").lower()
    before = date < "2025-12" if date else bool(framework)
    return before and not framework.startswith((*PRETRAINING, *SERVED_BY))


def _read_fused_kernels(get) -> str:
    text = get("fused_kernels", "").lower()
    if "foak" in text:
        return "foak"
    if "liger" in text:
        return "liger"
    if text not in ("", "none"):
        raise Uncostable(f"fused kernels {text!r} have no formula: foak, liger and foak+liger have")
    return "pretraining" if get("framework", "").lower().startswith(PRETRAINING) else "none"


def _read_offload(get) -> dict[str, Any]:
    """What is kept on the host or on disk, from words such as ``optimizer,param`` or ``param+optimizer(cpu)``."""
    text = get("offload", "").lower()
    if text in ("", "none"):
        return {}
    where = "nvme" if re.search("nvme|disk", text) else "cpu"
    row = STRATEGIES.get(get("strategy", ""))
    both = "full" in text or (text == "cpu" and row is not None and row.by_fsdp)  # its CPU offload knows no other
    offloads: dict[str, Any] = {
        "offload_optimizer": where if both or "optim" in text else "none",
        "offload_params": where if both or "param" in text else "none",
    }
    if not set(offloads.values()) - {"none"}:
        raise Uncostable(f"offload {text!r} has no formula: say of what, such as optimizer or optimizer,param")
    return offloads


def _offloads_checkpoints(get) -> bool:
    """--partition-activations --checkpoint-in-cpu: Megatron-LM-v1.1.5-ZeRO3's scripts have both, unless the row says PA_CPU=N."""
    notes = get("notes", "")
    if get("read_checkpoints", "") == "host":
        return True
    return "PA_CPU=Y" in notes or ("old branch" in notes and "PA_CPU=N" not in notes)


FORMS = ("fsdp2", SPLIT, *(row.name for row in STRATEGIES.values() if TRAINER in row.skeletons))


def _read_fsdp_version(get) -> int:
    stated = get("read_fsdp", "")
    return int(stated) if stated else 2 if get("framework", "").lower().startswith(FSDP2) else 1


def _read_parallel(get, mode: str) -> dict[str, Any]:
    strategy = get("strategy", "") or "none"
    sizes = {name: read_count(get, name, 1) for name in ("dp", "tp", "pp", "cp", "ep")}
    row = STRATEGIES.get(strategy)
    if (row and row.layers_in_turn and mode == "infer") or "device_map" in get("parallelism_text", ""):
        return {
            **sizes,
            "pp": read_count(get, "gpus_per_node", 1),
            "strategy": "none",
        }  # stages that run one after the other
    devices = read_count(get, "gpus_per_node", 1) * read_count(get, "nodes", 1)
    filled = get("read_fills", "")
    undivided = math.prod(sizes[name] for name in ("dp", "tp", "pp", "cp")) == 1
    if filled and undivided:  # one word, and no sizes: all devices
        sizes[filled] = devices
    if strategy == SPLIT:
        split = sizes["tp"] * sizes["pp"] * sizes["cp"]
        strategy = "ddp" if sizes["dp"] > 1 or (split == 1 and devices > 1) else "none"
    elif row and not row.exchanges and sizes["dp"] > 1:
        strategy = "ddp"
    row = STRATEGIES.get(strategy)
    if sizes["dp"] == 1 and (row is None or row.exchanges):
        sizes["dp"] = max(1, devices // (sizes["tp"] * sizes["pp"] * sizes["cp"]))
    if row is None or row.layers_in_turn:
        raise Uncostable(f"strategy {strategy!r} has no formula: {', '.join(FORMS)} have")
    group = re.search(r"shard group (\d+)", get("parallelism_text", ""))
    stated = get("read_sequence", "")  # else what its library brings
    form = (stated if stated in SEQUENCE_FORMS else row.sequence_form or RING) if sizes["cp"] > 1 else None
    return {
        "strategy": strategy,
        "sequence_form": form,
        **sizes,
        "nodes": read_count(get, "nodes", 1),
        "dp_shard": int(group[1]) if group and row.divides_states else 0,
        "fsdp_version": _read_fsdp_version(get),
        "flat_gradients": _sums_flat_gradients(get, row.by_fsdp),
        "sequence_parallel": get("framework", "").lower().split(" ")[0] not in BEFORE_SEQUENCE_PARALLEL,
    }


FSDP2 = ("torchtitan", "torchtune")
"""frameworks on fully_shard"""
MASTERS = ("megatron", "nanotron")
"""frameworks whose own optimizer keeps float32 masters of 16-bit weights, undivided (Megatron-LM's Float16Optimizer)"""
DIVIDED_MASTERS = ("nemo", "megatron bridge", "megatron-bridge")
"""the same, divided over the copies (Megatron-core's distributed optimizer, the default of NeMo's and Megatron Bridge's recipes)"""
DIVIDED_IN = ("flagperf",)
"""groups of Megatron-DeepSpeed's rows that have them divided: FlagPerf's Llama-2-7B takes 67.6 GB of a board, 16 bytes a parameter
would be 107; vTrain's splits are as fast as they are without"""
BEFORE_SEQUENCE_PARALLEL = ("megatron-deepspeed", "megatron")
"""frameworks, by the first word, in the published rows as of before arXiv 2205.05198: their tensor parts repeat norms and residuals"""


def _read_masters(get, strategy: str, compute: str) -> dict[str, Any]:
    """What a pre-training framework keeps beside 16-bit weights where the row's strategy is plain."""
    framework = get("framework", "").lower()
    row = STRATEGIES[strategy]
    if row.divides_states or get("train", "") == "lora":
        return {}
    if framework.startswith(DIVIDED_MASTERS) or get("group", "").startswith(DIVIDED_IN):
        return {"strategy": "zero1"}
    if not framework.startswith(MASTERS):
        return {}
    # gradients of bf16 are summed in float32 (Megatron-LM's accumulate_allreduce_grads_in_fp32), of fp16 as they are
    return {"strategy": "undivided_masters", "sums_dtype": "float32" if compute == "bfloat16" else None}


SELECTIVE: dict[str, dict[str, Any]] = {
    "selective(op)": {"checkpoint_every": 1, "checkpoint_operators": True},
    "selective(every 2nd layer)": {"checkpoint_every": 2},
    "selective(every 3rd layer)": {"checkpoint_every": 3},
    "selective(every 4th layer)": {"checkpoint_every": 4},
}
"""by the source's own words; others do not say what they select"""


def _read_training(get, spec: ModelSpec, date: str) -> dict[str, Any]:
    trained = get("train", "") or "full"
    if trained not in ("full", "lora"):
        raise Uncostable(f"train {trained!r} has no formula: full, lora, qlora and dora have")
    optimizer = fold(get("optimizer", "") or "adamw").replace("decoupled-", "")
    if optimizer.startswith("none"):
        optimizer = "none"
    if re.fullmatch(r"galore\d+", optimizer):
        optimizer = "galore"
    states = list_optimizer_states()
    if optimizer not in states:
        raise Uncostable(f"optimizer {get('optimizer', '')!r} has no formula{_suggest(optimizer, states)}")
    checkpointing = get("activation_checkpointing", "") or "none"
    selected = get("checkpointing_text", "")
    if checkpointing == "selective" and selected not in SELECTIVE:
        known = ", ".join(SELECTIVE)
        raise Uncostable(
            f"activation checkpointing {selected or checkpointing!r} has no formula: with checkpointing_text {known} it has"
        )
    if checkpointing not in ("full", "none", "selective"):
        raise Uncostable(f"activation checkpointing {checkpointing!r} has no formula: none, full and selective have")
    targets = get("lora_targets", "")
    seq_len = read_count(get, "seq_len")
    limit = next((n for key, n in LEARNED_POSITIONS.items() if key in spec.model_type), seq_len)
    return {
        "seq_len": min(seq_len, limit),
        "train": trained,
        "lora_rank": read_count(get, "lora_rank", 8) if trained == "lora" else 0,
        "lora_targets": _read_named_targets(targets, spec) if targets else _read_lora_targets(get, spec.model_type),
        "lora_dropout": UNSTATED_DROPOUT if targets else 0.0,  # PEFT's default
        "packed_keeps": _read_packed_keeps(get, date) if trained == "lora" else "",
        "double_quant": get("quant_text", "") != "bnb.nf4",
        "returns_cache": get("framework", "").startswith("HF") and bool(date) and date < TRAINS_WITHOUT_CACHE,
        "lora_upcast": get("variant", "").startswith("baseline-peft") or "PEFT" in get("framework", ""),
        "adapter": get("read_adapter", "") or "lora",
        "optimizer": states[optimizer],
        "optimizer_fused": not date or date >= "2025-09",
        **({"checkpoint_every": 1 if checkpointing == "full" else 0} | SELECTIVE.get(selected, {})),
        "loss_kernel": "fused" if "liger" in get("fused_kernels", "") else "plain",
        "loss_copies": _read_loss_copies(get, spec, date),
    }


QUERY_AND_VALUE = ("q_proj", "v_proj")
FUSED_PROJECTION = ("query_key_value",)
FUSED_FAMILIES = (
    "bloom",
    "falcon",
    "gpt_neox",
    "gpt-neox",
    "pythia",
    "chatglm",
    "gpt2",
    "mpt",
    "santacoder",
    "starcoder",
)
"""whose queries, keys and values are one projection"""
EVERY_LINEAR = ("axolotl", "unsloth", "fsdp_qlora", "torchtune")
"""frameworks whose own recipes adapt all linears"""


TARGET_GROUPS: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("all-linear", "all", "linear", "all-linear-layers"), "all-linear"),
    **dict.fromkeys(("attention", "attn", "self-attn"), ("q_proj", "k_proj", "v_proj", "o_proj")),
    **dict.fromkeys(("mlp", "ffn", "feed-forward"), ("gate_proj", "up_proj", "down_proj")),
}
"""several projections by one word"""


def _read_named_targets(written: str, spec: ModelSpec) -> str | tuple[str, ...]:
    """The projections of ``lora_targets``, however they are joined: ``q_proj,v_proj``, ``["q", "v"]``, ``attn+mlp``, ``all-linear``.
    Raises ``Uncostable`` for a name that no model's projection has, and where this model has none of them."""
    if (whole := TARGET_GROUPS.get(fold(written))) is not None:
        return whole
    projections = {fold(name): name for names in NAMES.values() for name in names}
    targets: list[str] = []
    for word in re.findall(r"[^\s,;+|&/\[\](){}'\"]+", written):
        name = fold(word.rpartition(".")[2])
        group = TARGET_GROUPS.get(name, ())
        if group == "all-linear":
            return group
        named = [projections[each] for each in (fold(word), name) if each in projections][:1]
        if not group and not named and name != "c-proj":
            known = [*projections.values(), *TARGET_GROUPS]
            raise Uncostable(f"lora_targets {word!r} has no formula{_suggest(word, known)}")
        # PEFT adapts every module whose path ends so: GPT-2 calls two by one name
        targets += group or named or ("attn.c_proj", "mlp.c_proj")
    if not select_adapted(build_shape(spec, "causal-lm", 0), tuple(targets)):
        raise Uncostable(f"lora_targets {written!r}: the model has none of these projections")
    return tuple(dict.fromkeys(targets))


def _read_lora_targets(get, model_type: str) -> str | tuple[str, ...]:
    """Projections named in the source's own words, such as ``lora(r=8,q+v)``. Where nothing is said: PEFT's default, queries and
    values or the projection that makes them (peft 0.19, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING), of frameworks
    that leave it to PEFT."""
    words = get("peft_text", "").lower()
    match = re.search(r"\br=\d+,\s*([qkvo](?:\+[qkvo])*)\)", words)
    if match:
        return tuple(f"{name}_proj" for name in match[1].split("+"))
    if re.search(r"all|linear|mlp", words) or get("framework", "").lower().startswith(EVERY_LINEAR):
        return "all-linear"
    return FUSED_PROJECTION if model_type.startswith(FUSED_FAMILIES) else QUERY_AND_VALUE


def _sums_flat_gradients(get, by_fsdp: bool) -> bool:
    """Fabric's FSDP1 flattens frozen weights and adapters together; litgpt's finetune/lora.py adds micro-batches under
    no_backward_sync."""
    fabric = get("framework", "").lower().startswith("litgpt")
    return fabric and by_fsdp and get("train", "") == "lora" and read_count(get, "grad_accum", 1) > 1


TRAINS_WITHOUT_CACHE = "2025-12"
"""Transformers 5: the Trainer turns use_cache off"""
BUFFERED_INPUTS_UNTIL = "2024-08"
"""MatMul4Bit kept its input until bitsandbytes 0.43.2 (its #1270, July 2024)"""


def _read_packed_keeps(get, date: str) -> str:
    """What a quantizer of that date kept for the backward pass (``Execution.packed_keeps``)."""
    quant = _read_quant(get)
    early = re.search(r"bnb 0\.(\d+)", get("framework", ""))
    buffered = int(early[1]) < 43 if early else bool(date) and date < BUFFERED_INPUTS_UNTIL
    if quant == "nf4" and buffered:
        return "inputs"
    # auto-gptq's modules, where neither exllama nor Triton multiplies: fms-acceleration brings Triton's
    without_kernels = get("framework", "").startswith("HF Trainer (optimum-benchmark)")
    return "weights" if quant == "gptq-4bit" and without_kernels else ""


def _read_loss_copies(get, spec: ModelSpec, date: str) -> str:
    if get("framework", "").lower().startswith(MASTERS):
        return "vocab-parallel"
    return _date_loss_copies(date) if spec.gated or not date else "native"


def _date_loss_copies(date: str) -> str:
    """How Transformers of that date handled the logits (its releases 4.46 and 4.49 changed it)."""
    if not date or date >= "2025-03":
        return "padded"
    return "shifted-kept" if date >= "2025-01" else "shifted"
