"""The sizes of a model as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from generator.model.components import Mixer


class Attended(NamedTuple):
    """``layers`` blocks with the same attention: ``width`` = heads × the mean of key and value size (a score and its value
    take 4 × width operations per pair of tokens), ``cached`` elements per token that generation keeps, ``window`` in tokens.
    ``held`` and ``holds_all``: what Transformers' own cache keeps beyond that (components.py, Scores)."""

    layers: int
    width: int
    cached: int
    window: int | None = None
    held: int = 0
    holds_all: bool = False

    def as_held(self) -> Attended:
        """As the cache of Transformers has it."""
        return self._replace(cached=self.held or self.cached, window=None if self.holds_all else self.window)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The sizes that cost formulas need. Counts are exact for ``basis == "config"`` and ``"meta-device"``.

    ``params`` are those of the model with its head: ``AutoModelForCausalLM`` for a decoder, the one for conditional generation
    of an encoder-decoder or a multimodal model, the bare ``AutoModel`` else. The sizes of a multimodal model are its text model's.
    ``ffn`` is the width of one dense feed-forward block, ``gated`` whether it has a gate (three matrices, not two);
    ``experts`` = 0 for a dense model; ``layer_kinds`` counts blocks by kind when they differ (full_attention,
    sliding_attention, linear_attention, moe…). ``sliding_window`` is set where every attention has one: where only some have,
    a formula that takes it for all would promise too much.
    ``dtype`` is the stored dtype that the config names, ``quantization`` the checkpoint's own method, ``None`` for neither.
    """

    name: str
    model_type: str
    architecture: str | None
    kind: str
    """decoder (``AutoModelForCausalLM`` loads it), encoder, encoder-decoder, vision, audio, multimodal"""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    """of keys and values; their mean where they differ, so that heads × head_dim × 2 is the work of a score and its value"""
    ffn: int
    vocab: int
    gated: bool = True
    tied_embeddings: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_expert_ffn: int = 0
    router_loss: bool = False
    """whether its forward can add a loss that balances the experts"""
    sliding_window: int | None = None
    max_positions: int | None = None
    rotation: str | None = None
    """kind of its rotary embeddings, where they are not plain ones: yarn, llama3, longrope …"""
    stretched_positions: int | None = None
    """what YaRN reaches, where that is more"""
    alike_positions: int | None = None
    """tokens of the longest row whose rotary embeddings are those of shorter ones; ``None``: all rows"""
    row_positions: int | None = None
    """of one image (patches, and tokens that are learned) or one window of sound (frames); ``None``: a model of texts, or one whose
    stages have fewer and fewer"""
    layer_kinds: tuple[tuple[str, int], ...] = ()
    params: int = 0
    active_params: int = 0
    embedding_params: int = 0
    """outside the blocks: vocabulary, positions and token types with their norm, what projects or pools them, and the output
    layer where it is not tied"""
    linear_params: int = 0
    """weights of Linear layers inside the blocks, and of experts: what a quantizer packs and "all-linear" LoRA adapts"""
    flops_per_token: float = 0.0
    """matrix products of one forward pass, two operations per multiply-add; attention scores apart, they grow with the length"""
    attention: tuple[Attended, ...] = ()
    """the blocks that attend, by kind; empty: all of them alike, over ``sliding_window``"""
    mixers: tuple[Mixer, ...] = ()
    """what blocks have in the place of plain attention, or beside it"""
    state_elements: int = 0
    """of recurrent blocks, for one sequence of any length"""
    saved: tuple[float, ...] = ()
    """of one block, in the mean, as traced in bfloat16: elements of 16 bits that it keeps of a token for its backward pass, other bytes,
    and the same two of a pair of tokens; empty: not traced"""
    dtype: str | None = None
    quantization: str | None = None
    stored_format: str | None = None
    """the cost model's name for how a quantized checkpoint packs its weights; ``None``: plain, or in a way without a formula"""
    stored_bytes: int | None = None
    """of all tensors of a quantized checkpoint, where its header says them"""
    stored_offsets: bool = False
    """each group of its packed weights has a zero of its own, as few kernels multiply them"""
    stored_group: int = 1
    """inputs of a layer whose packed weights share a scale"""
    basis: str = "config"
    notes: tuple[str, ...] = ()

    @property
    def attended(self) -> tuple[Attended, ...]:
        """``attention``, or all blocks alike where only the sizes are known."""
        if self.attention or self.state_elements:
            return self.attention
        same = Attended(self.layers, self.heads * self.head_dim, 2 * self.kv_heads * self.head_dim, self.sliding_window)
        return (same,)

    @property
    def shortest_window(self) -> int | None:
        """Tokens that the layers see which see the fewest; ``None``: all see all."""
        return min((kind.window for kind in self.attended if kind.window), default=None)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that generation keeps of a token in 16 bits, windows not yet reached."""
        return 2.0 * sum(kind.layers * kind.cached for kind in self.attended)

    @property
    def held_bytes_per_token(self) -> float:
        """The same, of Transformers' own cache."""
        return 2.0 * sum(kind.layers * kind.as_held().cached for kind in self.attended)


class NeedsMetaDevice(Exception):
    """The tables do not know the architecture: Transformers itself must count it."""
