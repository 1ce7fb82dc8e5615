"""An encoder of Transformers over the rows of a batch: of like length together, each as often as it stands there."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from batch_input import Row
from fields import read_text
from model import load_model
from sources import find_source
from weights_identity import describe_model

Results = list[tuple[int, dict]]


class Encoder:
    """The model of config.yaml with its tokenizer."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--truncate", action="store_true", help="of texts that are too long take the beginning")

    @staticmethod
    def describe(config: dict, here: Path, args: argparse.Namespace) -> dict:
        """The settings that results depend on."""
        settings = {name: config["rows"][name] for name in ("weights", "batch", "positions")}
        return {"truncate": args.truncate, **settings, **describe_model(config, here)}

    def __init__(self, config: dict, args: argparse.Namespace, longest: tuple[int, str] | None = None) -> None:
        """``longest``: tokens of a text that the model is meant for, and who says so."""
        import torch
        from transformers import AutoTokenizer

        self.torch, self.args = torch, args
        limits = [(config["rows"]["positions"], "rows.positions of config.yaml"), *([longest] if longest else [])]
        (self.most, self.limit), self.batch = min(limits), config["rows"]["batch"]
        named = "tokenizer" if config.get("tokenizer") else "model"
        revision = config.get("tokenizer_revision" if named == "tokenizer" else "revision")
        self.tokenizer = AutoTokenizer.from_pretrained(
            find_source(config, named), revision=revision, trust_remote_code=False
        )
        self.model = load_model(config)
        if self.tokenizer.pad_token is None:  # a decoder's: what fills a row is hidden by the mask
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model.config.pad_token_id = self.tokenizer.pad_token_id

    def compute(self, rows: list[Row], describe: Callable, columns: dict) -> Iterator[Results]:
        """What ``describe`` makes of the model's output, its inputs and the texts, with places in ``rows``.

        First what cannot be computed.
        """
        tasks, failed = [], []
        for place, row in enumerate(rows):
            try:
                tasks.append((place, *self.prepare(row)))
            except ValueError as error:
                failed.append((place, dict.fromkeys(columns) | {"error": str(error)}))
        yield failed
        tasks.sort(key=lambda task: -len(task[2]["input_ids"]))
        for start in range(0, len(tasks), self.batch):
            part = tasks[start : start + self.batch]
            tokens = [encoding["input_ids"] for _, _, encoding in part]
            inputs = self.tokenizer.pad({"input_ids": tokens}, return_tensors="pt")
            inputs = inputs.to(self.model.device)
            with self.torch.inference_mode():
                made = describe(self.model(**inputs), inputs, [(text, encoding) for _, text, encoding in part])
            yield [
                (place, row | {"prompt_tokens": len(ids), "error": None})
                for (place, _, _), ids, row in zip(part, tokens, made, strict=True)
            ]

    def prepare(self, row: Row) -> tuple[str, Mapping]:
        """Its text and tokens. ValueError says why there are none, or too many."""
        if row.problem is not None:
            raise ValueError(row.problem)
        text = read_text(row.values, self.args.column)
        encoding = self.tokenizer(text, truncation=self.args.truncate, max_length=self.most)
        count = len(encoding["input_ids"])
        if count > self.most:
            raise ValueError(
                f"the text has {count:,} tokens, and {self.limit} is {self.most:,}: --truncate takes its beginning"
            )
        return text, encoding
