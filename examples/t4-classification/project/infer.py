"""Classify a text with the trained model: `python infer.py --prompt "..."`."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from config_file import read_config
from finished_runs import choose_run, describe_run
from infer_report import write_report
from loaded_weights import check_loaded
from masking import mask_messages
from terminal import escape_control, parse_flags

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="What a day!")
    parser.add_argument("--calls", type=int, default=1, help="answers to time, after one that warms up and compiles")
    parser.add_argument("--json", action="store_true", help="the report on standard output, and nothing else there")
    parser.add_argument("--report", type=Path, default=HERE / "infer.json", help="what was measured, for programs")
    parser.add_argument("--run", "--model", type=Path, help="folder of a finished run (default: the last one)")
    args = parse_flags(parser)
    if args.calls < 1:
        parser.error(f"--calls {args.calls}: one at least")
    model_folder = choose_run(HERE, CONFIG["output_dir"], args.run)
    print(f"{model_folder}: {describe_run(model_folder)}", file=sys.stderr)

    tokenizer = AutoTokenizer.from_pretrained(model_folder, revision=CONFIG["revision"], trust_remote_code=False)
    model, loading = AutoModelForSequenceClassification.from_pretrained(
        model_folder,
        revision=CONFIG["revision"],
        dtype=torch.float16,
        attn_implementation="sdpa",
        device_map="cuda",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading)
    model.eval()
    inputs = tokenizer(args.prompt, truncation=True, max_length=CONFIG["seq_len"], return_tensors="pt").to(model.device)
    if not inputs["input_ids"].numel():
        parser.error("--prompt has no tokens: there is nothing to classify")

    seconds = []
    for _ in range(1 + args.calls):
        started = time.perf_counter()
        with torch.inference_mode():
            probabilities = model(**inputs).logits[0].float().softmax(-1).tolist()
        seconds.append(time.perf_counter() - started)

    names = model.config.id2label
    ranked = sorted(((share, names[number]) for number, share in enumerate(probabilities)), reverse=True)
    if not args.json:
        for share, name in ranked:
            print(f"{share:7.2%}  {escape_control(name)}")
    write_report(
        args.report,
        prompt=args.prompt,
        answer=ranked[0][1],
        labels={name: share for share, name in ranked},
        prompt_tokens=inputs["input_ids"].shape[1],
        new_tokens=[0] * args.calls,
        first_call_seconds=seconds[0],
        seconds=seconds[1:],
        as_json=args.json,
    )


if __name__ == "__main__":
    mask_messages()
    main()
