"""Texts counted in a process of its own: a tokenizer.json of others holds regular expressions, which may never end, or end the process."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from generator.inputs.chat_child import SECONDS, explain_end, limit_resources
from generator.inputs.held import make_scratch
from generator.inputs.json_files import is_small_file
from hwdetect.machine.process import build_own_command, isolate_python, run_process

CPU_SECONDS = 5
"""The largest published tokenizer.json, 33 MB, is read in a second, and as many texts as are counted take half of one (ours)"""
MEMORY_BYTES = 4 << 30


class UnusableTokenizer(Exception):
    """One that cannot be read, or gives no answer in the time and memory that all published ones need."""


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """The tokenizer of a file."""

    path: Path

    def count(self, texts: Sequence[str], *, special: bool) -> list[int]:
        """Tokens of each text; ``special``: with those that the tokenizer puts around one. Raises ``UnusableTokenizer``."""
        return self._ask(texts, special)["counts"]

    def find_first_token(self) -> str | None:
        """What it puts before any text: the first token of "a". Raises ``UnusableTokenizer``."""
        return self._ask([], True)["first"]

    def _ask(self, texts: Sequence[str], special: bool) -> dict:
        with make_scratch() as folder:
            asked, answered = folder / "asked.json", folder / "answered.json"
            content = {"path": str(self.path.absolute()), "texts": texts, "special": special}
            asked.write_text(json.dumps(content), encoding="utf-8")
            command = build_own_command("generator.inputs.token_child", str(asked), str(answered))
            ended = run_process(command, SECONDS, environment=isolate_python())
            if ended.code != 0 or not answered.is_file():
                raise UnusableTokenizer(f"counting with its tokenizer: {explain_end(ended, CPU_SECONDS)}")
            return json.loads(answered.read_text(encoding="utf-8"))


def find_counter(path: Path) -> TokenCounter | None:
    """``None`` without the library, or for what is no file of a tokenizer's size."""
    usable = importlib.util.find_spec("tokenizers") is not None and is_small_file(path)
    return TokenCounter(path) if usable else None


def main(arguments: list[str]) -> None:
    """Of the child: the paths of what is asked and of what is answered."""
    from tokenizers import Tokenizer

    limit_resources(CPU_SECONDS, MEMORY_BYTES)
    asked, answered = map(Path, arguments)
    content = json.loads(asked.read_text(encoding="utf-8"))
    counter = Tokenizer.from_file(content["path"])
    counter.no_truncation()
    counter.no_padding()
    encoded = counter.encode_batch_fast(content["texts"], add_special_tokens=content["special"])
    first = counter.encode("a").tokens[:1]  # the fast call gives lengths, and no texts of tokens
    answer = {"counts": [len(ids) for ids in encoded], "first": first[0] if first else None}
    answered.write_text(json.dumps(answer), encoding="utf-8")
