"""Random cases for `benchmarks/fuzz.py`: machines, models, work, data and pins, each from a seed of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from generator.bundle import find_sample_file
from generator.case.case import Case
from generator.case.request import OF_TRAINING, Request
from generator.case.tasks import list_tasks
from generator.case.vendors import find_vendor
from generator.case.workload import LOSS_ON, MODES, TRACKERS, TRAINED, Workload
from generator.decide.device_group import choose_case
from generator.decide.goal import Target
from generator.errors import PerfgenError
from generator.inputs.config_checks import find_oddities
from generator.model import ModelSpec
from generator.model.catalog import load_catalog
from generator.model.description import describe
from generator.model.settings import load_defaults
from generator.techniques.base import explain_conflict, list_axes
from hwdetect import catalog, to_json
from hwdetect.cloud import list_instances
from hwdetect.spec import SpecError, parse_spec
from hwdetect.types import Disk, Hardware

ROOT = Path(__file__).resolve().parent.parent
COMMON_DEVICES = (
    "h100-sxm-80gb",
    "a100-sxm-80gb",
    "a100-sxm-40gb",
    "rtx-4090",
    "rtx-3090",
    "t4",
    "v100-sxm-16gb",
    "l4",
    "b200-sxm-180gb",
)
COMMON_TYPES = (
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "mixtral",
    "gemma3_text",
    "gpt2",
    "bert",
    "modernbert",
    "phi3",
)
TEXT_GROUPS = ("decoders", "moe", "hybrids", "encoders")
MENDED = 0.8
"""share of the cases of which what contradicts itself is dropped"""
SAMPLE = find_sample_file("config.json")
WEIRD = (None, -1, 0, 1, 3, 2**31, 10**18, 0.5, float("inf"), "", "x", [], [1], {}, True)
"""what a config may hold by mistake"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzCase:
    """One draw. ``files`` are to be written before it is planned, by name; the fields of ``request`` that name one of them
    are in ``placed``. ``target``: a rented machine is looked for."""

    seed: int
    request: Request
    files: dict[str, str]
    placed: tuple[str, ...]
    target: Target | None = None

    def write(self, folder: Path) -> Request:
        """The request with its files in ``folder``."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return replace(self.request, **{name: str(folder / getattr(self.request, name)) for name in self.placed})

    def describe(self) -> str:
        """What was drawn beside the defaults."""
        default = Request()
        values = {f.name: getattr(self.request, f.name) for f in fields(Request)}
        words = [f"{name}={value!r}" for name, value in values.items() if value != getattr(default, name)]
        return ", ".join([f"seed {self.seed}", *words, *([f"goal {self.target}"] if self.target else [])])


def draw_case(seed: int, models: tuple[Path, ...], mended: float = MENDED) -> FuzzCase:
    """The case of a seed. ``models`` are config.json files. ``mended`` of the cases are made to be what the work allows: of free
    draws most are refused before anything is searched."""
    draw = Random(seed)
    files: dict[str, str] = {}
    placed: list[str] = []
    mends = draw.random() < mended
    target = draw_target(draw)
    work = draw_work(draw)
    name, model = draw_model(draw, models, mends)
    spec = size_model(model)
    if mends:
        mend_work(draw, work, spec)
    if name is not None:  # one of the catalogue, by its id
        work |= {"model": name}
    elif model is not None:
        files["model/config.json"] = json.dumps(model)
        if work["train"] == "full" and (work["mode"] == "train" or not mends) and draw.random() < 0.5:
            work |= {"model": "model"}
            placed.append("model")
        else:  # as if its weights were on the hub
            work |= {"model": "fuzz/model", "config": "model/config.json"}
            placed.append("config")
    hardware = None
    if target is None:
        words, hardware = draw_machine(draw, files, placed, mends)
        work |= words
    if work["mode"] == "train" and (model is None or draw.random() < 0.6):
        draw_data(draw, work, files, placed, mends)
    if mends and work.get("model") and (work["mode"] == "infer" or work["task"] != "causal-lm" or "data" in work):
        work["tokenizer"] = "fuzz/tokenizer"
    case = open_case(work, spec, hardware) if mends else None
    pins = draw_pins(draw, work["mode"]) if case is None else draw_usable_pins(draw, case)
    request = Request(**work, offline=True, pins=pins, allow=draw_allowed(draw))
    return FuzzCase(seed=seed, request=request, files=files, placed=tuple(placed), target=target)


def size_model(config: dict[str, Any] | None) -> ModelSpec | None:
    """Of the sample, if there is no config; ``None`` for one that makes no model."""
    text = SAMPLE.read_text(encoding="utf-8") if config is None else json.dumps(config)
    if any(find_oddities(json.loads(text))):  # of two billion layers a list would be made
        return None
    try:
        return describe(json.loads(text), "fuzz/model")
    except Exception:  # the planner has to refuse what a config holds by mistake; here it only is not mended
        return None


def mend_work(draw: Random, work: dict[str, Any], spec: ModelSpec | None) -> None:
    """Drop what this model, or what else was drawn, rules out."""
    if spec is not None and spec.kind == "encoder":
        work["task"] = "text-classification"
    if spec is not None and spec.quantization and work["mode"] == "train":
        work["train"] = "lora"
    if spec is not None and spec.max_positions and (work["seq_len"] or 0) > spec.max_positions:
        work["seq_len"] = draw.choice((None, spec.max_positions))
    work["packing"] |= work["task"] == "causal-lm"
    work["from_scratch"] &= work["train"] == "full"
    if work["mode"] == "infer":
        for name in ("optimize_for", "loss_on"):
            work.pop(name, None)
    drop_misplaced(work)
    if work.get("eval") == "none":
        work.pop("early_stopping", None)


def drop_misplaced(work: dict[str, Any]) -> None:
    """What would be of another mode, or of adapters that nobody trains."""
    if work["mode"] == "infer":
        for name in OF_TRAINING:
            work.pop(name, None)
        work |= {"train": "full", "global_batch": None, "packing": True}
    if work["train"] == "full":
        work.pop("lora_rank", None)


def open_case(work: dict[str, Any], spec: ModelSpec | None, hardware: Hardware | None) -> Case | None:
    """What is planned, but for its data and pins; ``None``: nothing to ask techniques about."""
    if spec is None or hardware is None:
        return None
    names = ("mode", "task", "train", "lora_rank", "from_scratch", "packing", "new_tokens", "concurrency")
    known = {name: work[name] for name in names if name in work}
    loss_on = "assistant" if work["task"] == "sft" and work["mode"] == "train" else None
    sizes = {"seq_len": work["seq_len"] or 512, "global_batch": work["global_batch"] or 32, "loss_on": loss_on}
    try:
        return choose_case(hardware, spec, Workload(**known, **sizes))
    except PerfgenError:
        return None


def draw_usable_pins(draw: Random, case: Case) -> tuple[tuple[str, str], ...]:
    """None in two of five cases, else up to three of any axis that can be used here, and together."""
    if draw.random() < 0.4:
        return ()
    mode, chosen = case.workload.mode, {}
    usable = [
        t
        for axis in list_axes()
        for t in axis.for_mode(mode)
        if t.axis != "trained" and not t.obstacle(case) and t.layouts(case) != ()
    ]
    for technique in draw.sample(usable, min(draw.choice((1, 1, 2, 3)), len(usable))):
        if not any(explain_conflict(technique, other, case) for other in chosen.values()):
            chosen[technique.axis] = technique
    return tuple((t.axis, t.name) for t in chosen.values())


def draw_target(draw: Random) -> Target | None:
    """In one case of a hundred: each costs up to two hundred machines."""
    if draw.random() >= 0.01:
        return None
    tokens = draw.choice((None, 1e3, 1e8, 1e11, 1e15))
    return Target(goal=draw.choice(("cheapest", "smallest")), tokens_per_day=tokens)


def draw_work(draw: Random) -> dict[str, Any]:
    """What is to be done, however little sense it makes."""
    mode = draw.choice((*MODES, "train"))
    work: dict[str, Any] = {
        "mode": mode,
        "task": draw.choice((*list_tasks(), "causal-lm")),
        "train": draw.choice(TRAINED),
        "seq_len": draw_seq_len(draw),
        "global_batch": draw.choice(
            (None, 1, 2, 6, 7, 8, 30, 32, 64, 255, 256, 720, 1024, 4096, 10**5, draw.randrange(1, 5000))
        ),
        "packing": draw.random() < 0.9,
        "from_scratch": draw.random() < 0.1,
        "report_to": draw.choice(("none", "none", *TRACKERS)),
        "lora_rank": draw.choice((16, 1, 8, 64, 4096)),
    }
    if draw.random() < 0.2:
        work["max_steps"] = draw.choice((1, 10, 1000, 10**9))
    if draw.random() < 0.2:
        work["epochs"] = draw.choice((0.01, 0.5, 3.0, 100.0))
    if draw.random() < (0.2 if mode == "train" else 0.02):
        work["optimize_for"] = draw.choice(("time", "efficiency"))
    if draw.random() < 0.1:
        work["learning_rate"] = draw.choice((1e-9, 1e-3, 10.0))
    if draw.random() < (0.1 if mode == "train" else 0.01):
        work["eval"] = draw.choice(("none", "0.5", "0.001"))
    if draw.random() < (0.1 if mode == "train" else 0.01):
        work["early_stopping"] = draw.choice((1, 5))
    if work["task"] == "text-classification" and draw.random() < 0.2:
        work["labels"] = draw.choice((1, 2, 5, 1000))
    if work["task"] == "sft" and mode == "train" and draw.random() < 0.3:
        work["loss_on"] = draw.choice(LOSS_ON)
    if mode == "infer":
        work |= {"new_tokens": draw.choice((1, 128, 4096)), "concurrency": draw.choice((1, 4, 64, 1000))}
    if draw.random() < 0.95:
        drop_misplaced(work)
    return work


def draw_seq_len(draw: Random) -> int | None:
    kind = draw.random()
    if kind < 0.4:
        return None
    if kind < 0.85:
        return draw.choice((64, 128, 512, 1024, 2048, 4096))
    return draw.choice((1, 7, 8192, 32768, 131072, 10**6, draw.randrange(1, 20000)))


def draw_model(draw: Random, models: tuple[Path, ...], mends: bool) -> tuple[str | None, dict[str, Any] | None]:
    """A published config, one of its type of other sizes, or one that holds a mistake; with its id, where the catalogue has it.
    No config: the sample."""
    kind = draw.random()
    if kind < 0.05:
        return None, None
    if kind < 0.2:
        known = load_catalog()
        name = draw.choice(sorted(known))
        return name, dict(known[name].config)
    config = json.loads(draw.choice(models).read_text(encoding="utf-8")) if kind < 0.55 else draw_config(draw)
    if draw.random() < (0.01 if mends else 0.1):
        config[draw.choice(sorted(config))] = draw.choice(WEIRD)
    return None, config


def draw_config(draw: Random) -> dict[str, Any]:
    """A model of a known type with sizes of its own: from toys to a trillion parameters."""
    types = load_defaults()["types"]
    text = [name for name, row in types.items() if row.get("group") in TEXT_GROUPS]
    name = (
        draw.choice(COMMON_TYPES)
        if draw.random() < 0.6
        else draw.choice(text if draw.random() < 0.9 else sorted(types))
    )
    known = types[name]["defaults"]
    head, heads = draw.choice((16, 64, 80, 128, 256)), draw.choice((1, 2, 4, 7, 8, 12, 16, 32, 64, 128))
    kv_heads = draw.choice([n for n in range(1, heads + 1) if heads % n == 0])
    hidden = head * heads
    sizes = {
        "hidden_size": hidden,
        "n_embd": hidden,
        "d_model": hidden,
        "num_attention_heads": heads,
        "n_head": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": draw.choice((1, 2, 3, 12, 24, 32, 61, 80, 126, 200)),
        "n_layer": draw.choice((1, 12, 48)),
        "intermediate_size": hidden * draw.choice((1, 3, 4)) + draw.choice((0, 0, 8, 1)),
        "vocab_size": draw.choice((7, 300, 32000, 50257, 128256, 262144)),
        "max_position_embeddings": draw.choice((16, 4096, 32768, 131072, 10**7)),
        "tie_word_embeddings": draw.random() < 0.5,
        "num_experts": draw.choice((2, 8, 60, 128)),
        "num_local_experts": draw.choice((2, 8, 16)),
    }
    chosen = {key: value for key, value in sizes.items() if key in known}
    return {"model_type": name, "torch_dtype": draw.choice(("bfloat16", "float16", "float32"))} | chosen


@cache
def list_names() -> tuple[list[str], list[str]]:
    """Devices of the catalogue, and instance types."""
    return [device.id for device in catalog.list_devices()], [instance.name for instance in list_instances()]


@cache
def list_planned_names() -> tuple[list[str], list[str]]:
    """Those of them that perfgen plans for."""
    devices, instances = list_names()
    of_device = {name: find_vendor(catalog.load(name).vendor, catalog.load(name).kind) is not None for name in devices}
    of_instance = {i.name: of_device.get(i.device or "", False) for i in list_instances()}
    return [n for n in devices if of_device[n]], [n for n in instances if of_instance[n]]


def draw_spec(draw: Random, mends: bool) -> str:
    """A machine in words."""
    kind = draw.random()
    devices, instances = list_planned_names() if mends else list_names()
    if kind < 0.02:
        return "portable"
    if kind < 0.15:
        words = draw.choice(("", "+avx2", "+bf16", "+amx", "+arm", "+sve")) + draw.choice(
            ("", "", ",2gb", ",8gb", ",1000gb")
        )
        return f"cpu:{draw.choice((1, 2, 4, 16, 192))}{words}"
    if kind < 0.25:
        return draw.choice(("", "", "2x", "5x")) + draw.choice(instances)
    device = draw.choice(COMMON_DEVICES) if draw.random() < 0.6 else draw.choice(devices)
    nodes = draw.choice((1, 1, 1, 1, 2, 3, 4, 7, 8, 16, 32, 100, 1250))
    count = draw.choice((1, 1, 2, 3, 4, 5, 6, 7, 8, 8, 16, 72))
    host = draw.choice(("", "", "", ",4gb", ",16gb", ",64gb", ",512gb", ",4000gb"))
    cpus = draw.choice(("", "", ":1", ":8", ":96"))
    return (f"{nodes}x" if nodes > 1 else "") + f"{count}x{device}{cpus}{host}"


def draw_machine(
    draw: Random, files: dict[str, str], placed: list[str], mends: bool
) -> tuple[dict[str, Any], Hardware | None]:
    """A spec, or the file of a machine with other disks, links, network and free memory; and the machine."""
    spec = draw_spec(draw, mends)
    if spec == "portable":
        return {"hardware": spec}, None
    try:
        hardware = parse_spec(spec)
    except SpecError:
        return {"hardware": spec}, None
    if draw.random() < 0.6:
        return {"hardware": spec}, hardware
    disks = tuple(
        Disk(
            role=role,
            path=f"/{role}",
            kind=draw.choice(("nvme", "ssd", "hdd", "network", "overlay")),
            total_bytes=draw.choice((10**9, 10**12, 10**14)),
            free_bytes=draw.choice((None, 10**8, 10**11, 10**13)),
            read_bytes_per_s=draw.choice((None, 1e8, 7e9)),
            writable=draw.choice((True, True, False)),
        )
        for role in ("work", "cache", "tmp")
        if draw.random() < 0.6
    )
    links = tuple(
        replace(link, bandwidth_bytes_per_s=draw.choice((None, 1e9, 1e11)), p2p=draw.choice((None, True, False)))
        for link in hardware.links
        if draw.random() < 0.7
    )
    network = tuple(
        replace(
            port, rate_bytes_per_s=draw.choice((None, 1.25e8, 1.25e9, 5e10)), state=draw.choice((None, "up", "down"))
        )
        for port in hardware.network
        if draw.random() < 0.8
    )
    busy = tuple(
        replace(a, free_memory_bytes=draw.choice((None, 0, (a.memory_bytes or 0) // 2))) for a in hardware.accelerators
    )
    drivers = (None, "580.65.06") if mends else (None, "535.104.05", "580.65.06", "470.57.02")
    software = replace(hardware.software, driver=draw.choice(drivers))
    other = replace(hardware, disks=disks, links=links, network=network, accelerators=busy, software=software)
    files["machine.json"] = json.dumps(to_json(other))
    placed.append("hardware")
    return {"hardware": "machine.json"}, other


ROWS = {
    "messages": lambda n: {
        "messages": [{"role": "user", "content": "why? " * n}, {"role": "assistant", "content": "so. " * n}]
    },
    "prompt": lambda n: {"prompt": "count " * n, "completion": "one two " * n},
    "instruction": lambda n: {"instruction": "say it", "input": "" if n % 2 else "now", "output": "it " * n},
    "text": lambda n: {"text": "plain words " * n},
    "labels": lambda n: {"text": "good and bad " * n, "label": n % 3},
}
FITTING = {
    "sft": ("messages", "prompt", "instruction", "text"),
    "text-classification": ("labels",),
    "causal-lm": ("text",),
}


def draw_data(draw: Random, work: dict[str, Any], files: dict[str, str], placed: list[str], mends: bool) -> None:
    """Rows that mostly are what the task asks for, and where to get a tokenizer for them."""
    fitting = FITTING.get(work["task"], ("text",))  # sounds and images are of other models: refused
    kind = draw.choice(fitting if mends or draw.random() < 0.9 else sorted(ROWS))
    longest = draw.choice((3, 40, 900))
    count = draw.choice((400, 400, 100) if mends else (1, 40, 400, 400))
    rows = [ROWS[kind](draw.randrange(1, longest)) for _ in range(count)]
    times = draw.choice((1, 5, 20))
    files["data.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows * times)
    work["data"] = "data.jsonl"
    placed.append("data")
    if draw.random() < 0.9:
        work["tokenizer"] = "fuzz/tokenizer"
    if mends:
        mend_for_data(draw, work, kind, count * times, len(files["data.jsonl"]))


def mend_for_data(draw: Random, work: dict[str, Any], kind: str, rows: int, characters: int) -> None:
    """No more sequences in a step than there are, and no more labels."""
    work.pop("labels", None)
    if kind == "text":
        work.pop("loss_on", None)
    sequences = characters // 8 // (work["seq_len"] or 2048) if work["task"] == "causal-lm" else rows
    kept = 1 if work.get("eval") == "none" else 0.4  # some are held out
    work["global_batch"] = min(work["global_batch"] or 32, draw.choice((1, 8, 32, max(1, int(sequences * kept)))))


def draw_pins(draw: Random, mode: str) -> tuple[tuple[str, str], ...]:
    """None in two of five cases, else up to three of any axis, a few of another mode."""
    if draw.random() < 0.4:
        return ()
    names = [t for axis in list_axes() for t in axis.members if mode in t.modes or draw.random() < 0.05]
    drawn = [draw.choice(names) for _ in range(draw.choice((1, 1, 2, 3)))]
    return tuple({t.axis: (t.axis, t.name) for t in drawn}.values())


def draw_allowed(draw: Random) -> tuple[str, ...]:
    if draw.random() < 0.8:
        return ()
    risky = [t.id for axis in list_axes() for t in axis.members if t.quality]
    return tuple(sorted({draw.choice(risky) for _ in range(draw.choice((1, 2)))}))
