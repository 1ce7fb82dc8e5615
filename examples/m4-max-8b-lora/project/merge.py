"""Put the trained adapter into the weights of its model: `python merge.py` writes runs/merged, a plain model."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Mxfp4Config,
)

from config_file import read_config
from finished_runs import choose_run
from loaded_weights import check_loaded, hide_report
from run_folder import LOCK, lock_folder
from run_identity import check_base
from seals import sync_to_disk
from sources import find_source
from stop_tokens import list_stop_tokens
from stopping import run_main
from terminal import parse_flags

HERE = Path(__file__).resolve().parent
CONFIG = read_config()
TEXT = "The quick brown fox jumps over the lazy dog."
BOUNDS = {torch.float32: 1e-3, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Largest difference of an output, as a share of the largest output: what rounding the merged weights may make of it on
the way through the layers. An adapter that went to the wrong place, or not at all, differs by more."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", "--model", type=Path, help="folder of a finished run (default: the last one)")
    parser.add_argument("--output", type=Path, help="where the merged model goes (default: merged, inside of it)")
    parser.add_argument("--dtype", default="auto", help="auto: that of the model's own weights; bfloat16, float16, …")
    parser.add_argument("--push_to_hub", metavar="NAME", help="also upload it, as a private repository")
    args = parse_flags(parser)
    run = choose_run(HERE, CONFIG["output_dir"], args.run)
    output = args.output or run / "merged"
    if not (run / "adapter_config.json").is_file():
        sys.exit(f"{run} holds no adapter: python train.py first")
    if output.exists():
        sys.exit(f"{output} exists: remove it, or give another --output")
    if (run / LOCK).exists() and not (run / "run.json").is_file():
        sys.exit(f"the run in {run} has not finished: python train.py goes on with it")
    base = load_base(run, args.dtype)
    check_base(run, *name_base())
    draft = open_draft(output)

    tokenizer = AutoTokenizer.from_pretrained(run, trust_remote_code=False)
    adapted = add_adapter(base, run).eval()
    inputs = tokenizer(TEXT, return_tensors="pt").to(adapted.device)
    before = compute_outputs(adapted, inputs)
    merged = adapted.merge_and_unload(safe_merge=True)
    difference, largest = compare(compute_outputs(merged, inputs), before)
    bound = BOUNDS[merged.dtype] * largest
    print(f"largest difference of an output: {difference:.3g} (outputs up to {largest:.3g}, {merged.dtype})")
    if not difference <= bound:
        sys.exit(f"more than {bound:.3g}: this is no rounding. Nothing was written; try --dtype float32.")

    if merged.can_generate():  # servers read there where an answer ends
        merged.generation_config.eos_token_id = list_stop_tokens(merged, tokenizer)
    try:
        merged.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        for name in ("run.json", "README.md", "labels.json"):
            if (run / name).is_file():
                shutil.copy(run / name, draft)
        for path in draft.iterdir():
            if path.name != LOCK:  # closing it again would give the lock up
                sync_to_disk(path)
    except BaseException:  # half a model on a disk that is full, in a folder that nobody sees
        shutil.rmtree(draft, ignore_errors=True)
        raise
    draft.rename(output)
    (output / LOCK).unlink()
    print(f"{output}: python infer.py --model {output}; a server of it: perfgen init DIR --mode infer --model {output}")
    if args.push_to_hub:
        merged.push_to_hub(args.push_to_hub, private=True)
        tokenizer.push_to_hub(args.push_to_hub, private=True)


def open_draft(output: Path) -> Path:
    """A folder beside it that is given its name once it is complete; what a merge that was killed left there goes."""
    draft = output.with_name(f".{output.name}.unfinished")
    if os.path.lexists(draft) and not (draft / LOCK).is_file():
        sys.exit(f"{draft} exists, and is not of merge.py: remove it, or give another --output")
    try:
        draft.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"{draft} cannot be made ({error.strerror}): give another --output")
    lock_folder(draft)
    for path in draft.iterdir():
        if path.name != LOCK:
            path.unlink()
    return draft


def name_base() -> tuple[str | Path, str | None]:
    """Folder or hub id of the model before training, and the hub's revision."""
    return find_source(CONFIG, "model"), CONFIG.get("revision")


def load_base(run: Path, dtype: str):
    """The model as it was before training, unquantized: rounding to 4 bits is no part of an adapter."""
    model, revision = name_base()
    more: dict[str, Any] = {"revision": revision} if revision else {}
    packed = "quantization_config" in AutoConfig.from_pretrained(model, trust_remote_code=False, **more).to_dict()
    kind, adds_head = AutoModelForCausalLM, False
    if PeftConfig.from_pretrained(run).task_type == "SEQ_CLS":
        kind, adds_head = AutoModelForSequenceClassification, True  # the adapter has it
        hide_report()
        names = json.loads((run / "labels.json").read_text(encoding="utf-8"))
        more |= {"id2label": dict(enumerate(names)), "label2id": {name: n for n, name in enumerate(names)}}
        more["problem_type"] = "single_label_classification"  # as train.py has it
    if packed:  # as gpt-oss is published: of packed models no other is adapted
        more["quantization_config"] = Mxfp4Config(dequantize=True)
    base, loading = kind.from_pretrained(
        model,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
        **more,
    )
    check_loaded(base, loading, adds_head)
    if packed:
        base._weight_conversions = None  # its 16-bit experts would be saved under the names of packed ones
    return base


def add_adapter(base, run: Path) -> PeftModel:
    """PEFT only warns of weights that the adapter's file lacks: what it was to change would stay as it was."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Found missing adapter keys")
        try:
            return PeftModel.from_pretrained(base, run)
        except UserWarning as warning:
            sys.exit(f"{run} is not whole: {warning}")


def compute_outputs(model, inputs) -> torch.Tensor:
    with torch.inference_mode():
        return model(**inputs).logits.float()


def compare(merged: torch.Tensor, adapted: torch.Tensor) -> tuple[float, float]:
    """The largest difference, and the largest output."""
    return (merged - adapted).abs().max().item(), adapted.abs().max().item()


if __name__ == "__main__":
    run_main(main)
