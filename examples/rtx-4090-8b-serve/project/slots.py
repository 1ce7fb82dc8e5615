"""Keys and values of several sequences, each in a row of its own, all of them allocated once."""

import inspect
import sys
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

STEP = 64
"""The view of the rows grows by so many tokens: most steps have the shape of the one before."""


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
        positions, mask = self.slots.positions, self.slots.mask
        if positions is None or mask is None:  # a prompt, from its beginning: it attends to itself alone
            row, length = self.slots.row, key_states.shape[2]
            self.keys[row, :, :length] = key_states[0]
            self.values[row, :, :length] = value_states[0]
            return key_states, value_states
        positions = positions.to(key_states.device)
        rows = torch.arange(positions.shape[0], device=positions.device)[:, None]
        self.keys[rows, :, positions] = key_states.transpose(1, 2)
        self.values[rows, :, positions] = value_states.transpose(1, 2)
        count, length = mask.shape[0], mask.shape[-1]
        return self.keys[:count, :, :length], self.values[:count, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.slots.length


class Slots(Cache):
    """``rows`` sequences of up to ``length`` tokens. Either one prompt is read into a row, or the first rows go on."""

    def __init__(self, layers: int, rows: int, length: int) -> None:
        self.rows, self.length = rows, length
        self.row = 0
        self.positions: torch.Tensor | None = None
        """Where the new tokens of each row stand: (rows, tokens)."""
        self.mask: torch.Tensor | None = None
        """Which tokens each of them sees: (rows, 1, tokens, longest)."""
        super().__init__(layers=[SlotLayer(self) for _ in range(layers)])

    def begin_prompt(self, row: int) -> None:
        self.row, self.positions, self.mask = row, None, None

    def begin_step(self, positions: torch.Tensor, longest: int) -> None:
        """The rows go on at these places. ``longest`` sizes the view: beyond a row's own place all is masked."""
        self.positions = positions
        self.mask = (torch.arange(longest, device=positions.device) <= positions[:, :, None])[:, None]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Into the place of a sequence that has ended."""
        for layer in self.layers:
            layer.keys[target, :, :length] = layer.keys[source, :, :length]
            layer.values[target, :, :length] = layer.values[source, :, :length]


class Together:
    """All rows in one pass: the weights are read once for all of them."""

    takes_back = True
    """Tokens that were read can be read again as others."""

    def __init__(self, model: PreTrainedModel, rows: int, length: int) -> None:
        self.model, self.forward_one = model, model.forward
        self.slots = Slots(model.config.get_text_config().num_hidden_layers, rows, length)
        self.last = find_last_option(model)

    def compile(self) -> None:
        """One token of one answer, a graph for every length: of several, products are large enough as they are."""
        self.forward_one = torch.compile(self.model.forward, dynamic=True)

    def read_prompt(self, row: int, tokens: list[int]) -> torch.Tensor:
        """Logits behind its last token."""
        self.slots.begin_prompt(row)
        ids = torch.tensor([tokens], device=self.model.device)
        return self.model(input_ids=ids, past_key_values=self.slots, use_cache=True, **self.last).logits[0, -1]

    def step(self, tokens: list[int], places: list[int]) -> torch.Tensor:
        """Logits behind the last token of each row."""
        forward = self.forward_one if len(tokens) == 1 else self.model.forward
        return self.go_on([[token] for token in tokens], [[place] for place in places], forward)[:, -1]

    def check(self, tokens: list[int], place: int) -> torch.Tensor:
        """Logits behind each of several tokens of the first row."""
        return self.go_on([tokens], [list(range(place, place + len(tokens)))], self.model.forward)[0]

    def go_on(self, tokens: list[list[int]], places: list[list[int]], forward: Any) -> torch.Tensor:
        device = self.model.device
        longest = -(-(max(map(max, places)) + 1) // STEP) * STEP
        positions = torch.tensor(places, device=device)
        self.slots.begin_step(positions, min(longest, self.slots.length))
        return forward(
            input_ids=torch.tensor(tokens, device=device),
            attention_mask=self.slots.mask,
            position_ids=positions,
            past_key_values=self.slots,
            use_cache=True,
        ).logits

    def move_row(self, source: int, target: int, length: int) -> None:
        self.slots.move_row(source, target, length)


class Apart:
    """A pass for each row, with the cache that Transformers has for the model: any kind of layer."""

    takes_back = False

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        self.model, self.last = model, find_last_option(model)
        self.caches: list[Cache | None] = [None] * rows

    def compile(self) -> None:
        print("serving.compile: a model with such layers is not compiled", file=sys.stderr)

    def read_prompt(self, row: int, tokens: list[int]) -> torch.Tensor:
        self.caches[row] = DynamicCache(config=self.model.config)
        return self.go_on(row, tokens)[-1]

    def step(self, tokens: list[int], places: list[int]) -> torch.Tensor:
        return torch.stack([self.go_on(row, [token])[-1] for row, token in enumerate(tokens)])

    def go_on(self, row: int, tokens: list[int]) -> torch.Tensor:
        ids = torch.tensor([tokens], device=self.model.device)
        return self.model(input_ids=ids, past_key_values=self.caches[row], use_cache=True, **self.last).logits[0]

    def check(self, tokens: list[int], place: int) -> torch.Tensor:
        raise NotImplementedError

    def move_row(self, source: int, target: int, length: int) -> None:
        self.caches[target], self.caches[source] = self.caches[source], None


def make_decoder(model: PreTrainedModel, rows: int, length: int) -> Together | Apart:
    """Rows of one pass where every layer attends to all tokens that an answer can have."""
    text = model.config.get_text_config().to_dict()
    window = text.get("sliding_window")
    attends = set(text.get("layer_types") or ["full_attention"]) <= {"full_attention", "sliding_attention"}
    if attends and not model._is_stateful and (window is None or window >= length):
        return Together(model, rows, length)
    print("This model has layers of several kinds: each answer is computed by itself", file=sys.stderr)
    return Apart(model, rows)


def find_last_option(model: PreTrainedModel) -> dict[str, int]:
    """Logits of the last token alone: those of a long prompt are larger than the model's weights."""
    takes = "logits_to_keep" in inspect.signature(model.forward).parameters
    return {"logits_to_keep": 1} if takes else {}
