"""Continue a prompt with the trained model: two graphs, one that reads the padded prompt and one that adds a token."""

import quiet_imports  # noqa: F401  # isort: skip

import argparse
import math
import sys
import time
from pathlib import Path

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from transformers import AutoModelForCausalLM, AutoTokenizer, StaticCache

from config_file import read_config
from finished_runs import choose_run, describe_run
from infer_report import write_report
from loaded_weights import check_loaded
from sources import find_source
from static_run import Compilations
from template_limits import check_template
from terminal import escape_control, parse_flags

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


class Generator:
    """Greedy answers of one prompt at a time. Lengths are padded, so prompts of one class share their graphs."""

    def __init__(self, model, multiple: int):
        self.device = torch_xla.device()
        self.model, self.multiple = model.to(self.device).eval(), multiple
        self.model.tie_weights()
        self.compilations = Compilations(lambda: met.counter_value("UncachedCompile") or 0, lambda: "")
        torch_xla.sync()
        xm.wait_device_ops()

    @torch.no_grad()
    def generate(self, prompt: list[int], new_tokens: int, stops: set[int]) -> list[int]:
        """At most ``new_tokens`` tokens, up to one of ``stops``."""
        length = math.ceil(len(prompt) / self.multiple) * self.multiple
        room = length + math.ceil(new_tokens / self.multiple) * self.multiple
        padding = length - len(prompt)  # on the left: what is added follows the prompt's last token
        cache = StaticCache(config=self.model.config, max_cache_len=room)
        tokens = torch.tensor([[0] * padding + prompt]).to(self.device)
        places = torch.arange(length).to(self.device)
        first = torch.tensor(padding).to(self.device)
        answer: list[int] = []
        for _ in range(new_tokens):
            graph = "reading the prompt" if tokens.shape[1] > 1 else "adding a token"
            with self.compilations.expect_one(graph, (*tokens.shape, room)):
                logits = self.model(
                    input_ids=tokens,
                    attention_mask=make_mask(places, first, room, self.model.dtype),
                    position_ids=(places - first).clamp(min=0)[None],
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                ).logits
                tokens = logits[:, -1:].argmax(-1)
                torch_xla.sync()
            answer.append(tokens.item())
            if answer[-1] in stops:
                break
            places = torch.tensor([length + len(answer) - 1]).to(self.device)
        return answer


def make_mask(places: torch.Tensor, first: torch.Tensor, room: int, dtype: torch.dtype) -> torch.Tensor:
    """Added to the scores: each place sees from the prompt's first token to itself, no padding, nothing empty."""
    columns = torch.arange(room, device=places.device)
    seen = (columns >= first) & (columns <= places[:, None])
    return torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)[None, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max_new_tokens", type=int, default=128)
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")
    parser.add_argument("--calls", type=int, default=1, help="answers to time, after one that compiles")
    parser.add_argument("--json", action="store_true", help="the report on standard output, and nothing else there")
    parser.add_argument("--report", type=Path, default=HERE / "infer.json", help="what was measured, for programs")
    parser.add_argument("--run", "--model", type=Path, help="folder of a finished run (default: the last one)")
    parser.add_argument("--base", action="store_true", help="ask the model as it was before the training")
    args = parse_flags(parser)
    folder = find_source(CONFIG, "model") if args.base else choose_run(HERE, CONFIG["output_dir"], args.run)
    print(f"{folder}: {'the model as it was' if args.base else describe_run(folder)}", file=sys.stderr)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.bfloat16 if CONFIG["graphs"]["arguments"]["bf16"] else torch.float32,
        attn_implementation="eager",  # XLA fuses it itself
        output_loading_info=True,
        use_safetensors=True,
        trust_remote_code=False,
    )
    check_loaded(model, loading)
    generator = Generator(model, CONFIG["graphs"]["multiple"])
    prompt = encode_prompt(tokenizer, args.prompt, args.raw)
    stops = list_stops(model, tokenizer)

    started = time.perf_counter()
    answer = generator.generate(prompt, args.max_new_tokens, stops)
    first_call_seconds, seconds, counts = time.perf_counter() - started, [], []
    for _ in range(args.calls):
        started = time.perf_counter()
        answer = generator.generate(prompt, args.max_new_tokens, stops)
        seconds.append(time.perf_counter() - started)
        counts.append(len(answer))
    text = tokenizer.decode(answer, skip_special_tokens=True)
    if not args.json:
        print(escape_control(text))
    write_report(
        args.report,
        prompt=args.prompt,
        answer=text,
        prompt_tokens=len(prompt),
        new_tokens=counts,
        first_call_seconds=first_call_seconds,
        seconds=seconds,
        as_json=args.json,
        compiled=generator.compilations.report(),
        tokens=answer,
    )


def encode_prompt(tokenizer, prompt: str, raw: bool) -> list[int]:
    if raw or not tokenizer.chat_template:
        return tokenizer(prompt)["input_ids"]
    check_template(tokenizer)
    turns = [{"role": "user", "content": prompt}]
    try:
        return tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    except Exception as error:  # a template is a program of others: what it raises may be anything
        sys.exit(f"the model's chat template takes no question alone: {error!r}: --raw goes on with it as it is")


def list_stops(model, tokenizer) -> set[int]:
    ids = model.generation_config.eos_token_id
    return {tokenizer.eos_token_id, *(ids if isinstance(ids, list) else [ids])} - {None}


if __name__ == "__main__":
    main()
