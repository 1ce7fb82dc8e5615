"""Run in a project's folder: the losses of its first steps, and the tokens of an answer, without its compiler.

`python eager.py torch|tensorflow ROWS STEPS TOKENS` prints JSON. Rows, their order, rates and labels are the project's own.
"""

import json
import sys
from pathlib import Path

import yaml

sys.path.insert(0, ".")
kind, batch, steps, new_tokens = sys.argv[1], *map(int, sys.argv[2:])
CONFIG = yaml.safe_load(Path("config.yaml").read_text(encoding="utf-8"))
PROMPT = "It was a dark night, and"

from static_run import RunArguments, hold_out, order_rows, pad_batch  # noqa: E402

args = RunArguments(**CONFIG["training"])


def list_batches(rows):
    for step in range(steps):
        picked = [rows[number] for number in order_rows(len(rows), batch, step, args.seed)]
        yield args.find_rate(step, steps), pad_batch(picked, batch, CONFIG["graphs"]["multiple"], CONFIG["seq_len"], 2)


def train_torch() -> tuple[list[float], list[int]]:
    import torch
    from sequences import prepare_rows
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = CONFIG["model"]
    tokenizer = AutoTokenizer.from_pretrained(source)
    rows, _ = hold_out(prepare_rows(CONFIG, tokenizer), CONFIG, args, None)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa")
    prompt = tokenizer(PROMPT, return_tensors="pt")
    answer = model.eval().generate(**prompt, max_new_tokens=new_tokens, do_sample=False)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    losses = []
    for rate, inputs in list_batches(rows):
        loss = model(**{name: torch.from_numpy(value) for name, value in inputs.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, answer[0, prompt["input_ids"].shape[1] :].tolist()


def train_tensorflow() -> tuple[list[float], list[int]]:
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    import train
    from sequences import prepare_rows
    from transformers import PreTrainedTokenizerFast
    from weights import load_model

    source = CONFIG["model"]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
    rows, _ = hold_out(prepare_rows(CONFIG, tokenizer), CONFIG, args, None)
    prompt = tokenizer(PROMPT, return_tensors="tf", return_token_type_ids=False)
    model = load_model(source)
    answer = model.generate(**prompt, max_new_tokens=new_tokens, do_sample=False)
    args.output_dir, args.per_device_train_batch_size, args.max_steps = "nowhere", batch, steps
    run = train.Run(model, tokenizer, args, rows, [])
    losses = []
    for rate, inputs in list_batches(rows):
        one = [tf.constant(inputs[name][None], tf.int32) for name in ("input_ids", "labels", "attention_mask")]
        losses.append(float(run.step(*one, tf.constant(rate, tf.float32))))
    return losses, answer[0, prompt["input_ids"].shape[1] :].numpy().tolist()


losses, tokens = {"torch": train_torch, "tensorflow": train_tensorflow}[kind]()
print(json.dumps({"losses": losses, "tokens": tokens}))
