"""What a batch computes of a row: the answer to its prompt."""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from batch_input import Row
from fields import (
    drop_nulls,
    dump_json,
    make_conversation,
    make_message,
    parse_json,
    quote_arguments,
    read_messages,
    read_system,
    read_text,
    unpack_conversation,
)
from sampling import Sampling
from weights_identity import describe_model

Results = list[tuple[int, dict]]
ROUNDING_FLAGS = ("dtype", "quantization", "kv-cache-dtype")
"""Of vLLM and SGLang, those that change answers."""


@dataclass(frozen=True, slots=True)
class Task:
    place: int
    tokens: list[int]
    sampling: Sampling


class Work:
    """Loads the engine; computes rows in batches that depend on the rows alone."""

    FROM: ClassVar = ("messages", "prompt", "text")
    """Columns that may hold the text, if the flag does not say."""
    READS: ClassVar = ("system", "tools", "documents", "chat_template_kwargs")
    """Columns that are read besides the one of the prompt, where they are and turns are asked for."""

    COLUMNS: ClassVar = {
        "answer": "string",
        "finish_reason": "string",
        "prompt_tokens": "int64",
        "new_tokens": "int64",
        "error": "string",
    }
    """What an output row holds beside the columns of the input, and the types of these in Parquet."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, config: dict) -> None:
        default = config["serving"]["max_new_tokens"]
        parser.add_argument("--max_new_tokens", type=partial(parse_number, int, 1, sys.maxsize), default=default)
        parser.add_argument(
            "--temperature",
            type=partial(parse_number, float, 0, 2),
            default=0.0,
            help="0: always the likeliest token; 2 at most",
        )
        parser.add_argument(
            "--top_p",
            type=partial(parse_number, float, 1e-6, 1),
            help="of the probability to draw from (default: as the model's generation_config.json asks, as top_k is)",
        )
        parser.add_argument("--seed", type=int, default=0, help="of what is drawn, with the number of the row")
        parser.add_argument("--chat", action="store_true", help="a text is a question to the model, and not continued")

    @staticmethod
    def read_batch(config: dict) -> int:
        """Rows that are computed together."""
        return config["serving"]["max_concurrency"]

    @staticmethod
    def describe(config: dict, here: Path, args: argparse.Namespace) -> dict:
        """The settings that answers depend on."""
        names = ("max_new_tokens", "temperature", "top_p", "seed", "chat")
        serving = {name: config["serving"][name] for name in ("engine", "weights", "max_context", "max_concurrency")}
        flags = config["serving"].get("flags", {})
        serving |= {"flags": {name: flags[name] for name in ROUNDING_FLAGS if name in flags}} if flags else {}
        return {**{name: vars(args)[name] for name in names}, **serving, **describe_model(config, here)}

    def __init__(self, config: dict, here: Path, args: argparse.Namespace) -> None:
        from engine import Engine  # the libraries take seconds: what is wrong with a flag or a file is said before
        from generation_defaults import read_choices
        from prompts import Prompts

        self.args = args
        self.most = config["serving"]["max_context"]
        self.batch = config["serving"]["max_concurrency"]
        self.prompts = Prompts(config)
        self.engine = Engine(config, here)
        self.choices = read_choices(config, Engine.applied, draws=args.temperature > 0)
        if args.top_p is not None:
            self.choices["top_p"] = args.top_p
        self.continues = False  # a text, though the model has a chat template: said of the first
        if args.temperature > 0 and not Engine.draws_by_seed:
            print("the engine draws all its numbers from one seed of its own: --seed is not kept", file=sys.stderr)

    def compute(self, rows: list[Row]) -> Iterator[Results]:
        """Results with their places in ``rows``, as they are done: first those that cannot be computed."""
        tasks, failed = [], []
        for place, row in enumerate(rows):
            try:
                tasks.append(self.prepare(place, row))
            except ValueError as error:
                failed.append((place, self.fail(str(error))))
        yield failed
        tasks.sort(key=lambda task: -len(task.tokens))  # neighbours of like length; the first needs the most memory
        for start in range(0, len(tasks), self.batch):
            part = tasks[start : start + self.batch]
            try:
                answers = self.engine.generate([task.tokens for task in part], [task.sampling for task in part])
            except RuntimeError as error:  # its log, above, says more
                sys.exit(f"the engine failed ({error}): shards that are done are kept, run again to go on")
            yield [(task.place, self.describe_answer(task, new)) for task, new in zip(part, answers, strict=True)]

    def prepare(self, place: int, row: Row) -> Task:
        """ValueError says why the row cannot be answered."""
        if row.problem is not None:
            raise ValueError(row.problem)
        tokens = self.encode(row.values)
        room = self.most - len(tokens)
        if not tokens:
            raise ValueError("the prompt is empty")
        if room < 1:
            raise ValueError(f"the prompt has {len(tokens):,} tokens, and max_context is {self.most:,} with the answer")
        most = min(self.args.max_new_tokens, room)
        seed = draw_seed(self.args.seed, row.number)
        return Task(place, tokens, Sampling(most, self.args.temperature, seed=seed, **self.choices))

    def encode(self, values: dict) -> list[int]:
        column = self.args.column
        value = values.get(column)
        if column == "messages" and isinstance(value, str) and value.lstrip().startswith("["):  # as CSV holds a list
            values = values | {column: parse_json(value, f"column {column!r}")}
        if isinstance(values.get(column), list):
            turns = read_messages(values, column)
            while turns and turns[-1]["role"] == "assistant":  # what is expected is not shown to the model
                turns.pop()
            return self.encode_turns(values, turns)
        text = read_text(values, column)
        if self.args.chat:
            return self.encode_turns(values, [make_message("user", text)])
        if self.prompts.has_template and not self.continues:
            self.continues = True
            print("texts are continued as they are: --chat makes each a question by the chat template", file=sys.stderr)
        self.check_size(text)
        return self.prompts.encode_text(text)

    def check_size(self, *texts: str) -> None:
        if not self.prompts.may_fit(texts, self.most):
            size = sum(map(len, texts))
            raise ValueError(
                f"the prompt has {size:,} characters, and max_context is {self.most:,} tokens with the answer"
            )

    def encode_turns(self, values: dict, turns: list[dict]) -> list[int]:
        if not self.prompts.has_template:
            raise ValueError("the model has no chat template: a text is what it can go on with")
        columns = {name: name for name in ("tools", "chat_template_kwargs")}
        packed = make_conversation(read_system(values, "system") + turns, values, columns)
        messages, options = unpack_conversation(packed)
        options = {"documents": read_documents(values.get("documents")), **options}
        beside = {name: value for name, value in options.items() if value is not None}
        self.check_size(dump_json(beside, "what the chat template is given"), *(turn["content"] for turn in messages))
        try:
            return self.prompts.encode_messages(messages, options)
        except ValueError:
            if (quoted := quote_arguments(messages)) == messages:
                raise
        return self.prompts.encode_messages(quoted, options)

    def describe_answer(self, task: Task, new: list[int]) -> dict:
        ended = len(new) < task.sampling.max_new_tokens or new[-1] in self.prompts.stop_tokens
        return {
            "answer": self.prompts.decode(new),
            "finish_reason": "stop" if ended else "length",
            "prompt_tokens": len(task.tokens),
            "new_tokens": len(new),
            "error": None,
        }

    def fail(self, problem: str) -> dict:
        return dict.fromkeys(self.COLUMNS) | {"finish_reason": "error", "error": problem}

    def close(self) -> None:
        self.engine.close()


def read_documents(value: object) -> list[dict] | None:
    """What is to be answered from, as chat templates take it: objects, of title and text. A column of that name may
    hold anything else, which is none of theirs."""
    documents = parse_json(value, "column 'documents'") if isinstance(value, str) and value.startswith("[") else value
    if not isinstance(documents, list) or not documents or not all(isinstance(each, dict) for each in documents):
        return None
    return [{key: drop_nulls(item) for key, item in each.items() if item is not None} for each in documents]


def parse_number(kind: type, least: float, most: float, text: str) -> float:
    """What a flag says, where it can be drawn by."""
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no {'whole number' if kind is int else 'number'}") from None
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most}")
    return value


def draw_seed(seed: int, row: int) -> int:
    """Of a row, whatever was computed before it."""
    return int.from_bytes(hashlib.sha256(f"{seed} {row}".encode()).digest()[:4], "big") >> 1
