"""Small models of every type that Transformers has for a task, each in a project of its own: trained for two steps, gone on with, asked.

python benchmarks/zoo.py [--tasks sft causal-lm text-classification] [--train lora full] [--types NAME …] [--out FILE.json]

A type's model has the sizes of tests/model/small.py. What runs are train.py and infer.py as they are written, in processes that have
the libraries already: a few seconds a project. What the plan refuses is listed beside what fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "model")]

from benchmarks.forks import become_script, run_in_fork  # noqa: E402
from generator.errors import PerfgenError  # noqa: E402
from generator.model.classifiers import READS_END  # noqa: E402

SECONDS = 400
"""of one training or answer"""
IMPORTED = ("peft", "trl", "transformers.trainer", "deepspeed", "matplotlib.figure", "transformers.generation")
"""before the first fork: what the scripts take seconds for"""
VOCABULARY = 300
CHANGES = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "n_ctx": 128,
}
SHARED_HEADS = {"num_key_value_heads": 6}
GROUPS = {"n_group": 1, "topk_group": 1}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
OF_LAYERS = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 16}
DECODERS = ("bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart")
"""whose caches have as many layers as the encoder that they do not have"""
OWN: dict[str, dict] = {
    "axk1": SHARED_HEADS | {"n_group": 2, "topk_group": 2},
    "axk2": SHARED_HEADS,
    "bailing_hybrid": SHARED_HEADS | GROUPS | {"layer_group_size": 2},
    "beam": GROUPS,
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE}},
    "codegen": {"n_head": 4, "rotary_dim": 4},
    "deepseek_v32": SHARED_HEADS | GROUPS,
    "dots3_note_text": SHARED_HEADS,
    "esmc": SHARED_HEADS,
    "flaubert": {"emb_dim": 48},
    "gemma3n_text": OF_LAYERS
    | {"num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"]},
    "gemma4_text": OF_LAYERS,
    "gemma4_unified_text": OF_LAYERS,
    "glm4_moe_lite": SHARED_HEADS,
    "glm_moe_dsa": SHARED_HEADS,
    "gptj": {"rotary_dim": 4},
    "helium": {"head_dim": 8},
    "kimi_linear": SHARED_HEADS,
    "mimo_v2_flash": SHARED_HEADS,
    "minicpm3": SHARED_HEADS,
    "mistral4": SHARED_HEADS,
    "mobilebert": {"true_hidden_size": 48, "embedding_size": 48, "intra_bottleneck_size": 48},
    "squeezebert": {"embedding_size": 48},
    **{name: {"decoder_start_token_id": 1} for name in ("mt5", "t5", "umt5")},
    "xlm": {"emb_dim": 48},
    "xmod": {"default_language": "en_XX"},
    "youtu": SHARED_HEADS,
    "zaya": {"num_experts_per_tok": 1},
} | {name: {"encoder_layers": 5, "decoder_layers": 5} for name in DECODERS}
"""what a type needs beside the small sizes of tests/model"""
DRAWN = re.compile("drop|jitter")
TEXT = "the quick brown fox jumps over the lazy dog"
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{{ eos_token }}{% endfor %}"
DATA = {
    "causal-lm": ("d.txt", f"{TEXT}\n" * 200),
    "sft": (
        "d.jsonl",
        "\n".join(
            json.dumps({"messages": [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "dog " * n}]})
            for n in range(1, 33)
        ),
    ),
    "text-classification": (
        "d.jsonl",
        "\n".join(json.dumps({"text": TEXT * (1 + n % 3), "label": "ab"[n % 2]}) for n in range(64)),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(DATA), choices=DATA)
    parser.add_argument("--train", nargs="+", default=["lora", "full"], choices=["lora", "full"])
    parser.add_argument("--types", nargs="+")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=RUNS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    for module in IMPORTED:
        importlib.import_module(module)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(Path(folder) / "tokenizer")
        for task in asked.tasks:
            for model_type in asked.types or list_types(task):
                for train in asked.train:
                    place = Path(folder) / f"{task}-{model_type}-{train}"
                    rows.append(
                        {
                            "type": model_type,
                            "task": task,
                            "train": train,
                            **try_type(place, task, model_type, train, asked.runs),
                        }
                    )
                    shutil.rmtree(place, ignore_errors=True)  # some types are large with the smallest of configs
                    print(json.dumps(rows[-1]), flush=True)
                    if asked.out:
                        asked.out.write_text(json.dumps({"schema": 1, "rows": rows}, indent=1) + "\n")
    print(dict(Counter(row["outcome"] for row in rows)))
    sys.exit(any(row["outcome"] == "failed" for row in rows))


def list_types(task: str) -> list[str]:
    from transformers.models.auto import modeling_auto

    table = "SEQUENCE_CLASSIFICATION" if task == "text-classification" else "CAUSAL_LM"
    return sorted(getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES"))


def make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<e>", "<p>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    bpe.train_from_iterator([TEXT], trainer)
    words = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<e>", eos_token="<e>", pad_token="<p>")
    words.chat_template = TEMPLATE
    words.save_pretrained(folder)


def try_type(place: Path, task: str, model_type: str, train: str, runs: list[str]) -> dict:
    """``outcome``: trained, refused by the plan, failed, or no model (which is Transformers' or the small config's)."""
    model = place / "model"
    if why := in_a_process(lambda: save_model(model, task, model_type), place.with_suffix(".made")):
        return {"outcome": "no model", "why": why}
    try:
        project = make_project(place, task, train)
    except PerfgenError as error:
        return {"outcome": "refused", "why": str(error).splitlines()[0][:300]}
    for what in runs:
        work = partial(RUNS[what], project, task, train)
        if why := in_a_process(work, place.with_suffix(f".{what}.log")):
            return {"outcome": "failed", "at": what, "why": why}
    return {"outcome": "trained"}


def save_model(folder: Path, task: str, model_type: str) -> None:
    import torch
    from small import small
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from variants import configs

    from generator.inputs.meta_device import make_config
    from generator.model.families import find_family

    written = (configs(model_type)[0] if find_family(model_type) else small(model_type)) | OWN.get(model_type, {})
    config = make_config(stop_drawing(fit_to_tokenizer(written)))
    kind = AutoModelForSequenceClassification if task == "text-classification" else AutoModelForCausalLM
    torch.manual_seed(0)
    shutil.copytree(folder.parent.parent / "tokenizer", folder)
    if task == "text-classification" and model_type in READS_END:
        end_texts(folder)
    model = kind.from_config(config).train()
    tokens = torch.randint(4, 90, (2, 24))
    tokens[:, -1] = 0  # the end token, without which BART finds no place to classify
    labels = torch.tensor([0, 1]) if task == "text-classification" else tokens
    model(input_ids=tokens, labels=labels).loss.backward()  # sizes that do not go together are no project's fault
    model.save_pretrained(folder)


def end_texts(folder: Path) -> None:
    """The tokenizer in the folder puts the end token after a text, as BART's and T5's do."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder)
    words.backend_tokenizer.post_processor = TemplateProcessing(single="$A <e>", special_tokens=[("<e>", 0)])
    words.save_pretrained(folder)


def fit_to_tokenizer(config: dict) -> dict:
    """Its embeddings and special tokens, also those of the text models inside of another."""
    fitted = CHANGES | dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    inside = {
        part: fit_to_tokenizer(config[part]) for part in ("text_config", "encoder", "decoder") if config.get(part)
    }
    return config | {key: value for key, value in fitted.items() if key in config} | inside


def stop_drawing(config: dict) -> dict:
    """Without dropout and jitter, which two trainings draw apart."""
    inside = {key: stop_drawing(value) for key, value in config.items() if isinstance(value, dict)}
    drawn = [key for key, value in config.items() if DRAWN.search(key) and isinstance(value, float)]
    return config | inside | dict.fromkeys(drawn, 0.0)


def make_project(place: Path, task: str, train: str) -> Path:
    from projects import render_small_project

    name, data = DATA[task]
    pins = (("compile", "off"), ("precision", "fp32"), ("optimizer", "adamw"))  # states in 8 bits go another way
    how = {"seq_len": 32, "global_batch": 4, "max_steps": 2, "pins": pins, "eval": "none"}
    return render_small_project(place, data=data, name=name, model=str(place / "model"), task=task, train=train, **how)


def compare(project: Path, task: str, train: str) -> None:
    """Loss, gradient norm and rate of each step with those of the library's own Trainer, of the same rows."""
    from stock_losses import Draw
    from stock_losses import compare as compare_with_stock

    flags = {"seed": 0, "max_grad_norm": 1.0, "weight_decay": 0.1, "lr_scheduler_type": "constant", "warmup_steps": 0}
    of = Draw(task=task, train=train, parts=1, batch=4, steps=2, flags=flags)
    differences = compare_with_stock(project, of)
    shutil.rmtree(project / "runs")  # a finished one, beside which the next training would not begin
    if differences:
        raise AssertionError("; ".join(differences))


def run_training(project: Path, *flags: str, steps: int) -> None:
    become_script(project, ["train.py", *flags])
    if len(json.loads((project / "runs" / "run.json").read_text())["losses"]) != steps:
        raise AssertionError(f"not {steps} losses")


def train_project(project: Path, *_: str) -> None:
    run_training(project, steps=2)


def resume(project: Path, *_: str) -> None:
    """A third step, from the checkpoint of the second."""
    run_training(project, "--max_steps", "3", steps=3)


def answer(project: Path, *_: str) -> None:
    words = ["--prompt", TEXT]
    if "--max_new_tokens" in (project / "infer.py").read_text(encoding="utf-8"):
        words += ["--max_new_tokens", "4"]
    become_script(project, ["infer.py", *words])
    if not json.loads((project / "infer.json").read_text()):
        raise AssertionError("an empty report")


RUNS = {"comparing": compare, "training": train_project, "resuming": resume, "answering": answer}


def in_a_process(work, log: Path) -> str | None:
    """The last line of what was raised, or ``None``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    code = run_in_fork(work, log, SECONDS)
    if not code:
        return None
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-1:] or [f"ended with {code}"])[-400:]


if __name__ == "__main__":
    main()
