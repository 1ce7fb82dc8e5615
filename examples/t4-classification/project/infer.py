"""Classify a text with the trained model: `python infer.py --prompt "..."`."""

import argparse
import sys
import time
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from infer_report import write_report

HERE = Path(__file__).resolve().parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
RUN = HERE / CONFIG["output_dir"]


def find_run() -> Path | None:
    """The finished run: where config.yaml says, else the newest beside it (--output_dir); a smoke run is none."""
    if (RUN / "run.json").exists():
        return RUN
    reports = [*HERE.glob("*/run.json"), *HERE.glob("*/*/run.json")]
    runs = [report for report in reports if report.parent != RUN / "smoke"]
    return max(runs, key=lambda report: report.stat().st_mtime).parent if runs else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="What a day!")
    parser.add_argument("--calls", type=int, default=1, help="answers to time, after one that warms up and compiles")
    parser.add_argument("--json", action="store_true", help="the report on standard output, and nothing else there")
    parser.add_argument("--report", type=Path, default=HERE / "infer.json", help="what was measured, for programs")
    parser.add_argument("--model", default=find_run() or RUN, help="folder of a finished run")
    args = parser.parse_args()
    if not (Path(args.model) / "run.json").exists():
        sys.exit(f"{args.model} holds no finished run: python train.py first, or --model FOLDER")
    if args.calls < 1:
        parser.error(f"--calls {args.calls}: one at least")
    print(f"{args.model}: the finished run", file=sys.stderr)

    tokenizer = AutoTokenizer.from_pretrained(args.model, revision=CONFIG["revision"])
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model,
        revision=CONFIG["revision"],
        dtype=torch.float16,
        attn_implementation="sdpa",
        device_map="cuda",
        use_safetensors=True,
    ).eval()
    inputs = tokenizer(args.prompt, truncation=True, max_length=CONFIG["seq_len"], return_tensors="pt").to(model.device)

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
            print(f"{share:7.2%}  {name}")
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
    main()
