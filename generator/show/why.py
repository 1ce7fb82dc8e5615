"""`perfgen why` and `why-not`: read off a plan document, so they can never disagree with it."""

from __future__ import annotations

import difflib

from generator.errors import UsageError


def explain_key(document: dict, key: str) -> dict:
    """The decision behind an axis, a technique, or a keyword or variable that the project contains."""
    for decision in document["decisions"]:
        if key in (decision["axis"], decision["chosen"], f"{decision['axis']}={decision['chosen']}"):
            return describe_decision(document, key, decision, None)
    for edit in document["provenance"]:
        if key == edit["name"]:
            return describe_decision(document, key, find_decision(document, edit["axis"]), edit)
    if key in BATCH:
        return describe_batch(document, key)
    if key in DEVICES and document["layout"]["of_devices"] > 1:
        return describe_devices(document, key)
    if key in ALWAYS:
        return {"key": key, "why": ALWAYS[key], "rejected": []}
    if key in document["yours"]:
        return {"key": key, "value": document["yours"][key], "why": "yours: perfgen never changes it", "rejected": []}
    known = (
        [d["axis"] for d in document["decisions"]]
        + [e["name"] for e in document["provenance"]]
        + list(document["yours"])
        + [*BATCH, *DEVICES, *ALWAYS]
    )
    near = difflib.get_close_matches(key, known, 3)
    raise UsageError(f"nothing in this project is called {key}", f"did you mean {', '.join(near)}?" if near else None)


def find_decision(document: dict, axis: str) -> dict:
    """The decision on an axis: of the plan itself, else of how its result is served."""
    decisions = document["decisions"] + (document["serving"]["decisions"] if document["serving"] else [])
    return next(d for d in decisions if d["axis"] == axis)


BATCH = {"per_device_train_batch_size": "micro_batch", "gradient_accumulation_steps": "accumulation"}
ALWAYS = {
    "output_dir": "yours: config.yaml",
    "max_length": "yours: seq_len in config.yaml",
    "revision": "yours: config.yaml pins the version of the model that was looked at",
    "num_labels": "the number of different labels in the data",
    "id2label": "the labels as they are in the data",
    "label2id": "the labels as they are in the data",
    "use_cpu": "the plan is for the CPU; TrainingArguments would take any accelerator it sees",
    "use_safetensors": "pickled weights can run code when they are loaded",
    "device_map": "weights go straight to the device, without a second copy in host memory",
    "ddp_timeout": "two hours: the other processes wait while the first one prepares the data",
    "save_total_limit": "two checkpoints: while one is written, the other is whole",
    "logging_nan_inf_filter": "off: the default hides steps whose loss is not a number",
    "include_num_input_tokens_seen": "counts tokens, so that predicted and measured speed can be compared",
    "pad_to_multiple_of": "tensor cores work on multiples of 8 in 16 bits",
    "max_new_tokens": "yours: --new-tokens, and a flag of infer.py",
}
"""What every project has, and why."""


def describe_batch(document: dict, key: str) -> dict:
    """Why this micro-batch: the largest that fits, and what the others would have cost."""
    batch = document["batch"]
    others = [s for s in batch["splits"] if s["micro_batch"] != batch["micro_batch"]]
    return {
        "key": key,
        "value": batch[BATCH[key]],
        "technique": "batch split",
        "why": f"{batch['micro_batch']} x {batch['accumulation']}{format_copies(document)} = your global batch of "
        f"{batch['global_batch']}: the largest "
        "micro-batch that fits, since fewer passes are never slower in published runs",
        "basis": document["estimate"]["basis"],
        "rejected": [
            {
                "name": f"{s['micro_batch']} x {s['accumulation']}",
                "why": f"{s['step_seconds']:.3g} s a step, {s['peak_memory_gib']:.1f} GiB"
                + ("" if s["fits"] else ": does not fit"),
                "cost": s,
            }
            for s in others
        ],
        "inputs": {"device": document["case"]["device"]["name"], "model": document["case"]["model"]["name"]},
    }


def format_copies(document: dict) -> str:
    count = document["layout"]["replicate"] * document["layout"]["shard"]
    return f" on each of {count}" if count > 1 else ""


DEVICES = ("devices", "nproc-per-node", "num_processes", "num_machines", "nnodes")


def describe_devices(document: dict, key: str) -> dict:
    """Why so many devices, and what the best plan on other numbers of them would cost."""
    layout, estimate = document["layout"], document["estimate"]
    decision = next(d for d in document["decisions"] if d["axis"] == "parallelism")
    reasons = [note["text"] for note in document["notes"] if note["kind"] == "devices"]
    return {
        "key": key,
        "value": layout["devices"],
        "technique": f"parallelism={decision['chosen']}",
        "why": "; ".join(reasons) or f"all {layout['devices']} are used: {estimate['step_seconds']:.3g} s a step",
        "basis": estimate["basis"],
        "rejected": [
            {
                "name": f"{other['count']} device{'s' if other['count'] > 1 else ''}",
                "why": describe_count(other),
                "cost": other if other["fits"] else None,
            }
            for other in document["devices"]
            if not other["chosen"]
        ],
        "inputs": {"device": document["case"]["device"]["name"], "model": document["case"]["model"]["name"]},
    }


def describe_count(row: dict) -> str:
    """What the best plan on so many devices costs, and what else changes."""
    if not row["fits"]:
        return row["why_not"]
    if row["gpu_hours"] is not None:
        hours = f", {row['gpu_hours']:,.3g} GPU-hours"
    elif row["gpu_hours_per_1000_steps"] is not None:
        hours = f", {row['gpu_hours_per_1000_steps']:,.3g} GPU-hours per 1,000 steps"
    else:
        hours = ""
    changes = f" (with {', '.join(row['changes'])})" if row["changes"] else ""
    return f"{row['step_seconds']:.3g} s a step, {row['peak_memory_gib']:.1f} GiB{hours}{changes}"


def describe_decision(document: dict, key: str, decision: dict, edit: dict | None) -> dict:
    found: dict = {"key": key}
    if edit:
        found |= {"value": edit["code"], "place": edit["place"], "comment": edit["why"]}
    return found | {
        "technique": f"{decision['axis']}={decision['chosen']}",
        "why": decision["why"],
        "quality_note": decision["quality_note"],
        "evidence": decision["evidence"],
        "basis": decision["basis"],
        "rejected": decision["rejected"],
        "inputs": {"device": document["case"]["device"]["name"], "model": document["case"]["model"]["name"]}
        | {k: document["yours"][k] for k in ("seq_len", "global_batch") if k in document["yours"]},
    }


def explain_rejection(document: dict, technique: str) -> dict:
    """The reason recorded in the plan for a technique that was not taken. Accepts NAME or AXIS=NAME."""
    axis, _, name = technique.rpartition("=")
    hits = []
    for decision in document["decisions"]:
        if axis and decision["axis"] != axis:
            continue
        if decision["chosen"] == name:
            return {"technique": f"{decision['axis']}={name}", "taken": True, "why": decision["why"]}
        hits += [(decision, r) for r in decision["rejected"] if r["name"] == name]
    if len(hits) > 1:
        options = ", ".join(f"{d['axis']}={name}" for d, _ in hits)
        raise UsageError(f"{name} is the name of several techniques", f"say which: {options}")
    if hits:
        decision, rejected = hits[0]
        return {
            "technique": f"{decision['axis']}={name}",
            "taken": False,
            "why": rejected["why"],
            "cost": rejected["cost"],
            "instead": decision["chosen"],
        }
    from generator.techniques.base import list_axes

    known = [t.name for a in list_axes() for t in a.members] + [t.id for a in list_axes() for t in a.members]
    if technique in known:
        mode = document["project"]["mode"]
        return {
            "technique": technique,
            "taken": False,
            "why": f"it is not a technique of --mode {mode}",
            "cost": None,
            "instead": None,
        }
    near = difflib.get_close_matches(technique, known, 3)
    raise UsageError(
        f"there is no technique {technique}",
        f"did you mean {', '.join(near)}?" if near else "`perfgen techniques` lists them",
    )


def format_answer(found: dict) -> str:
    lines = []
    if "taken" in found:
        verdict = "taken" if found["taken"] else f"not taken (chosen: {found['instead']})"
        lines = [f"{found['technique']}: {verdict}", f"  {found['why']}"]
        return "\n".join(lines)
    value = f" = {found['value']}" if "value" in found else ""
    lines.append(f"{found['key']}{value}")
    if "technique" in found:
        lines.append(f"  from {found['technique']}")
    lines.append(f"  {found['why']}")
    if found.get("quality_note"):
        lines.append(f"  mind: {found['quality_note']}")
    lines += [f"  not {r['name']}: {r['why']}" for r in found["rejected"]]
    lines += [f"  source: {e['url']}  ({e['claim']})" for e in found.get("evidence", []) if "url" in e]
    return "\n".join(lines)
