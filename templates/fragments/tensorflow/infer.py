"""Continue a prompt with the trained model: generate as one function that XLA compiles, once for each padded length."""

import quiet_imports  # noqa: F401  # isort: skip

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # Transformers' TensorFlow models are of Keras 2; read at the import

import argparse
import sys
import time
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from weights import load_model

import tensorflow as tf
from config_file import read_config
from finished_runs import choose_run, describe_run
from infer_report import write_report
from sources import find_source
from static_run import Compilations
from terminal import escape_control, parse_flags

HERE = Path(__file__).resolve().parent
CONFIG = read_config()


class Generator:
    """Greedy answers. ``compiles``: False runs the same generate operator by operator."""

    def __init__(self, model, tokenizer, multiple: int, compiles: bool = True):
        self.model, self.tokenizer, self.multiple = model, tokenizer, multiple
        tokenizer.padding_side = "left"  # what is added follows the prompt's last token
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        self.function = tf.function(model.generate, jit_compile=True) if compiles else model.generate
        count = self.function.experimental_get_tracing_count if compiles else lambda: 0
        self.compilations = Compilations(count, lambda: "A changed option of generate is traced anew.")

    def generate(self, prompt: str, new_tokens: int) -> tuple[list[int], int]:
        """The new tokens up to the end of the text, and the tokens of the prompt."""
        padded = {"padding": True, "pad_to_multiple_of": self.multiple, "return_token_type_ids": False}
        inputs = self.tokenizer(prompt, **padded, return_tensors="tf")
        shape = tuple(inputs["input_ids"].shape)
        with self.compilations.expect_one("generate", (*shape, new_tokens)):
            output = self.function(
                **inputs, max_new_tokens=new_tokens, do_sample=False, pad_token_id=self.tokenizer.pad_token_id
            )
        answer = output[0, shape[1] :].numpy().tolist()
        end = self.model.generation_config.eos_token_id
        if end in answer:
            answer = answer[: answer.index(end) + 1]
        return answer, int(tf.reduce_sum(inputs["attention_mask"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max_new_tokens", type=int, default=128)
    parser.add_argument("--calls", type=int, default=1, help="answers to time, after one that compiles")
    parser.add_argument("--eager", action="store_true", help="without XLA, operator by operator: to compare with")
    parser.add_argument("--json", action="store_true", help="the report on standard output, and nothing else there")
    parser.add_argument("--report", type=Path, default=HERE / "infer.json", help="what was measured, for programs")
    parser.add_argument("--run", "--model", type=Path, help="folder of a finished run (default: the last one)")
    parser.add_argument("--base", action="store_true", help="ask the model as it was before the training")
    args = parse_flags(parser)
    folder = find_source(CONFIG, "model") if args.base else choose_run(HERE, CONFIG["output_dir"], args.run)
    print(f"{folder}: {'the model as it was' if args.base else describe_run(folder)}", file=sys.stderr)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = load_model(folder)
    generator = Generator(model, tokenizer, CONFIG["graphs"]["multiple"], compiles=not args.eager)

    started = time.perf_counter()
    answer, prompt_tokens = generator.generate(args.prompt, args.max_new_tokens)
    first_call_seconds, seconds, counts = time.perf_counter() - started, [], []
    for _ in range(args.calls):
        started = time.perf_counter()
        answer, prompt_tokens = generator.generate(args.prompt, args.max_new_tokens)
        seconds.append(time.perf_counter() - started)
        counts.append(len(answer))
    text = tokenizer.decode(answer, skip_special_tokens=True)
    if not args.json:
        print(escape_control(text))
    write_report(
        args.report,
        prompt=args.prompt,
        answer=text,
        prompt_tokens=prompt_tokens,
        new_tokens=counts,
        first_call_seconds=first_call_seconds,
        seconds=seconds,
        as_json=args.json,
        packages=("tensorflow-cpu", "transformers"),
        compiled=generator.compilations.report(),
        tokens=answer,
    )


if __name__ == "__main__":
    main()
