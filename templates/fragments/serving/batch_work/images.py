"""What a batch computes of a row: the label of its image, and how likely each label is."""

import argparse
import io
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from class_scores import COLUMNS, describe_scores
from media import MediaWork, Results, decode_image
from model import load_model
from sources import find_source


class Work(MediaWork):
    """A classifier of images."""

    FROM: ClassVar = ("image", "path", "file")
    """Columns that may hold the image, if the flag does not say."""
    COLUMNS: ClassVar = {**COLUMNS, "error": "string"}
    SETTINGS: ClassVar = ("top",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, config: dict) -> None:
        parser.add_argument("--top", type=int, default=5, help="labels whose probabilities are written, the likeliest")

    def __init__(self, config: dict, here: Path, args: argparse.Namespace) -> None:
        import torch
        from transformers import AutoImageProcessor

        super().__init__(config, args)
        self.torch = torch
        source, revision = find_source(config, "model"), config.get("revision")
        # by Pillow, as in every environment: torchvision's resizing gives other last digits
        self.processor = AutoImageProcessor.from_pretrained(
            source, revision=revision, backend="pil", trust_remote_code=False
        )
        self.model = load_model(config)

    def decode(self, content: bytes):
        return decode_image(content)

    def compute_batch(self, decoded: list) -> Iterator[Results]:
        inputs = self.processor(images=[image for _, image in decoded], return_tensors="pt")
        with self.torch.inference_mode():
            logits = self.model(**inputs.to(self.model.device, self.model.dtype)).logits
        rows = describe_scores(self.model.config, logits, self.args.top)
        yield [(place, row | {"error": None}) for (place, _), row in zip(decoded, rows, strict=True)]


def make_sample() -> bytes:
    """A gray square, to see that it works."""
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (64, 64), (128, 128, 128)).save(content, "PNG")
    return content.getvalue()
