"""What a batch computes of a row: the embedding of its text, pooled as the model's own files say."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from encoder import Encoder
from pooling import read_longest, read_pooling

Results = list[tuple[int, dict]]


class Work:
    """An encoder; computes rows in batches that depend on the rows alone."""

    COLUMNS: ClassVar = {"embedding": "list", "prompt_tokens": "int64", "error": "string"}
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
        self.encoder = Encoder(config, args, read_longest(config))
        self.pool = read_pooling(config)

    def compute(self, rows: list) -> Iterator[Results]:
        """Results with their places in ``rows``, as they are done."""
        yield from self.encoder.compute(rows, self.describe_rows, self.COLUMNS)

    def describe_rows(self, output, inputs, read) -> list[dict]:
        vectors = self.pool(output.last_hidden_state, inputs["attention_mask"])
        return [{"embedding": vector} for vector in vectors.float().tolist()]

    def close(self) -> None:
        pass


def make_sample() -> str:
    """A text, to see that it works."""
    return "What a day!"
