"""What a batch computes of a row: the entities in its text, with their places and how likely each is."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from encoder import Encoder

Results = list[tuple[int, dict]]


class Work:
    """A classifier of tokens; computes rows in batches that depend on the rows alone."""

    COLUMNS: ClassVar = {"entities": "any", "prompt_tokens": "int64", "error": "string"}
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
        self.names = self.encoder.model.config.id2label
        if not self.encoder.tokenizer.is_fast:
            sys.exit(
                "the model's tokenizer does not say where in the text a token stands: give one with a tokenizer.json"
            )

    def compute(self, rows: list) -> Iterator[Results]:
        """Results with their places in ``rows``, as they are done."""
        yield from self.encoder.compute(rows, self.describe_rows, self.COLUMNS)

    def describe_rows(self, output, inputs, read: list) -> list[dict]:
        shares, kept = output.logits.float().softmax(-1), inputs["attention_mask"].bool()
        return [
            {"entities": self.find_entities(text, encoding, row[mask])}
            for (text, encoding), row, mask in zip(read, shares, kept, strict=True)
        ]

    def find_entities(self, text: str, encoding, shares) -> list[dict]:
        """A word has its first token's label, as such models are trained; neighbours of one label are one entity."""
        best, labels = (values.tolist() for values in shares.max(-1))
        entities, last, before = [], "O", None
        for place, word in enumerate(encoding.word_ids()):
            if word is None or word == before:
                continue
            before = word
            label = self.names[labels[place]]
            begins, label = label.startswith("B-"), label.removeprefix("B-").removeprefix("I-")
            start, end = encoding.word_to_chars(word)
            if label != "O" and label == last and not begins:
                entities[-1]["end"] = end
                entities[-1]["shares"].append(best[place])
            elif label != "O":
                entities.append({"label": label, "start": start, "end": end, "shares": [best[place]]})
            last = label
        return [describe_entity(text, **entity) for entity in entities]

    def close(self) -> None:
        pass


def describe_entity(text: str, label: str, start: int, end: int, shares: list[float]) -> dict:
    """Its probability is the mean of its words'."""
    probability = sum(shares) / len(shares)
    return {"label": label, "text": text[start:end], "start": start, "end": end, "probability": probability}


def make_sample() -> str:
    """A text, to see that it works."""
    return "Ada Lovelace lived in London."
