"""What a batch computes of a row: its label, and how likely each label is."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from class_scores import COLUMNS, describe_scores
from encoder import Encoder

Results = list[tuple[int, dict]]


class Work:
    """A classifier; computes rows in batches that depend on the rows alone."""

    COLUMNS: ClassVar = {**COLUMNS, "prompt_tokens": "int64", "error": "string"}
    """What an output row holds beside the columns of the input, and the types of these in Parquet."""
    FROM: ClassVar = ("messages", "prompt", "text")
    """Columns that may hold the text, if the flag does not say."""
    READS: ClassVar = ()
    """Columns that are read besides the one of the text."""
    PROMPT: ClassVar = "the text"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, config: dict) -> None:
        Encoder.add_arguments(parser)

    @staticmethod
    def read_batch(config: dict) -> int:
        """Rows that are computed together."""
        return config["rows"]["batch"]

    @staticmethod
    def describe(config: dict, here: Path, args: argparse.Namespace) -> dict:
        return Encoder.describe(config, here, args)

    def __init__(self, config: dict, here: Path, args: argparse.Namespace) -> None:
        self.encoder = Encoder(config, args)

    def compute(self, rows: list) -> Iterator[Results]:
        """Results with their places in ``rows``, as they are done."""
        yield from self.encoder.compute(rows, self.describe_rows, self.COLUMNS)

    def describe_rows(self, output, inputs, read) -> list[dict]:
        return describe_scores(self.encoder.model.config, output.logits)

    def close(self) -> None:
        pass


def make_sample() -> str:
    """A text, to see that it works."""
    return "What a day!"
