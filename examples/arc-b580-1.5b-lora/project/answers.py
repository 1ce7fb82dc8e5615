"""Answers to a few prompts that are held out, before training and after it: what a person can judge."""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from transformers import TrainerCallback

from answer_length import count_positions
from fields import quote_arguments, unpack_conversation
from run_report import write_json
from stop_tokens import list_stop_tokens
from terminal import escape_control

PROMPTS = 3
NEW_TOKENS = 96
SECONDS = 10.0
"""Of each answer: a large model on a CPU, or one whose adapters are made anew for each token, gives its beginning."""
SHOWN = 70
"""Characters of an answer in the terminal; all of it is in run.json."""


class SampleAnswers(TrainerCallback):
    """Asks at the start and at the end of training; what was answered first is kept for a resumed run."""

    def __init__(self, rows, tokenizer, seq_len: int, folder: Path):
        self.tokenizer = tokenizer
        self.path = folder / "answers.json"
        triples = list(islice(find_prompts(rows or [], tokenizer, seq_len), PROMPTS))
        self.asked = [(prompt, expected) for prompt, _, expected in triples]
        self.questions = {prompt: question for prompt, question, _ in triples}
        self.rows: list[dict] = []

    def on_train_begin(self, args, state, control, model, **kwargs):
        if not state.is_world_process_zero or not self.asked:
            return
        before = self.read_earlier() if state.global_step else self.answer(model)
        self.rows = [
            {"prompt": prompt, "expected": expected, "before": text}
            for (prompt, expected), text in zip(self.asked, before, strict=True)
        ]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.rows)

    def read_earlier(self) -> list[str | None]:
        """What was answered before the first step; ``None`` to what was not asked then."""
        rows = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else []
        answers = {row["prompt"]: row["before"] for row in rows}
        return [answers.get(prompt) for prompt, _ in self.asked]

    def on_train_end(self, args, state, control, model, **kwargs):
        if not state.is_world_process_zero or not self.rows:
            return
        for row, text in zip(self.rows, self.answer(model), strict=True):
            row["after"] = text
            print(f"  prompt  {shorten(self.questions[row['prompt']], from_end=True)}")
            for name in ("expected", "before", "after"):
                print(f"{name:>8}  {shorten(row[name])}")
        write_json(self.path, self.rows)

    def describe(self) -> dict:
        """For run.json."""
        return {"answers": self.rows}

    def answer(self, model) -> list[str]:
        """The likeliest answer to each prompt, and not a drawn one: both times the same way."""
        training = model.training
        model.eval()
        texts = []
        with torch.no_grad():
            for prompt, _ in self.asked:
                inputs = self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt").to(model.device)
                places = count_positions(model.config) or 1 << 30
                output = model.generate(
                    input_ids=inputs["input_ids"],
                    attention_mask=inputs["attention_mask"],
                    max_new_tokens=min(NEW_TOKENS, places - inputs["input_ids"].shape[1]),
                    max_time=SECONDS,
                    do_sample=False,
                    eos_token_id=list_stop_tokens(model, self.tokenizer),
                    pad_token_id=self.tokenizer.pad_token_id or self.tokenizer.eos_token_id,
                )
                new = output[0, inputs["input_ids"].shape[1] :]
                texts.append(self.tokenizer.decode(new, skip_special_tokens=True).strip())
        model.train(training)
        return texts


def find_prompts(rows, tokenizer, seq_len: int) -> Iterator[tuple[str, str, str]]:
    """Those with room for an answer: a model is trained on no longer ones, and may have no place or memory for them."""
    for row in rows:
        parts = split_row(row, tokenizer)
        if parts and len(tokenizer(parts[0], add_special_tokens=False, verbose=False)["input_ids"]) < seq_len:
            yield parts


def split_row(row: dict, tokenizer) -> tuple[str, str, str] | None:
    """A prompt as the model sees it, the last turn in it, and the answer in the data; ``None`` where there are none."""
    if "messages" in row:
        turns, options = unpack_conversation(row)
        last = max((n for n, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
        if not last:
            return None
        how = {**options, "add_generation_prompt": True, "tokenize": False}
        for asked in (turns[:last], quote_arguments(turns[:last])):
            try:
                prompt = tokenizer.apply_chat_template(asked, **how)
            except Exception:  # a template is a program of others: this one takes no conversation without its answer
                continue
            return prompt, turns[last - 1]["content"], turns[last]["content"]
    if isinstance(row.get("prompt"), str):
        return row["prompt"], row["prompt"], row["completion"]
    return None


def shorten(text: str | None, *, from_end: bool = False) -> str:
    line = escape_control(" ".join((text or "").split()))
    if from_end and len(line) > SHOWN:  # a question stands at the end of what is asked
        return f"…{line[1 - SHOWN :]}"
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
