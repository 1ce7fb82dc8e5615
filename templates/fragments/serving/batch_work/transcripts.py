"""What a batch computes of a row: what is said in its sound."""

import argparse
import io
import math
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from media import MediaWork, Results, decode_sound
from model import load_model
from sources import find_source


class Work(MediaWork):
    """A model of speech."""

    FROM: ClassVar = ("audio", "path", "file")
    """Columns that may hold the sound, if the flag does not say."""
    COLUMNS: ClassVar = {"text": "string", "seconds": "double", "new_tokens": "int64", "error": "string"}
    SETTINGS: ClassVar = ("language",)

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser, config: dict) -> None:
        parser.add_argument("--language", help="that is spoken, such as de (default: the model hears which)")

    def __init__(self, config: dict, here: Path, args: argparse.Namespace) -> None:
        from transformers import AutoProcessor

        super().__init__(config, args)
        source, revision = find_source(config, "model"), config.get("revision")
        self.processor = AutoProcessor.from_pretrained(source, revision=revision, trust_remote_code=False)
        self.model = load_model(config)
        self.rate = self.processor.feature_extractor.sampling_rate
        self.window = self.processor.feature_extractor.n_samples

    def decode(self, content: bytes):
        return decode_sound(content, self.rate)

    def compute_batch(self, decoded: list) -> Iterator[Results]:
        """A sound longer than the model's window is heard part by part, which takes other steps."""
        for fits in (True, False):
            part = [sound for sound in decoded if (len(sound[1]) <= self.window) == fits]
            if part:
                yield self.transcribe(part, fits)

    def transcribe(self, sounds: list, fits: bool) -> Results:
        more = {} if fits else {"truncation": False, "padding": "longest"}
        samples = [sound for _, sound in sounds]
        inputs = self.processor.feature_extractor(
            samples, sampling_rate=self.rate, return_tensors="pt", return_attention_mask=True, **more
        ).to(self.model.device, self.model.dtype)
        asked = {"language": self.args.language} if self.args.language else {}
        try:
            tokens = self.model.generate(**inputs, **asked, **({} if fits else {"return_timestamps": True}))
        except ValueError as error:
            if not asked:
                raise
            sys.exit(f"--language {self.args.language}: {' '.join(str(error).split())}")
        special = set(self.processor.tokenizer.all_special_ids)
        texts = self.processor.batch_decode(tokens, skip_special_tokens=True)
        return [
            (
                place,
                {
                    "text": text.strip(),
                    "seconds": len(sound) / self.rate,
                    "new_tokens": sum(token not in special for token in new.tolist()),
                    "error": None,
                },
            )
            for (place, sound), text, new in zip(sounds, texts, tokens, strict=True)
        ]


def make_sample() -> bytes:
    """A second of a tone, to see that it works."""
    content, rate = io.BytesIO(), 16000
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        tone = (round(8000 * math.sin(2 * math.pi * 440 * at / rate)) for at in range(rate))
        file.writeframes(b"".join(value.to_bytes(2, "little", signed=True) for value in tone))
    return content.getvalue()
