"""Answer a prompt with the trained model: `python infer.py --prompt "..."`."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import sys
import time
from pathlib import Path

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoModelForCausalLM, AutoTokenizer

from answer_length import fit_answer
from chat_template import ensure_chat_template
from config_file import read_config
from finished_runs import choose_run, describe_run
from infer_report import write_report
from loaded_weights import check_loaded, load_adapter
from masking import mask_messages
from run_identity import check_base
from sources import find_source
from stop_tokens import list_stop_tokens
from template_limits import check_template
from terminal import EscapedStreamer, parse_flags

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="Who are you?")
    parser.add_argument("--max_new_tokens", type=int, default=128)
    parser.add_argument("--calls", type=int, default=1, help="answers to time, after one that warms up and compiles")
    parser.add_argument("--json", action="store_true", help="the report on standard output, and nothing else there")
    parser.add_argument("--report", type=Path, default=HERE / "infer.json", help="what was measured, for programs")
    parser.add_argument("--run", "--model", type=Path, help="folder of a finished run (default: the last one)")
    parser.add_argument("--base", action="store_true", help="ask the model as it was before the training")
    args = parse_flags(parser)
    if args.calls < 1:
        parser.error(f"--calls {args.calls}: one at least")
    if args.max_new_tokens < 1:
        parser.error(f"--max_new_tokens {args.max_new_tokens}: one at least")
    model_folder = find_source(CONFIG, "model") if args.base else choose_run(HERE, CONFIG["output_dir"], args.run)
    print(f"{model_folder}: {'the model as it was' if args.base else describe_run(model_folder)}", file=sys.stderr)
    adapted = Path(model_folder, "adapter_config.json").is_file()  # the path that it has of its model may be an old one

    tokenizer = AutoTokenizer.from_pretrained(model_folder, revision=CONFIG["revision"], trust_remote_code=False)
    ensure_chat_template(tokenizer)
    check_template(tokenizer)
    model, loading = AutoModelForCausalLM.from_pretrained(
        find_source(CONFIG, "model") if adapted else model_folder,
        revision=CONFIG["revision"],
        dtype=torch.bfloat16,
        attn_implementation="sdpa",
        device_map="xpu",
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading)
    model.eval()
    if adapted:
        check_base(Path(model_folder), find_source(CONFIG, "model"), CONFIG.get("revision"))
        load_adapter(model, Path(model_folder))
        model.eval()
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):  # the adapters, into the weights that they stand beside
            layer.merge()
    turns = [{"role": "user", "content": args.prompt}]
    try:
        inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    except Exception as error:  # a template is a program of others: what it raises may be anything
        sys.exit(f"the model's chat template takes no question alone: {error!r}")
    inputs = inputs.to(model.device)
    prompt_tokens = inputs["input_ids"].shape[1]

    options = {
        **inputs,
        "max_new_tokens": fit_answer(model.config, prompt_tokens, args.max_new_tokens),
        "eos_token_id": list_stop_tokens(model, tokenizer),
    }

    def is_warm(tokens: torch.Tensor, scores: object) -> torch.Tensor:
        """After two tokens: reading the prompt and adding a token have run, and compiled, with the answer's shapes."""
        return torch.ones_like(tokens[:, -1]).bool() & (tokens.shape[1] >= prompt_tokens + 2)

    started = time.perf_counter()
    model.generate(**options, stopping_criteria=[is_warm])
    first_call_seconds = time.perf_counter() - started

    streamer = None if args.json else EscapedStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    new_tokens, seconds = [], []
    for _ in range(args.calls):
        started = time.perf_counter()
        output = model.generate(**options, streamer=streamer)
        seconds.append(time.perf_counter() - started)
        new_tokens.append(output.shape[1] - prompt_tokens)
        streamer = None  # shown once

    answer = tokenizer.decode(output[0, prompt_tokens:], skip_special_tokens=True)
    write_report(
        args.report,
        prompt=args.prompt,
        answer=answer,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        first_call_seconds=first_call_seconds,
        seconds=seconds,
        as_json=args.json,
    )


if __name__ == "__main__":
    mask_messages()
    main()
