"""perfgen's own plan beside the fastest published run of the same setting: what it predicts over what was measured.

usage: python benchmarks/peers.py MEASURED_DIR [--out FILE] [--table NAME]     (make peers)

A setting is a model, the devices, full or adapter training, sequence length and global batch. perfgen plans for it as if it were
asked, free in everything else, on as many devices, and with 16-bit weights where the run had them. Rows that timed no optimizer
are left out. Runs of the stack that it emits (PyTorch's FSDP2, Transformers, TRL,
DeepSpeed) are held to 0.9 to 1.15; the others have what it has not, and their ratio stands beside.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.validate import list_tables
from generator.case.devices import group_equal_accelerators, make_case
from generator.case.optimizer_states import NO_UPDATE
from generator.case.workload import Workload
from generator.cost.of_case import build_cost_model
from generator.cost.static_memory import mixes_in_16_bits
from generator.decide.search import find_best
from generator.decide.space import open_space
from generator.errors import PerfgenError
from generator.estimate.rows import TableRow
from generator.estimate.table import Uncostable, read_row
from generator.inputs.model_files import read_model
from generator.inputs.model_sizes import read_spec
from generator.model import ModelSpec
from generator.model.catalog import load_catalog
from hwdetect.spec import parse_spec

SAME_STACK = re.compile(r"torchtitan|HF|fsdp_qlora|PyTorch FSDP|VectorLM|torchtune|accelerate", re.IGNORECASE)
"""frameworks, as the tables name them, that run what perfgen emits"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """``model``: as the table names it; ``machine``: nodes x devices x device."""

    model: str
    machine: str
    devices: int
    train: str
    quant: str
    pure: bool
    """the weights are kept in 16 bits, without float32 ones"""
    seq_len: int
    global_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The fastest published run of a setting, and the plan. Speeds are tokens per second and device."""

    setting: Setting
    table: str
    framework: str
    precision: str
    same_stack: bool
    published: float
    planned: float | None
    ratio: float | None
    plan: str
    """the plan's techniques, or why there is none"""


def list_fastest(folder: Path, only: str | None) -> dict[Setting, tuple[str, dict, TableRow]]:
    """The fastest row of each setting, with the table it stands in."""
    fastest: dict[Setting, tuple[str, dict, TableRow]] = {}
    for table in list_tables(folder, everything=True):
        if only and table.stem != only:
            continue
        with table.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                speed = float(row["tokens_per_s_per_gpu"] or 0)
                if row["phase"] != "train" or row["oom"] != "false" or not speed:
                    continue
                try:
                    case = read_row(row)
                except Uncostable:
                    continue
                if case.execution.optimizer == NO_UPDATE:
                    continue
                setting = name_setting(row, case)
                if setting not in fastest or speed > float(fastest[setting][1]["tokens_per_s_per_gpu"]):
                    fastest[setting] = table.stem, row, case
    return fastest


def name_setting(row: dict, case: TableRow) -> Setting:
    run = case.execution
    nodes = f"{run.nodes}x" if run.nodes > 1 else ""
    return Setting(
        model=row["model"],
        machine=f"{nodes}{run.per_node}x{case.device.id}",
        devices=run.devices,
        train=run.train,
        quant=run.quant,
        pure=run.train == "full" and run.weights_dtype != "float32" and not mixes_in_16_bits(run),
        seq_len=run.seq_len,
        global_batch=run.micro_batch * run.accumulation * run.dp,
    )


@cache
def list_known_models() -> dict[str, str]:
    """Hub ids of the catalogue by the last part of their name, in lower case and without -hf."""
    return {shorten_name(name): name for name in reversed(load_catalog())}


def shorten_name(name: str) -> str:
    return name.lower().rpartition("/")[2].removesuffix("-hf").removesuffix("-gptq")


def find_spec(row: dict, case: TableRow) -> ModelSpec:
    """The catalogue's, where it knows the name and the sizes agree; else what the row says, as a Llama or a GPT-2."""
    known = list_known_models().get(shorten_name(row["model"]))
    if known:
        spec = read_spec(read_model(known, offline=True))
        if (spec.layers, spec.hidden) == (case.spec.layers, case.spec.hidden):
            return spec
    return replace(case.spec, model_type="llama" if case.spec.gated else "gpt2")


def compare_setting(setting: Setting, table: str, row: dict, case: TableRow) -> Peer:
    published = float(row["tokens_per_s_per_gpu"])
    planned, plan = plan_setting(setting, find_spec(row, case))
    return Peer(
        setting=setting,
        table=table,
        framework=row["framework"],
        precision=case.execution.product_dtype,
        same_stack=bool(SAME_STACK.search(row["framework"])),
        published=published,
        planned=planned,
        ratio=planned / published if planned else None,
        plan=plan,
    )


def plan_setting(setting: Setting, spec: ModelSpec) -> tuple[float | None, str]:
    """Predicted tokens per second and device of the best plan on these devices, and what it is; or why there is none."""
    train = {"full": "full", "lora": "qlora" if setting.quant == "nf4" else "lora"}[setting.train]
    workload = Workload(
        task="causal-lm",
        train=train,
        seq_len=setting.seq_len,
        global_batch=setting.global_batch,
        optimize_for="time",
        allow=("precision=bf16-pure",) if setting.pure else (),
    )
    try:
        hardware = parse_spec(setting.machine)
        case = make_case(hardware, group_equal_accelerators(hardware)[0], spec, workload)
        space = open_space(case, build_cost_model(case))
        best = find_best(space.limited(least=setting.devices, most=setting.devices))
    except PerfgenError as error:
        return None, str(error)
    if best is None:
        return None, f"nothing fits {setting.devices} devices"
    estimate = best.estimate
    words = [t.id for t in best.members if not t.baseline]
    return estimate.tokens_per_second / estimate.devices, ", ".join(words) or "all defaults"


def order_peers(peers: list[Peer]) -> Iterator[Peer]:
    """Worst first: the farthest from 1, and before all what has no plan."""
    return iter(sorted(peers, key=lambda p: max(p.ratio, 1 / p.ratio) if p.ratio else float("inf"), reverse=True))


def summarize_peers(peers: list[Peer]) -> dict[str, dict]:
    """Ratios by framework: how many, the least, the median, the most."""
    groups: dict[str, list[Peer]] = defaultdict(list)
    for peer in peers:
        groups[f"{peer.table}: {peer.framework}"].append(peer)
    summary = {}
    for name, group in sorted(groups.items()):
        ratios = sorted(peer.ratio for peer in group if peer.ratio)
        summary[name] = {"settings": len(group), "planned": len(ratios), "same_stack": group[0].same_stack}
        if ratios:
            summary[name] |= {"least": ratios[0], "median": statistics.median(ratios), "most": ratios[-1]}
    return summary


def describe_peer(peer: Peer) -> dict:
    setting = {name: getattr(peer.setting, name) for name in peer.setting.__slots__}
    figures = {name: getattr(peer, name) for name in peer.__slots__ if name != "setting"}
    return round_figures(setting | figures)


def round_figures(values: dict) -> dict:
    return {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in values.items()}


def show(peers: list[Peer]) -> None:
    print(f"{'ratio':>6} {'planned':>9} {'published':>9}  setting, published by, plan")
    for peer in order_peers(peers):
        s = peer.setting
        ratio, planned = (f"{peer.ratio:.2f}", f"{peer.planned:,.0f}") if peer.ratio else ("-", "-")
        mark = " " if peer.same_stack else "*"
        what = f"{s.model}, {s.train}{'' if s.quant == 'none' else ' ' + s.quant}, {s.machine}, {s.global_batch} x {s.seq_len}"
        print(f"{ratio:>6} {planned:>9} {peer.published:>9,.0f}{mark} {what}; {peer.framework}; {peer.plan[:90]}")
    print("* another stack than perfgen's: kernels, precision or schedules that it has not\n")
    print(f"{'settings':>8} {'least':>6} {'median':>6} {'most':>6}  published by")
    for name, row in summarize_peers(peers).items():
        ratios = " ".join(f"{row[key]:6.2f}" if key in row else "     -" for key in ("least", "median", "most"))
        print(f"{row['settings']:8} {ratios}{' ' if row['same_stack'] else '*'} {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="keep them as JSON")
    parser.add_argument("--table", help="this one alone")
    args = parser.parse_args()
    fastest = list_fastest(args.folder, args.table)
    peers = []
    for place, (setting, entry) in enumerate(fastest.items(), 1):
        peers.append(compare_setting(setting, *entry))
        if place % 50 == 0 or place == len(fastest):
            print(f"{place} of {len(fastest)} settings", file=sys.stderr, flush=True)
    show(peers)
    if args.out:
        result = {
            "schema": 1,
            "command": "make peers",
            "summary": {name: round_figures(row) for name, row in summarize_peers(peers).items()},
            "settings": [describe_peer(peer) for peer in order_peers(peers)],
        }
        args.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
