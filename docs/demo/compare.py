"""What the training of `make demo` changed: loss on dialogues that it never saw, and an answer, before and after."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION = "do you want to have dinner with me tonight?"
NEW_TOKENS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model as it was")
    parser.add_argument("run", type=Path, help="folder of the finished run")
    parser.add_argument("data", type=Path, help="held-out dialogues, .jsonl")
    parser.add_argument("--question", default=QUESTION)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.run)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32, use_safetensors=True)
    trained = PeftModel.from_pretrained(model, args.run).eval()
    chats = [json.loads(line)["messages"] for line in args.data.read_text(encoding="utf-8").splitlines()]
    with trained.disable_adapter():
        before = measure_loss(trained, tokenizer, chats), write_answer(trained, tokenizer, args.question)
    after = measure_loss(trained, tokenizer, chats), write_answer(trained, tokenizer, args.question)

    print(
        f"\nloss on the replies of {len(chats)} dialogues that were held out: {before[0]:.3f} before, {after[0]:.3f} after"
    )
    print(f"\n      asked: {args.question}\n     before: {indent(before[1])}\n      after: {indent(after[1])}\n")


def measure_loss(model: torch.nn.Module, tokenizer, chats: list[list[dict]]) -> float:
    """Mean negative log-likelihood of a token of the replies, in nats; the token that ends a reply is one of them."""
    total, count = 0.0, 0
    for messages in chats:
        asked = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        full = tokenizer.apply_chat_template(messages, return_dict=False)
        if full[: len(asked)] != asked:
            raise ValueError(f"the chat template does not begin {messages} with its question")
        tokens = torch.tensor([full])
        end = len(full) - full[::-1].index(tokenizer.eos_token_id)
        with torch.inference_mode():
            scores = model(tokens[:, : end - 1]).logits[0, len(asked) - 1 :].log_softmax(-1)
        total -= scores.gather(1, tokens[0, len(asked) : end, None]).sum().item()
        count += end - len(asked)
    return total / count


def write_answer(model: torch.nn.Module, tokenizer, question: str) -> str:
    turns = [{"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def indent(text: str) -> str:
    return "\n".join(line if number == 0 else " " * 13 + line for number, line in enumerate(text.strip().splitlines()))


if __name__ == "__main__":
    main()
