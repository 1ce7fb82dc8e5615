"""What a user has without this project: `transformers.pipeline("text-generation", model)`, with its defaults.

A program of its own, for the environment that has torch. It reads requests, a line of JSON each, and answers in the
same way, so that bench.py can measure both in turn.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

GIB = 1 << 30


class Clock:
    """A streamer, which `generate` gives the prompt first and then each token."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def put(self, tokens) -> None:
        self.moments.append(time.perf_counter())

    def end(self) -> None:
        pass


def main() -> None:
    model, revision = sys.argv[1], sys.argv[2] or None
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is no answer
    started = time.perf_counter()
    from transformers import pipeline

    pipe = pipeline("text-generation", revision=revision, **name_model(Path(model)))
    say(answers, {"load_s": time.perf_counter() - started, "dtype": str(pipe.model.dtype), "device": str(pipe.device)})
    for line in sys.stdin:
        request = json.loads(line)
        say(answers, generate(pipe, request["prompt"], request["new_tokens"]))


def name_model(path: Path) -> dict:
    """Of a GGUF file, its folder and its name there: Transformers unpacks its weights."""
    if path.suffix != ".gguf":
        return {"model": str(path)}
    file = {"gguf_file": path.name}
    from transformers import AutoTokenizer

    return {
        "model": str(path.parent),
        "tokenizer": AutoTokenizer.from_pretrained(path.parent, **file),
        "model_kwargs": file,
    }


def say(stream, message: dict) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def generate(pipe, prompt: str, new_tokens: int) -> dict:
    """One answer of a fixed length; when its first token came, and its last."""
    clock = Clock()
    started = time.perf_counter()
    pipe(prompt, max_new_tokens=new_tokens, min_new_tokens=new_tokens, streamer=clock, return_full_text=False)
    _, *moments = clock.moments
    return {
        "ttft_s": moments[0] - started,
        "seconds": moments[-1] - started,
        "new_tokens": len(moments),
        "prompt_tokens": len(pipe.tokenizer(prompt)["input_ids"]),
        "peak_memory_gib": read_peak_gib(pipe),
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }


def read_peak_gib(pipe) -> float | None:
    import torch

    if pipe.device.type == "mps":
        return torch.mps.driver_allocated_memory() / GIB
    if pipe.device.type != "cpu":
        return torch.accelerator.max_memory_reserved() / GIB
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 / GIB for line in lines if line.startswith("VmHWM:")), None)


if __name__ == "__main__":
    main()
