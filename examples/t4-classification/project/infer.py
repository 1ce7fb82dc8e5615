"""Classify a text with the trained model: `python infer.py --prompt "..."`."""

import argparse
import sys
import time
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from machine import peak_memory

HERE = Path(__file__).resolve().parent
CONFIG = yaml.safe_load((HERE / "config.yaml").read_text(encoding="utf-8"))
RUN = HERE / CONFIG["output_dir"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="What a day!")
    parser.add_argument("--model", default=RUN, help="folder of a finished run")
    args = parser.parse_args()
    if not (Path(args.model) / "run.json").exists():
        sys.exit(f"{args.model} holds no finished run: python train.py first")

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

    started = time.perf_counter()
    with torch.inference_mode():
        probabilities = model(**inputs).logits[0].float().softmax(-1).tolist()
    seconds = time.perf_counter() - started
    tokens = inputs["input_ids"].shape[1]
    peak = peak_memory()["peak_memory_gib"]
    print(f"{tokens} tokens in {seconds:.3f} s: {tokens / seconds:.1f} tokens/s, {peak:.2f} GiB at peak")
    for number in sorted(range(len(probabilities)), key=probabilities.__getitem__):
        print(f"{probabilities[number]:7.2%}  {model.config.id2label[number]}")


if __name__ == "__main__":
    main()
