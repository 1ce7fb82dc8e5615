"""README.md of the trained model: from what, on what and how it was trained, and what was measured."""

import html
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from evaluation import METRICS

PACKAGES = ("torch", "transformers", "trl", "peft", "datasets")
ARGUMENTS = ("learning_rate", "warmup_steps", "weight_decay", "seed")

LEARNED = {"assistant": "the answers", "all": "every token"}
"""Values of loss_on."""


def write_model_card(args, config: dict, run: dict, *, task: str, from_scratch: bool) -> None:
    """From config.yaml, the flags that were given, and what run.json will hold."""
    folder = Path(args.output_dir)
    license_name = None if from_scratch else find_license(config)
    base = config["model"] if "revision" in config else name_model(Path(config["model"]))
    head: dict = {"library_name": "peft" if "lora" in config else "transformers"}
    head |= {"base_model": base} if "revision" in config and not from_scratch else {}
    head |= {"license": license_name} if license_name else {}
    head |= {"datasets": [config["data"]]} if "data_revision" in config else {}
    adapted = f"{name_adapter(config['lora'])} adapters" if "lora" in config else None
    kind = adapted or ("from random weights" if from_scratch else "fine-tuned")
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n",
        f"# {escape_cell(base)}, {kind}\n",
        make_table("Training", {"task": task, **list_values(args, config, run)}),
        make_table("Measured", list_figures(run)),
        make_table("Versions", list_versions()),
    ]
    if not license_name and not from_scratch:
        parts.append("The license of the base model was not found beside it: look there before you pass this on.\n")
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def name_adapter(lora: dict) -> str:
    return "DoRA" if lora.get("use_dora") else "rsLoRA" if lora.get("use_rslora") else "LoRA"


def list_values(args, config: dict, run: dict) -> dict:
    data = config["data"] if "data_revision" in config else Path(str(config["data"])).name
    values = {"data": data}
    values |= {"learned from": LEARNED[config["loss_on"]]} if config.get("loss_on") in LEARNED else {}
    values |= {"tokens a sequence": config["seq_len"], "steps": run["finished_step"]}
    values |= {"epochs": f"{args.num_train_epochs:g}"} if args.max_steps <= 0 else {}
    lora = {f"LoRA {name}": value for name, value in config.get("lora", {}).items()}
    batch = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    values |= {"sequences a step": batch, "scheduler": args.lr_scheduler_type.value}
    values |= {name.replace("_", " "): getattr(args, name) for name in ARGUMENTS} | lora
    return values | ({"changed on the way": "; ".join(run["changes"])} if run.get("changes") else {})


def name_model(path: Path) -> str:
    """A folder's name; of a config that stands alone its own, or its folder's where it is a config.json."""
    if path.name == "config.json":
        return path.absolute().parent.name
    return path.stem if path.suffix == ".json" else path.name


def list_figures(run: dict) -> dict:
    figures = {"processes": run["processes"]}
    if "tokens_per_second" in run:
        figures |= {"tokens per second": f"{run['tokens_per_second']:,.0f}"}
        figures |= {"memory at peak": f"{run['peak_memory_gib']:.2f} GiB"}
    evaluations = run.get("evaluations", [])
    kept = [row for row in evaluations if row["step"] == run.get("kept_step")]
    if kept:
        figures["held-out rows"] = run["eval_rows"]
        for key, name in METRICS.items():
            if key in kept[-1]:
                before = f"{evaluations[0][key]:.4g} before, " if evaluations[0]["step"] == 0 else ""
                figures[f"{name} on them"] = f"{before}{kept[-1][key]:.4g} at step {kept[-1]['step']}, which was kept"
    return figures


def list_versions() -> dict:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue  # this project does not use it
    return versions


def make_table(title: str, rows: dict) -> str:
    lines = [f"| {name} | {escape_cell(value)} |" for name, value in rows.items()]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *lines, ""])


def escape_cell(value: object) -> str:
    """One line without power over the page: a file's name may hold anything."""
    return html.escape(" ".join(str(value).split()), quote=False).replace("|", "&#124;")


def find_license(config: dict) -> str | None:
    """Of the base model's own card, beside its weights or in the hub's cache; never asked of the hub."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(__file__).parent / config["model"]
    if "revision" in config and not folder.is_dir():  # a hub id may have been changed to a folder
        card = try_to_load_from_cache(config["model"], "README.md", revision=config["revision"])
    else:
        card = folder / "README.md"
    if not isinstance(card, (str, Path)) or not Path(card).is_file():
        return None
    text = Path(card).read_text(encoding="utf-8", errors="replace")
    if not text.startswith("---\n"):
        return None
    try:
        head = yaml.safe_load(text.removeprefix("---\n").partition("\n---")[0])
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none is a ValueError
        return None
    name = head.get("license") if isinstance(head, dict) else None
    return name if isinstance(name, str) and name else None
