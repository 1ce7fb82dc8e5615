"""How many gradients as large as the embedding's are alive when a backward pass ends: resident memory of real steps on a CPU.

python benchmarks/embedding_gradient.py        writes benchmarks/results/embedding_gradient.json

A model that is hardly more than its vocabulary takes a step of its own process for each loss, dtype and way to tie the output layer;
the kernel's high-water mark is reset where the gradient of the last norm has come, so that the product with the output layer is not in it.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VOCABULARY, HIDDEN = 200_000, 256
TOKENS = {"plain": 8, "chunked": 1_100, "tiled": 8}  # of more than one chunk, where there are chunks
LOSSES, DTYPES, TIED = ("plain", "chunked", "tiled"), ("fp32", "bf16", "bf16-pure"), (True, False)


def main() -> None:
    if sys.argv[1:]:
        return print(json.dumps(measure(*sys.argv[1:3], tied=sys.argv[3] == "True")))
    rows = []
    for loss, dtype, tied in itertools.product(LOSSES, DTYPES, TIED):
        command = [sys.executable, __file__, loss, dtype, str(tied)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append({"loss": loss, "dtype": dtype, "tied": tied, **json.loads(printed.splitlines()[-1])})
        print(rows[-1], flush=True)
    result = {
        "schema": 1,
        "what": "bytes alive at the end of a backward pass over those of one gradient of the embedding; first micro-batch, and one after it",
        "device": "CPU, one thread, resident memory",
        "model": f"Llama of one layer, {VOCABULARY} words of {HIDDEN}",
        "versions": list_versions(),
        "command": "python benchmarks/embedding_gradient.py",
        "rows": rows,
    }
    path = HERE / "results" / "embedding_gradient.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def list_versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "trl")}


def measure(loss: str, dtype: str, *, tied: bool) -> dict[str, float]:
    """Peaks from the last norm's gradient to the end, the gradients that stay included."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        tie_word_embeddings=tied,
    )
    stored = torch.bfloat16 if dtype == "bf16-pure" else torch.float32
    model = AutoModelForCausalLM.from_config(config, dtype=stored).train()
    inputs = prepare_loss(model, loss)
    tokens = torch.zeros(1, TOKENS[loss], dtype=torch.long)
    embedding, before, peaks = VOCABULARY * HIDDEN * stored.itemsize, read_kib("VmRSS"), []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16", cache_enabled=False):
            result = model(input_ids=tokens, labels=tokens, use_cache=False, **inputs).loss
        hook = model.model.norm.weight.register_post_accumulate_grad_hook(lambda _: reset_peak())
        result.backward()
        hook.remove()
        del result
        peaks.append(round((read_kib("VmHWM") - before) * 1024 / embedding, 2))
    return {"first": peaks[0], "after": peaks[1]}


def prepare_loss(model, loss: str) -> dict[str, object]:
    """Makes ``model`` compute it as an emitted project does; what its forward takes besides."""
    if loss == "chunked":
        sys.path.insert(0, str(HERE.parent / "templates" / "fragments"))
        from chunked_loss import chunk_loss

        chunk_loss(model)
        return {"attention_mask": None}
    if loss == "tiled":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model, outputs=("log_probs", "entropy", "is_top1"))
        return {"fused_lm_head": True}
    return {}


def read_kib(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    main()
