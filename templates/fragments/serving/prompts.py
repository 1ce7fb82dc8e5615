"""Text to tokens by the model's own tokenizer and chat template, and new tokens to text, piece by piece."""

import json
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import cached_file

from sources import find_source
from stop_tokens import TURNS, find_end_of_turn
from template_limits import check_template

HERE = Path(__file__).resolve().parent
UNREADABLE = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes to where bytes are no character, or not yet."""
WRITTEN = ("tools", "documents")
"""What a template writes, beside the messages, where it has a place for it."""
MOST_HELD = 12
"""Tokens that are waited for to complete characters: a byte each, and some tokenizers judge a run of bytes together."""


def find_described(config: dict) -> Path | str:
    """Where tokenizer and settings of the model lie: of a GGUF file, beside what was converted of it."""
    source = find_source(config, "model")
    if not isinstance(source, Path) or source.is_dir():
        return source
    folder = HERE / config["serving"]["converted"]
    if not folder.is_dir():
        sys.exit(f"{folder} is not here, which holds the tokenizer of {source.name}: `make setup` makes it")
    return folder


class Prompts:
    """The tokenizer of config.yaml. ``stop_tokens`` end an answer: the model's, the tokenizer's, the template's."""

    def __init__(self, config: dict) -> None:
        model, revision = find_described(config), config.get("revision")
        if "tokenizer" in config:
            source, options = find_source(config, "tokenizer"), {"revision": config.get("tokenizer_revision")}
        else:
            source, options = model, {"revision": revision}
        self.tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **options)
        check_template(self.tokenizer)
        if getattr(self.tokenizer, "chat_control_tokens", None) is None:  # no file of the model names them
            self.tokenizer.chat_control_tokens = list_turn_marks(self.tokenizer)
        self.stop_tokens = list_stop_tokens(model, revision, self.tokenizer)
        self.hidden = set(self.tokenizer.all_special_ids) | {
            number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special
        }
        self.known_tokens = min(len(self.tokenizer), count_embedded(model, revision) or sys.maxsize)
        """From 0 to here: a tokenizer may have more than the model has embeddings."""
        self.longest_token = max(map(len, self.tokenizer.get_vocab()))
        """Characters of it."""
        self.encoding = threading.Lock()  # the fast tokenizers refuse two calls at once while one sets a limit

    @property
    def has_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def may_fit(self, texts: Iterable[str], most_tokens: int) -> bool:
        """Whether they could be so few tokens, however long each is. Asked before they are read: a tokenizer takes
        seconds of a long text, and a hundred times its memory."""
        return sum(map(len, texts)) <= most_tokens * self.longest_token

    def encode_text(self, text: str) -> list[int]:
        """With what the tokenizer puts before a text, as in training."""
        with self.encoding:
            return self.check_tokens(self.tokenizer(text)["input_ids"])

    def check_tokens(self, tokens: list[int]) -> list[int]:
        """ValueError for one that the model has no embedding of: engines end at it, or read another's memory."""
        unknown = next((token for token in tokens if token >= self.known_tokens), None)
        if unknown is not None:
            shown = self.tokenizer.convert_ids_to_tokens(unknown)
            raise ValueError(
                f"the tokenizer's {shown!r} ({unknown}) is no token of the model, which has {self.known_tokens}"
            )
        return tokens

    def encode_messages(self, messages: Sequence[dict], options: Mapping[str, Any] | None = None) -> list[int]:
        """Up to where the model's answer begins. ``options``: tools, documents, and arguments of the template's own.
        ValueError, in words, where the template does not take them, or would leave one of them out."""
        if not self.has_template:
            raise ValueError("this model has no chat template: send a text to /v1/completions, which it goes on with")
        options = {name: value for name, value in (options or {}).items() if value is not None}
        with self.encoding:
            self.check_options(options)
            tokens = self.apply_template(messages, options)
            for name in WRITTEN:
                rest = {other: value for other, value in options.items() if other != name}
                if options.get(name) and tokens == self.apply_template(messages, rest):
                    raise ValueError(
                        f"the model's chat template leaves {name} out: ask without, or a model that has them"
                    )
        return self.check_tokens(tokens)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """ValueError for an argument that the template does not name: jinja would drop it without a word."""
        if not options:
            return
        template = self.tokenizer.get_chat_template(tools=options.get("tools"))
        for name in options.keys() - {*WRITTEN}:
            if not re.search(rf"\b{re.escape(name)}\b", template):
                raise ValueError(f"the model's chat template has no argument {name[:100]!r}: ask without")

    def apply_template(self, messages: Sequence[dict], options: Mapping[str, Any]) -> list[int]:
        """What people write stays text: a mark of a turn that stands in it begins or ends none."""
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                add_generation_prompt=True,
                return_dict=False,
                sanitize_control_tokens=True,
                **options,
            )
        except Exception as error:  # a template is a program of others, with errors of its own
            raise ValueError(f"the model's chat template does not take these messages: {error}") from error

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a whole answer: that of its pieces."""
        pieces = Pieces(self)
        return pieces.add(tokens) + pieces.finish()


class Pieces:
    """The text of one answer as its tokens come, without half characters, up to the first of the ``stops``."""

    def __init__(self, prompts: Prompts, stops: Sequence[str] = ()) -> None:
        self.prompts, self.stops = prompts, [stop for stop in stops if stop]
        self.tokens: list[int] = []
        self.start = self.read = 0
        """Text is given out up to token ``read``; those from ``start`` are decoded again: neighbours decide spaces."""
        self.held = ""
        """Text that a stop may begin with."""
        self.stopped = False

    def add(self, tokens: Iterable[int]) -> str:
        """What may be shown now; nothing after a stop."""
        text = ""
        for token in tokens:
            if self.stopped:
                break
            if token not in self.prompts.hidden:
                self.tokens.append(token)
                text += self.hold_stops(self.decode_new(len(self.tokens) - self.read > MOST_HELD))
        return text

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        if self.stopped:
            return ""
        text = self.hold_stops(self.decode_new(whole=True))
        rest, self.held = self.held, ""
        return text + rest

    def decode_new(self, whole: bool) -> str:
        """The text of the tokens that are not read yet, once they end with a character, or ``whole`` as they are."""
        shown = self.decode_tokens(self.tokens[self.start : self.read])
        text = self.decode_tokens(self.tokens[self.start :])
        if len(text) <= len(shown) or (text.endswith(UNREADABLE) and not whole):
            return ""
        self.start, self.read = self.read, len(self.tokens)
        return text[len(shown) :]

    def decode_tokens(self, tokens: list[int]) -> str:
        return self.prompts.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def hold_stops(self, text: str) -> str:
        """What of it comes before a stop, without an end that may become one."""
        text = self.held + text
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self.stopped, self.held = True, ""
            return text[: min(places)]
        keep = max((count_overlap(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]


def count_overlap(text: str, stop: str) -> int:
    """Characters at the end of the text that the stop begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((count for count in range(longest, 0, -1) if text.endswith(stop[:count])), 0)


def list_turn_marks(tokenizer) -> list[str] | None:
    """What the template puts around turns, of the tokenizer's added tokens. Others that it names, as those around
    thoughts and calls, models write in answers, and come back as such. ``None``: all that it names."""
    try:
        tokens = tokenizer.apply_chat_template([*TURNS, TURNS[0]], return_dict=False)
    except Exception:  # a template is a program of others: it may want other turns
        return None
    added = tokenizer.added_tokens_decoder
    marks = {added[token].content for token in tokens if token in added}
    return sorted(mark for mark in marks if not mark.isspace())  # of some, turned lines are tokens of their own


def list_stop_tokens(model: Path | str, revision: str | None, tokenizer) -> list[int]:
    """The model's, the tokenizer's, and what was learned to end a turn. Without the last, other turns are made up."""
    own = next(filter(None, (read_end_tokens(model, revision, name) for name in NAMING_ENDS)), [])
    stops = {*own, tokenizer.eos_token_id, find_end_of_turn(tokenizer)}
    return sorted(token for token in stops if token is not None)


NAMING_ENDS = ("generation_config.json", "config.json")
"""The first that names one decides, as in `generate`."""


def read_end_tokens(model: Path | str, revision: str | None, name: str) -> list[int]:
    """``eos_token_id`` of a file of the model. Read here, as Transformers' own reader needs torch."""
    tokens = read_model_file(model, revision, name).get("eos_token_id")
    listed = tokens if isinstance(tokens, list) else [] if tokens is None else [tokens]
    for token in listed:
        if type(token) is not int:
            sys.exit(f"{name} of {model}: eos_token_id {token!r} is no number of a token: correct it there")
    return [token for token in listed if token >= 0]  # -1 is none


def count_embedded(model: Path | str, revision: str | None) -> int | None:
    """Tokens that the model has embeddings of, by its config.json. ``None``: not said there."""
    config = read_model_file(model, revision, "config.json")
    return config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")


def read_model_file(model: Path | str, revision: str | None, name: str) -> dict:
    """A JSON file beside the weights; empty where there is none."""
    path = cached_file(str(model), name, revision=revision, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return {}
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(f"{path} is no JSON ({error}): fetch the model again")
    if not isinstance(value, dict):
        sys.exit(f"{path} is no JSON object: fetch the model again")
    return value
