"""Small models of every type that Transformers has for a task, each in a project of its own that is trained for two steps.

python benchmarks/zoo.py [--tasks sft causal-lm text-classification] [--train lora full] [--types NAME …] [--out FILE.json]

A type's model has the sizes of tests/model/small.py. The training is train.py as it is written, in a process that has the libraries
already: a few seconds a project. What the plan refuses is listed beside what fails.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "model")]

from generator.errors import PerfgenError  # noqa: E402

SECONDS = 120
"""of one training"""
VOCABULARY = 300
CHANGES = {"vocab_size": VOCABULARY, "max_position_embeddings": 128, "n_positions": 128, "n_ctx": 128}
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
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    import peft  # noqa: F401  # before the first fork
    import trl  # noqa: F401

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
                            **try_type(place, task, model_type, train),
                        }
                    )
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


def try_type(place: Path, task: str, model_type: str, train: str) -> dict:
    """``outcome``: trained, refused by the plan, failed, or no model (which is Transformers' or the small config's)."""
    model = place / "model"
    if why := in_a_process(lambda: save_model(model, task, model_type), place.with_suffix(".made")):
        return {"outcome": "no model", "why": why}
    try:
        project = make_project(place, task, train)
    except PerfgenError as error:
        return {"outcome": "refused", "why": str(error).splitlines()[0][:300]}
    why = in_a_process(lambda: run_training(project), place.with_suffix(".log"))
    return {"outcome": "failed", "why": why} if why else {"outcome": "trained"}


def save_model(folder: Path, task: str, model_type: str) -> None:
    import shutil

    import torch
    from small import small
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from variants import configs

    from generator.inputs.meta_device import make_config
    from generator.model.families import find_family

    written = configs(model_type)[0] if find_family(model_type) else small(model_type)
    known = {key: value for key, value in CHANGES.items() if key in written}
    config = make_config(written | known | {key: 0 for key in ("bos_token_id", "eos_token_id") if key in written})
    kind = AutoModelForSequenceClassification if task == "text-classification" else AutoModelForCausalLM
    torch.manual_seed(0)
    shutil.copytree(folder.parent.parent / "tokenizer", folder)
    model = kind.from_config(config).train()
    tokens = torch.randint(4, 90, (2, 24))
    labels = torch.tensor([0, 1]) if task == "text-classification" else tokens
    model(input_ids=tokens, labels=labels).loss.backward()  # sizes that do not go together are no project's fault
    model.save_pretrained(folder)


def make_project(place: Path, task: str, train: str) -> Path:
    from projects import render_small_project

    name, data = DATA[task]
    pins = (("compile", "off"), ("precision", "fp32"))
    how = {"seq_len": 32, "global_batch": 4, "max_steps": 2, "pins": pins, "eval": "none"}
    return render_small_project(place, data=data, name=name, model=str(place / "model"), task=task, train=train, **how)


def run_training(project: Path) -> None:
    os.chdir(project)
    sys.path.insert(0, str(project))
    sys.argv = ["train.py"]
    runpy.run_path("train.py", run_name="__main__")
    if len(json.loads((project / "runs" / "run.json").read_text())["losses"]) != 2:
        raise AssertionError("not two losses")


def in_a_process(work, log: Path) -> str | None:
    """The last line of what was raised, or ``None``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.fork()
    if not pid:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        import signal

        signal.alarm(SECONDS)
        code = 1
        try:
            work()
            code = 0
        except SystemExit as end:
            code = 1 if isinstance(end.code, str) else end.code or 0
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    if not os.waitstatus_to_exitcode(status):
        return None
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-1:] or [f"ended with {status}"])[-400:]


if __name__ == "__main__":
    main()
