"""What gpu_day.py measures: one row each, in the order of its worth.

A run's settings are the names of generator.cost.execution.Execution, so that the cost model costs the same words.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SMALL, LARGE = "qwen2.5-1.5b", "llama-3.1-8b"
HUB_NAMES = {SMALL: "Qwen/Qwen2.5-1.5B", LARGE: "meta-llama/Llama-3.1-8B"}

CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""modes of torch.compile that capture each pass"""


def list_projects() -> Iterator[dict]:
    """Emitted projects, each planned for the machine by perfgen itself. ``rows`` x ``words`` is the data's size."""
    sft = ["--task", "sft", "--seq-len", "2048", "--global-batch", "16"]
    pretrain = ["--task", "causal-lm", "--from-scratch", "--seq-len", "4096", "--global-batch", "32"]
    yield project_row("pretrain-1.5b", SMALL, pretrain, rows=450, words=4096)
    yield project_row("sft-lora-8b", LARGE, [*sft, "--train", "lora"], rows=160, words=2100)
    yield project_row("sft-full-8b", LARGE, [*sft, "--train", "full"], rows=160, words=2100)
    yield project_row("infer-8b", LARGE, ["--mode", "infer"], rows=0, words=0)
    yield project_row("sft-full-1.5b", SMALL, [*sft, "--train", "full"], rows=160, words=2100)
    yield project_row("sft-qlora-8b", LARGE, [*sft, "--train", "qlora"], rows=160, words=2100)


def project_row(name: str, model: str, flags: list[str], rows: int, words: int) -> dict:
    return {
        "name": f"project/{name}",
        "kind": "project",
        "project": name,
        "model": model,
        "flags": flags,
        "steps": 8,
        "rows": rows,
        "words": words,
    }


AUTOCAST = {"weights_dtype": "float32", "autocast_dtype": "bfloat16", "tf32": True}
ADAPTERS = {"weights_dtype": "bfloat16", "autocast_dtype": "bfloat16", "tf32": True, "train": "lora"}
ADAPTERS |= {"lora_rank": 16, "lora_dropout": 0.05}
FULL = {**AUTOCAST, "micro_batch": 4, "seq_len": 2048}
LORA = {**ADAPTERS, "micro_batch": 2, "seq_len": 2048}


def list_training() -> Iterator[dict]:
    """Each differs from its baseline in what its name says."""
    yield train_row("1.5b", SMALL, FULL)
    yield train_row("1.5b/checkpointing", SMALL, {**FULL, "checkpoint_every": 1}, "1.5b")
    yield train_row("8b-lora", LARGE, LORA)
    yield train_row("8b-lora/checkpointing", LARGE, {**LORA, "checkpoint_every": 1}, "8b-lora")
    yield train_row("1.5b/chunked", SMALL, {**FULL, "loss_kernel": "chunked"}, "1.5b")
    yield train_row("1.5b/compile", SMALL, {**FULL, "compile": "default"}, "1.5b")
    for mode in CUDA_GRAPHS:
        yield train_row(f"1.5b/{mode}", SMALL, {**FULL, "compile": mode}, "1.5b/compile")
    yield train_row("1.5b/liger", SMALL, {**FULL, "loss_kernel": "fused", "fused_kernels": "liger"}, "1.5b")
    yield train_row("1.5b/eager", SMALL, {**FULL, "attention": "eager"}, "1.5b")
    for micro in (1, 2, 8):
        yield train_row(f"1.5b/micro-{micro}", SMALL, {**FULL, "micro_batch": micro}, "1.5b")
    yield train_row("1.5b/accumulation-4", SMALL, {**FULL, "accumulation": 4}, "1.5b")
    yield train_row("1.5b/length-8192", SMALL, {**FULL, "micro_batch": 1, "seq_len": 8192}, "1.5b")
    yield train_row("8b-lora/micro-1", LARGE, {**LORA, "micro_batch": 1}, "8b-lora")
    yield train_row("8b-lora/micro-4", LARGE, {**LORA, "micro_batch": 4}, "8b-lora")
    tf32 = {"weights_dtype": "float32", "tf32": True, "micro_batch": 2, "seq_len": 2048}
    yield train_row("1.5b/tf32", SMALL, tf32, "1.5b/micro-2")
    yield train_row("8b/tf32-checkpointing-chunked", LARGE, {**tf32, "checkpoint_every": 1, "loss_kernel": "chunked"})
    pure = {**FULL, "weights_dtype": "bfloat16", "autocast_dtype": None}
    yield train_row("1.5b/bf16-pure", SMALL, pure, "1.5b")
    yield train_row("8b/bf16-pure-checkpointing", LARGE, {**pure, "checkpoint_every": 1})
    yield train_row("1.5b/unfused", SMALL, {**FULL, "optimizer_fused": False}, "1.5b")
    ragged = {**FULL, "length_shares": RAGGED}
    yield train_row("1.5b/ragged", SMALL, ragged)
    yield train_row("1.5b/varlen", SMALL, {**ragged, "padding_left": 0.0, "rows": "varlen"}, "1.5b/ragged")
    yield train_row(
        "1.5b/stock", SMALL, {"weights_dtype": "float32", "micro_batch": 8, "seq_len": 2048}, "1.5b/micro-8"
    )


RAGGED = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.55, 0.75, 1.0)
"""lengths of conversations, as shares of the longest: most are short"""


def list_sweep() -> Iterator[dict]:
    """Memory and speed over what decides them: 64 settings, those of a row in one process."""
    for length in (1024, 4096):
        for every in (0, 1):
            settings = {**FULL, "seq_len": length, "checkpoint_every": every}
            yield sweep_row(f"1.5b/{length}/every-{every}", SMALL, settings, micro_batch=(1, 2, 4, 8, 16))
            settings = {**LORA, "seq_len": length, "checkpoint_every": every}
            yield sweep_row(f"8b-lora/{length}/every-{every}", LARGE, settings, micro_batch=(1, 2, 4, 8))
    pure = {**FULL, "weights_dtype": "bfloat16", "autocast_dtype": None}
    for kernel in ({"loss_kernel": "chunked"}, {"loss_kernel": "fused", "fused_kernels": "liger"}, pure):
        name = kernel.get("loss_kernel", "pure")
        yield sweep_row(f"1.5b/{name}", SMALL, {**FULL, **kernel}, micro_batch=(1, 2, 8, 16))
    yield sweep_row("1.5b/compile", SMALL, {**FULL, "compile": "default"}, micro_batch=(1, 8))
    yield sweep_row("1.5b/accumulation", SMALL, FULL, accumulation=(2, 8, 16))
    yield sweep_row(
        "1.5b/eager", SMALL, {**FULL, "attention": "eager", "micro_batch": 1}, seq_len=(512, 1024, 2048, 4096)
    )
    yield sweep_row("1.5b/length", SMALL, {**FULL, "micro_batch": 1}, seq_len=(512, 2048, 8192, 16384))
    yield sweep_row("1.5b/every", SMALL, FULL, checkpoint_every=(2, 3, 4))


def sweep_row(name: str, model: str, run: dict, **axis: tuple) -> dict:
    """One setting over its values, the others fixed; the smallest first, so that what runs out of memory comes last."""
    ((field, values),) = axis.items()
    return {
        "name": f"sweep/{name}",
        "kind": "train",
        "model": model,
        "runs": [{**run, field: value} for value in values],
    }


def train_row(name: str, model: str, run: dict, baseline: str | None = None) -> dict:
    row = {"name": f"train/{name}", "kind": "train", "model": model, "run": run}
    return {**row, "baseline": f"train/{baseline}"} if baseline else row


def list_generation() -> Iterator[dict]:
    for label, model in (("8b", LARGE), ("1.5b", SMALL)):
        for batch in (1, 8):
            run = {"weights_dtype": "bfloat16", "micro_batch": batch, "seq_len": 2048, "new_tokens": 128}
            name = f"generate/{label}/batch-{batch}"
            plain = {"name": name, "kind": "generate", "model": model, "run": {**run, "cache": "dynamic"}}
            static = {**run, "cache": "static", "compile": "default"}
            yield plain
            yield {**plain, "name": f"{name}/static-compiled", "run": static, "baseline": name}


SIZES = {SMALL: (1536, 1536, 256, 8960, 151936), LARGE: (4096, 4096, 1024, 14336, 128256)}
"""hidden, query, key, feed-forward and vocabulary widths"""


def list_terms() -> Iterator[dict]:
    """Runs of one family share a process, because starting one takes longer than they do."""
    yield {"name": "terms/gemm", "kind": "gemm", "runs": list(products())}
    yield {"name": "terms/bandwidth", "kind": "bandwidth", "runs": list(bandwidths())}
    yield {"name": "terms/attention", "kind": "attention", "runs": list(attentions())}
    yield {"name": "terms/attention-kernels", "kind": "attention", "runs": list(attention_kernels()), "needs_gpu": True}
    yield {"name": "terms/operator", "kind": "operator", "runs": list(operators())}
    launches = [{"layers": 16, "direction": d} for d in ("forward", "both")]
    yield {"name": "terms/launch", "kind": "launch", "runs": launches}
    updates = [{"kernel": k, "tensors": 64, "elements": 1 << 24} for k in ("fused", "foreach", "clip")]
    yield {"name": "terms/update", "kind": "update", "runs": updates}
    copies = [
        {"direction": d, "pinned": pinned, "bytes": 1 << 30}
        for d in ("to device", "to host")
        for pinned in (True, False)
    ]
    yield {"name": "terms/transfer", "kind": "transfer", "runs": copies, "needs_gpu": True}
    yield {"name": "terms/context", "kind": "context", "runs": [{}], "needs_gpu": True}


def products() -> Iterator[dict]:
    for size in (1024, 2048, 4096, 8192, 16384):
        yield {"m": size, "n": size, "k": size, "dtype": "bfloat16"}
    for dtype in ("float16", "tf32", "float32", "float8"):
        for size in (4096, 8192):
            yield {"m": size, "n": size, "k": size, "dtype": dtype}
    for hidden, query, key, feed, vocabulary in SIZES.values():
        for tokens in (1, 2048, 8192, 32768):
            for inputs, outputs in ((hidden, query), (hidden, key), (hidden, feed), (feed, hidden)):
                yield {"m": tokens, "n": outputs, "k": inputs, "dtype": "bfloat16"}
        yield {"m": 8192, "n": vocabulary, "k": hidden, "dtype": "bfloat16"}


def bandwidths() -> Iterator[dict]:
    for operation in ("copy", "add", "cast"):
        for elements in (1 << 22, 1 << 26, 1 << 30):
            yield {"operation": operation, "elements": elements}


def attentions() -> Iterator[dict]:
    for heads in (32, 12):
        for length in (512, 1024, 2048, 4096, 8192, 16384, 32768):
            for direction in ("forward", "backward"):
                batch = max(1, 16384 // length)
                yield {"batch": batch, "heads": heads, "length": length, "head_dim": 128, "direction": direction}


def attention_kernels() -> Iterator[dict]:
    """By name: what PyTorch takes by itself is another one on some boards."""
    for kernel in ("flash", "varlen"):
        for length in (1024, 4096, 16384):
            for direction in ("forward", "backward"):
                sizes = {"batch": 16384 // length, "heads": 32, "length": length, "head_dim": 128}
                yield {**sizes, "direction": direction, "kernel": kernel}


def operators() -> Iterator[dict]:
    hidden, query, _, feed, vocabulary = SIZES[LARGE]
    widths = {"norm": hidden, "rotary": query, "activation": feed, "residual": hidden, "loss": vocabulary}
    for operator, width in widths.items():
        for direction in ("both",) if operator == "loss" else ("forward", "backward"):
            yield {"operator": operator, "tokens": 8192, "width": width, "direction": direction}


def list_measurements() -> list[dict]:
    """In the order in which they are run: what is worth most first, and long terms before rare settings."""
    projects, training, generation = list(list_projects()), list(list_training()), list(list_generation())
    first = [*projects[:4], *training[:4], *list_terms(), *generation[:4], *training[4:]]
    return [*first, *list_sweep(), *generation[4:], *projects[4:]]


def spread_kinds(rows: list[dict]) -> list[dict]:
    """The first of every kind, then the second, …: what a few of them should be."""
    seen: Counter[str] = Counter()
    turns = []
    for place, row in enumerate(rows):
        turns.append((seen[row["kind"]], place))
        seen[row["kind"]] += 1
    return [rows[place] for _, place in sorted(turns)]


SMALLER = {"micro_batch": 2, "seq_len": 64, "new_tokens": 8, "m": 64, "n": 64, "k": 64, "elements": 4096, "batch": 1}
SMALLER |= {
    "accumulation": 2,
    "heads": 2,
    "length": 64,
    "head_dim": 16,
    "tokens": 64,
    "width": 256,
    "layers": 2,
    "tensors": 4,
}


def shrink(row: dict) -> dict:
    """The same row with toy sizes."""
    small = dict(row)
    if "run" in row:
        small["run"] = {k: min(v, SMALLER.get(k, v)) if isinstance(v, int) else v for k, v in row["run"].items()}
    if "runs" in row:
        runs = [{k: SMALLER.get(k, v) for k, v in run.items()} for run in row["runs"]]
        small["runs"] = [run for number, run in enumerate(runs) if run not in runs[:number]]
    if row["kind"] == "project":
        flags = row["flags"]
        small["flags"] = [
            "64" if before == "--seq-len" else flag for before, flag in zip(["", *flags], flags, strict=False)
        ]
        small |= {"steps": 2, "rows": min(row["rows"], 70), "words": min(row["words"], 80)}
    return small


TINY = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "max_window_layers": 2,
}
"""over any model's config: the same code in a second, for a machine without a GPU"""


def config_of(model: str, tiny: bool) -> dict:
    """The config.json of ``examples/models``."""
    config = json.loads((ROOT / "examples" / "models" / f"{model}.json").read_text(encoding="utf-8"))
    config.pop("layer_types", None)
    return {**config, **TINY} if tiny else config
