"""Sounds and images of rows: each a path, beside the input where it is a relative one, or the bytes themselves."""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from batch_input import Row
from weights_identity import describe_model

Results = list[tuple[int, dict]]
LEAST_RATE = 1000
"""Samples per second of a sound. By a header that says 1, a file of two megabytes is a sound of 64 GB."""


class MediaWork:
    """Computes rows in batches that depend on the rows alone. A task decodes files, and computes what a batch holds."""

    COLUMNS: ClassVar[dict[str, str]]
    """What an output row holds beside the columns of the input, and the types of these in Parquet."""
    READS: ClassVar = ()
    PROMPT: ClassVar = "the file"
    SETTINGS: ClassVar[tuple[str, ...]]
    """Flags that results depend on."""

    @staticmethod
    def read_batch(config: dict) -> int:
        """Rows that are computed together."""
        return config["rows"]["batch"]

    @classmethod
    def describe(cls, config: dict, here: Path, args: argparse.Namespace) -> dict:
        """The settings that results depend on."""
        return {name: getattr(args, name) for name in cls.SETTINGS} | config["rows"] | describe_model(config, here)

    def __init__(self, config: dict, args: argparse.Namespace) -> None:
        self.args, self.batch = args, self.read_batch(config)

    def compute(self, rows: list[Row]) -> Iterator[Results]:
        """Results with their places in ``rows``, as they are done. What is decoded is held for one batch only."""
        for start in range(0, len(rows), self.batch):
            decoded, failed = [], []
            for place, row in enumerate(rows[start : start + self.batch], start):
                try:
                    decoded.append((place, self.prepare(row)))
                except ValueError as error:
                    failed.append((place, dict.fromkeys(self.COLUMNS) | {"error": str(error)}))
            yield failed
            if decoded:
                yield from self.compute_batch(decoded)

    def prepare(self, row: Row):
        """What its file holds. ValueError says why there is nothing."""
        if row.problem is not None:
            raise ValueError(row.problem)
        return self.decode(read_media(row.values, self.args.column, self.args.input.resolve().parent))

    def decode(self, content: bytes):
        """A sound's samples, or an image. ValueError says why there are none."""
        raise NotImplementedError

    def compute_batch(self, decoded: list) -> Iterator[Results]:
        """Of pairs of a place and what was decoded."""
        raise NotImplementedError

    def close(self) -> None:
        pass


def read_media(values: dict, column: str, folder: Path) -> bytes:
    """The content of the file. ValueError says why there is none."""
    value = values.get(column)
    if isinstance(value, dict):  # as the datasets library keeps sounds and images
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"no path and no bytes in {column!r}")
    path = folder / value
    try:
        if not path.is_file():
            raise ValueError(f"{path} is no file")
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def decode_sound(content: bytes, rate: int):
    """Samples in one channel at ``rate`` per second, float32. ValueError says why it is no sound."""
    import numpy
    import soundfile
    import soxr

    try:
        samples, own = soundfile.read(io.BytesIO(content), dtype="float32", always_2d=True)
        if own < LEAST_RATE:
            raise ValueError(f"{own} samples per second: no sound has less than {LEAST_RATE:,}")
        samples = samples.mean(axis=1)
        if own != rate and len(samples):
            samples = soxr.resample(samples, own, rate)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"no sound that can be read: {error.error_string}") from None
    except MemoryError as error:  # a header of a few bytes may speak of a thousand hours
        raise ValueError(f"no sound that can be held: {error}") from None
    if not len(samples):  # of the last few at a high rate none is left
        raise ValueError("the sound has no samples")
    if not numpy.isfinite(samples).all():
        raise ValueError("the sound has samples that are no numbers")
    return samples


def decode_image(content: bytes):
    """An RGB image, as it is to be seen. ValueError says why it is none."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        return ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert("RGB")
    except UnidentifiedImageError:  # its words hold an address, which differs from run to run
        raise ValueError("no image of a format that Pillow knows") from None
    except Exception as error:  # of Pillow's forty readers, each of which has its own
        raise ValueError(f"no image that can be read: {error}") from None
