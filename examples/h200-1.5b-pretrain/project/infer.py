"""Continue a prompt with the trained model: `python infer.py --prompt "..."`."""

import argparse
import sys
import time
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from infer_report import write_report

HERE = Path(__file__).resolve().parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
RUN = HERE / CONFIG["output_dir"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max_new_tokens", type=int, default=128)
    parser.add_argument("--calls", type=int, default=1, help="answers to time; the first call warms up and compiles")
    parser.add_argument("--report", type=Path, default=HERE / "infer.json", help="what was measured, for programs")
    parser.add_argument("--model", default=RUN, help="folder of a finished run")
    args = parser.parse_args()
    if not (Path(args.model) / "run.json").exists():
        sys.exit(f"{args.model} holds no finished run: python train.py first")
    if args.calls < 1:
        parser.error(f"--calls {args.calls}: one at least")

    tokenizer = AutoTokenizer.from_pretrained(args.model, revision=CONFIG["revision"])
    model = AutoModelForCausalLM.from_pretrained(
        args.model,
        revision=CONFIG["revision"],
        dtype=torch.bfloat16,
        attn_implementation="sdpa",
        device_map="cuda",
        use_safetensors=True,
    ).eval()
    inputs = tokenizer(args.prompt, return_tensors="pt").to(model.device)

    seconds = []
    for _ in range(args.calls):
        started = time.perf_counter()
        output = model.generate(
            **inputs,
            max_new_tokens=args.max_new_tokens,
            cache_implementation="static",  # generate compiles the decoding step
        )
        seconds.append(time.perf_counter() - started)

    prompt_tokens = inputs["input_ids"].shape[1]
    answer = tokenizer.decode(output[0], skip_special_tokens=True)
    print(answer)
    write_report(
        args.report,
        prompt=args.prompt,
        answer=answer,
        prompt_tokens=prompt_tokens,
        new_tokens=output.shape[1] - prompt_tokens,
        seconds=seconds,
    )


if __name__ == "__main__":
    main()
