"""What OpenAI's API gives: an answer whole, or as the events of a stream."""

import json
import time
import uuid
from typing import Any

from openai_requests import Asked

DONE = b"data: [DONE]\n\n"


class Answer:
    """One answer to a request, in the shape of its endpoint."""

    def __init__(self, asked: Asked, name: str, prompt_tokens: int) -> None:
        self.asked, self.prompt_tokens = asked, prompt_tokens
        self.new_tokens = 0
        kind = "chat.completion" if asked.chat else "text_completion"
        self.head = {
            "id": f"{'chatcmpl' if asked.chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if asked.chat and asked.stream else kind,
            "created": int(time.time()),
            "model": name,
        }

    @property
    def usage(self) -> dict:
        total = self.prompt_tokens + self.new_tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.new_tokens, "total_tokens": total}

    def render_whole(self, text: str, finish: str) -> dict:
        content = (
            {"message": {"role": "assistant", "content": text, "refusal": None}} if self.asked.chat else {"text": text}
        )
        return {**self.head, "choices": [make_choice(content, finish)], "usage": self.usage}

    def render_first(self) -> bytes:
        """The event before the text: who speaks."""
        return self.render_delta({"role": "assistant", "content": ""}) if self.asked.chat else b""

    def render_text(self, text: str) -> bytes:
        if self.asked.chat:
            return self.render_delta({"content": text})
        return self.render_event([make_choice({"text": text}, None)])

    def render_last(self, finish: str) -> bytes:
        """Why it ends, then what it took, where that was asked for."""
        content = {"delta": {}} if self.asked.chat else {"text": ""}
        events = self.render_event([make_choice(content, finish)])
        if self.asked.include_usage:
            events += render_data({**self.head, "choices": [], "usage": self.usage})
        return events + DONE

    def render_delta(self, delta: dict) -> bytes:
        return self.render_event([make_choice({"delta": delta}, None)])

    def render_event(self, choices: list[dict]) -> bytes:
        usage = {"usage": None} if self.asked.include_usage else {}
        return render_data({**self.head, "choices": choices, **usage})


def make_choice(content: dict, finish: str | None) -> dict:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish}


def render_data(value: Any) -> bytes:
    """An event of a stream. In ASCII: no line break of Unicode ends it early."""
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()
