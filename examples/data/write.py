"""Write chats.jsonl anew: conversations whose lengths are spread as those of instruction sets are, in words of the sample text.

Lengths are drawn from log-normal distributions (questions: median 40 words, sigma 0.8; answers: median 110, sigma 0.9), one in five
conversations has a second turn; the draws are seeded, so the file has the same bytes everywhere.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEXT = HERE.parent.parent / "templates" / "project" / "{% if plan.project.sample %}sample{% endif %}" / "text.txt"
ROWS = 640
MOST_WORDS = 3000


def draw_length(rng: random.Random, median: float, sigma: float) -> int:
    return max(3, min(MOST_WORDS, round(median * math.exp(sigma * rng.gauss(0.0, 1.0)))))


def list_rows() -> list[dict]:
    words, rng = TEXT.read_text(encoding="utf-8").split(), random.Random(0)
    rows = []
    for _ in range(ROWS):
        messages = []
        for _ in range(2 if rng.random() < 0.2 else 1):
            for role, median, sigma in (("user", 40, 0.8), ("assistant", 110, 0.9)):
                length = draw_length(rng, median, sigma)
                start = rng.randrange(len(words) - length)
                messages.append({"role": role, "content": " ".join(words[start : start + length])})
        rows.append({"messages": messages})
    return rows


def dump_rows() -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in list_rows())


if __name__ == "__main__":
    (HERE / "chats.jsonl").write_text(dump_rows(), encoding="utf-8")
