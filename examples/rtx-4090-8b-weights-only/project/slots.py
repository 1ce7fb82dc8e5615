"""How the next tokens of several answers are computed: together, with rows of keys and values that are allocated once,
or, for models whose layers this does not suit, apart."""

import inspect
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from direct_step import compute_next_logits

STEP = 64
"""The view of the rows grows by so many tokens: most steps have the shape of the one before."""
KEPT = ("past_key_values", "cache_params", "state")
"""What models return of the past, and take again: keys and values, or states, under several names."""
EXACT, ROUNDED = 1e-2, 0.1
"""How far logits may be from those of a pass over the whole text, as a share of their spread: products of 32 bits are
added in another order; of 16 bits and less, each is rounded."""


class SlotLayer(CacheLayerMixin):
    """One layer. The sequences that are computed lie in its first rows, so that a step reads them without a copy."""

    is_compileable = True
    is_sliding = False

    def __init__(self, slots: "Slots") -> None:
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        # one place more than is used: a view of all places would be of another kind, and compiled once more
        rows, length = self.slots.rows, self.slots.length + 1
        self.keys = key_states.new_zeros(rows, key_states.shape[1], length, key_states.shape[3])
        self.values = value_states.new_zeros(rows, value_states.shape[1], length, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        first, positions, longest = self.slots.first, self.slots.positions, self.slots.longest
        if positions is None:  # a prompt, from its beginning: it attends to itself alone
            length = key_states.shape[2]
            self.keys[first, :, :length] = key_states[0]
            self.values[first, :, :length] = value_states[0]
            return key_states, value_states
        positions, count = positions.to(key_states.device), positions.shape[0]
        rows = torch.arange(first, first + count, device=positions.device)[:, None]
        self.keys[rows, :, positions] = key_states.transpose(1, 2)
        self.values[rows, :, positions] = value_states.transpose(1, 2)
        return self.keys[first : first + count, :, :longest], self.values[first : first + count, :, :longest]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.slots.length


class Slots(Cache):
    """``rows`` sequences of up to ``length`` tokens. Either a prompt begins in a row, or rows that have begun go on."""

    def __init__(self, layers: int, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self.first = 0
        """Of the rows that are computed."""
        self.positions: torch.Tensor | None = None
        """Where the new tokens of each row stand: (rows, tokens)."""
        self.longest = 0
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def begin_prompt(self, row: int) -> None:
        self.first, self.positions = row, None

    def go_on(self, first: int, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Rows from ``first`` on have tokens at these places. Which places each of the tokens sees, of ``longest``."""
        self.first, self.positions, self.longest = first, positions, longest
        return (torch.arange(longest, device=positions.device) <= positions[:, :, None])[:, None]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Into the place of a sequence that has ended."""
        for layer in self.layers:
            if layer.is_initialized:  # what shares the keys of another layer has none
                layer.keys[target, :, :length] = layer.keys[source, :, :length]
                layer.values[target, :, :length] = layer.values[source, :, :length]


class Together:
    """All rows in one pass: the weights are read once for all of them."""

    reads_parts = True
    """A prompt may come in parts."""

    def __init__(self, model: PreTrainedModel, count: int, context: int) -> None:
        self.model, self.count, self.context = model, count, context
        self.forward_one = model.forward
        self.slots = Slots(len(DynamicCache(config=model.config).layers), count, context)
        self.last = find_last_option(model)
        self.adds_mask = model.config._attn_implementation == "eager"

    def compile(self, mode: str) -> None:
        """One token of one answer, a graph for every length: of several, products are large enough as they are."""
        for layer in self.slots.layers:
            for kept in (layer.keys, layer.values) if layer.is_initialized else ():
                torch._dynamo.mark_static_address(kept)  # else a captured graph copies all of it in every step
        self.forward_one = torch.compile(self.model.forward, dynamic=True, mode=mode)

    def read_prompt(self, row: int, tokens: Sequence[int], past: int) -> torch.Tensor:
        """Logits behind the last of the tokens, which come after ``past`` others."""
        if past:
            places = [list(range(past, past + len(tokens)))]
            return self.go_on(row, [list(tokens)], places, self.model.forward, **self.last)[0, -1]
        self.slots.begin_prompt(row)
        ids = torch.tensor([list(tokens)], device=self.model.device)
        return self.model(input_ids=ids, past_key_values=self.slots, use_cache=True, **self.last).logits[0, -1]

    def step(self, tokens: Sequence[int], pasts: Sequence[int]) -> torch.Tensor:
        """Logits behind the next token of each of the first rows."""
        forward = self.forward_one if len(tokens) == 1 else self.model.forward
        return self.go_on(0, [[token] for token in tokens], [[past] for past in pasts], forward)[:, -1]

    def check(self, tokens: Sequence[int], past: int) -> torch.Tensor:
        """Logits behind each of several tokens of the first row."""
        places = list(range(past, past + len(tokens)))
        return self.go_on(0, [list(tokens)], [places], self.model.forward)[0]

    def go_on(
        self, first: int, tokens: list[list[int]], places: list[list[int]], forward: Callable, **options
    ) -> torch.Tensor:
        device = self.model.device
        longest = -(-(max(map(max, places)) + 1) // STEP) * STEP
        positions = torch.tensor(places, device=device)
        mask = self.slots.go_on(first, positions, min(longest, self.slots.length))
        if self.adds_mask:
            mask = torch.zeros_like(mask, dtype=self.model.dtype).masked_fill(~mask, torch.finfo(self.model.dtype).min)
        return forward(
            input_ids=torch.tensor(tokens, device=device),
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.slots,
            use_cache=True,
            **options,
        ).logits

    def move_row(self, source: int, target: int, length: int) -> None:
        self.slots.move_row(source, target, length)


class Direct(Together):
    """The same rows; their next tokens past Transformers' own forward pass, which prompts still take."""

    def step(self, tokens: Sequence[int], pasts: Sequence[int]) -> torch.Tensor:
        return compute_next_logits(self.model, self.slots.layers, tokens, pasts)


class Apart:
    """A pass for each row, with what the model itself keeps of the past: windows and states of any kind."""

    reads_parts = False

    def __init__(self, model: PreTrainedModel, count: int, context: int) -> None:
        self.model, self.count, self.context = model, count, context
        self.last = find_last_option(model)
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self.kept: list[dict[str, Any]] = [{} for _ in range(count)]

    def read_prompt(self, row: int, tokens: Sequence[int], past: int) -> torch.Tensor:
        self.kept[row] = {}
        return self.go_on(row, tokens, past)

    def step(self, tokens: Sequence[int], pasts: Sequence[int]) -> torch.Tensor:
        rows = zip(tokens, pasts, strict=True)
        return torch.stack([self.go_on(row, [token], past) for row, (token, past) in enumerate(rows)])

    def go_on(self, row: int, tokens: Sequence[int], past: int) -> torch.Tensor:
        ids = torch.tensor([list(tokens)], device=self.model.device)
        places = torch.arange(past, past + len(tokens), device=self.model.device)[None]
        options = {"position_ids": places} if self.takes_positions else {}  # some count past states wrongly
        output = self.model(input_ids=ids, use_cache=True, **options, **self.kept[row], **self.last)
        self.kept[row] = {name: output[name] for name in KEPT if output.get(name) is not None}
        return output.logits[0, -1]

    def move_row(self, source: int, target: int, length: int) -> None:
        self.kept[target], self.kept[source] = self.kept[source], {}


class Turning(Apart):
    """The same for rotary embeddings that change where a text outgrows ``most`` tokens: there it is read once more."""

    def __init__(self, model: PreTrainedModel, count: int, context: int) -> None:
        super().__init__(model, count, context)
        self.most = find_alike(model)
        self.texts: list[list[int]] = [[] for _ in range(count)]

    def go_on(self, row: int, tokens: Sequence[int], past: int) -> torch.Tensor:
        self.texts[row] = [*self.texts[row][:past], *tokens]
        if past <= self.most < len(self.texts[row]):
            self.kept[row], tokens, past = {}, self.texts[row], 0
        return super().go_on(row, tokens, past)

    def move_row(self, source: int, target: int, length: int) -> None:
        super().move_row(source, target, length)
        self.texts[target], self.texts[source] = self.texts[source], []


class Anew:
    """The whole text again for every token: what is left for a model that goes on with nothing it kept."""

    reads_parts = False

    def __init__(self, model: PreTrainedModel, count: int, context: int) -> None:
        self.model, self.count, self.context = model, count, context
        self.texts: list[list[int]] = [[] for _ in range(count)]

    def read_prompt(self, row: int, tokens: Sequence[int], past: int) -> torch.Tensor:
        self.texts[row] = list(tokens)
        return read_whole(self.model, self.texts[row])

    def step(self, tokens: Sequence[int], pasts: Sequence[int]) -> torch.Tensor:
        for row, token in enumerate(tokens):
            self.texts[row].append(token)
        return torch.stack([read_whole(self.model, self.texts[row]) for row in range(len(tokens))])

    def move_row(self, source: int, target: int, length: int) -> None:
        self.texts[target], self.texts[source] = self.texts[source], []


Decoder = Together | Apart | Anew


def make_decoder(
    model: PreTrainedModel, cache: str, count: int, context: int, tolerance: float, direct: bool = False
) -> Decoder:
    """What the plan says of the cache, static or dynamic, and of the step, where that is right for the model: it is
    compared with passes over whole texts first, and what takes its place is said."""
    problem = find_short_memory(model, context) if cache == "static" else None
    each = Turning if find_alike(model) < context else Apart
    kinds: tuple[tuple[type[Decoder], str], ...] = ((each, "each by itself"),)
    if cache == "static" and not problem:
        kinds = ((Together, "by the model's whole forward pass"), *kinds)
        if direct:
            kinds = ((Direct, "directly"), *kinds)
    for kind, how in kinds:
        decoder = kind(model, count, context)
        difference = find_difference(decoder, tolerance)
        if difference is None:
            if problem:
                print(f"Answers are computed {how}: {problem}", file=sys.stderr)
            return decoder
        problem = difference
    print(f"Every token reads its whole text again, which is slow: {problem}", file=sys.stderr)
    return Anew(model, count, context)


def find_short_memory(model: PreTrainedModel, context: int) -> str | None:
    """Why its layers do not keep all tokens of an answer as keys and values, each at a place."""
    if model._is_stateful:
        return "the model keeps states"
    for layer in DynamicCache(config=model.config).layers:
        window = getattr(layer, "sliding_window", None)
        if type(layer) is not DynamicLayer and (window is None or window < context):
            return f"layers of the model see {window or 'some'} tokens, of {context} that an answer can have"
    if (most := find_alike(model)) < context:
        return f"keys are turned otherwise in texts of more than {most} tokens, of {context} that an answer can have"
    return None


def find_alike(model: PreTrainedModel) -> float:
    """Tokens of the longest text whose keys are turned as those of shorter ones: LongRoPE has other factors beyond."""
    rotation = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    return rotation["original_max_position_embeddings"] if rotation.get("rope_type") == "longrope" else math.inf


@torch.inference_mode()
def find_difference(decoder: Decoder, tolerance: float) -> str | None:
    """How what the decoder computes differs from passes over the whole texts; ``None``: not beyond rounding."""
    model = decoder.model
    texts = make_texts(model, min(decoder.count, 2), decoder.context)
    shares: list[list[float]] = [[] for _ in texts]
    try:
        for row, text in enumerate(texts):
            cut = len(text) // 2 if decoder.reads_parts else 0
            if cut:
                decoder.read_prompt(row, text[:cut], 0)
            shares[row].append(compare(model, text, decoder.read_prompt(row, text[cut:], cut)))
        for token in (3, 5, 7):
            logits = decoder.step([token] * len(texts), [len(text) for text in texts])
            for row, text in enumerate(texts):
                text.append(token)
                shares[row].append(compare(model, text, logits[row]))
    except Exception as error:  # whatever a model says to arguments that it was not written for
        return f"{type(error).__name__} of the model: {(str(error).splitlines() or [''])[0][:200]}"
    worst = max(map(statistics.median, shares))  # one may be far off by chance: another expert was chosen
    return None if worst <= tolerance else f"its logits would be wrong by {worst:.1%}"


def make_texts(model: PreTrainedModel, count: int, context: int) -> list[list[int]]:
    """Of different lengths, the last longer than any window that config.json names."""
    words = model.get_input_embeddings().num_embeddings
    described = model.config.get_text_config().to_dict().items()
    windows = [value for name, value in described if re.search("window", name) and type(value) is int]
    long = max([9, *(window + 3 for window in windows if window <= context - 8)])
    sizes = [5, min(long, context - 4)][-count:]
    return [[(7919 * (place + size)) % words for place in range(size)] for size in sizes]


def compare(model: PreTrainedModel, text: list[int], logits: torch.Tensor) -> float:
    """The difference to the logits behind the whole text, as a share of their spread."""
    right = read_whole(model, text).float()
    return float((logits.float() - right).norm() / (right - right.mean()).norm())


def read_whole(model: PreTrainedModel, text: list[int]) -> torch.Tensor:
    options = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    ids = torch.tensor([text], device=model.device)
    return model(input_ids=ids, **options, **find_last_option(model)).logits[0, -1]


def find_last_option(model: PreTrainedModel) -> dict[str, int]:
    """Logits of the last token alone: those of a long prompt are larger than the model's weights."""
    takes = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": 1} if takes else {}
