"""What the model itself says of tokens: eager Transformers, for compare.py. Run where torch is."""

import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Of weights that are stored so; others are compared with all 32 bits."""


def main() -> None:
    model_name, revision = sys.argv[1], sys.argv[2] or None
    request = json.load(sys.stdin)
    dtype = DTYPES.get(request["weights"], torch.float32)
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is no answer
    folder, name = os.path.split(model_name)
    file = {"gguf_file": name} if name.endswith(".gguf") else {}  # which is unpacked
    model = AutoModelForCausalLM.from_pretrained(
        folder if file else model_name,
        revision=revision,
        dtype=dtype,
        attn_implementation="eager",
        trust_remote_code=False,
        **file,
    ).eval()
    json.dump([describe_row(model, row["prompt"], row["answer"]) for row in request["rows"]], answers)


@torch.inference_mode()
def describe_row(model, prompt: list[int], answer: list[int]) -> dict:
    """Of each token of the answer, given those before: the likeliest, and how far below it the answer's is."""
    tokens = torch.tensor([prompt + answer])
    logits = model(tokens.to(model.device)).logits[0].float().cpu()
    before = logits[len(prompt) - 1 : -1]
    chosen = before.gather(1, torch.tensor(answer)[:, None])[:, 0]
    read = logits[: len(prompt) - 1].log_softmax(-1)
    return {
        "likeliest": before.argmax(-1).tolist(),
        "gaps": (before.max(-1).values - chosen).tolist(),
        "guesses": logits[: len(prompt)].argmax(-1).tolist(),
        "prompt_scores": read.gather(1, tokens[0, 1 : len(prompt)][:, None])[:, 0].tolist(),
        "dtype": str(model.dtype).removeprefix("torch."),
    }


if __name__ == "__main__":
    main()
