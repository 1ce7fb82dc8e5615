"""The matrices of a model, from its ``ModelSpec``: what is multiplied, stored, quantized and adapted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from generator.model import Attended, Mixer, ModelSpec
from generator.model.block_traits import WHOLE_ATTENTION, read_block_traits

ATTENTION_INPUT = ("q", "k", "v")
LATENT = "latent"
"""kind of the ``Mixer`` that is attention"""
ROW_PARALLEL = ("o", "down")
"""roles of the linears whose inputs tensor parts divide; of the others they divide the outputs (Megatron-LM)"""
NAMES = {
    "q": ("q_proj", "query", "q_lin", "wq", "q"),
    "k": ("k_proj", "key", "k_lin", "wk", "k"),
    "v": ("v_proj", "value", "v_lin", "wv", "v"),
    "qkv": ("c_attn", "qkv_proj", "query_key_value", "Wqkv", "W_pack", "attn.c_attn", "qkv"),
    "o": ("o_proj", "out_proj", "dense", "wo", "attn.c_proj", "out_lin", "o"),
    "gate": ("gate_proj", "w1", "gate"),
    "up": ("up_proj", "w3", "fc1", "c_fc", "dense_h_to_4h", "up"),
    "down": ("down_proj", "w2", "fc2", "mlp.c_proj", "dense_4h_to_h", "down"),
}
"""names that models give their projections (PEFT's target mappings, transformers model code)"""


FEED_FORWARD = ("gate", "up", "down")
"""roles of the linears of a feed-forward"""


@dataclass(frozen=True, slots=True)
class Linear:
    """``count`` equal matrices per block; ``share`` of the tokens passes each (less than 1 for routed experts)."""

    role: str
    inputs: int
    outputs: int
    count: int = 1
    share: float = 1.0

    @property
    def params(self) -> int:
        return self.inputs * self.outputs * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one block and of the ends of the model. Element counts; ``ffn_active`` is what one token passes."""

    layers: int
    hidden: int
    query: int
    key: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool
    rms_norm: bool
    """its norms are RMSNorm, by separate operators; otherwise LayerNorm"""
    rotary: bool
    encoder: bool
    moe_layers: int
    experts: int
    experts_per_token: int
    ffn_active: float
    window: int | None
    attended: tuple[Attended, ...]
    mixers: tuple[Mixer, ...]
    state_elements: int
    linears: tuple[Linear, ...]
    params: int
    embedding: int
    """parameters of the input embedding (positions included)"""
    head: int
    """parameters of the output layer, 0 where it is tied or absent"""
    classifies: bool
    """its outputs are labels, of which a sequence has one row"""
    head_params: int
    """parameters of the output layer, tied or not; 0 where no logits of the vocabulary's width are made"""
    head_outputs: int
    block_params: float
    linear_params: float
    """parameters per block of ``Linear`` layers, what a quantizer packs; fused experts (Transformers 5) are not among them"""
    expert_params: float
    """parameters of the routed experts of a block"""
    # what the sizes do not tell (generator/model/block_traits.py)
    qk_norm: bool = False
    """queries and keys are normalized"""
    gated_attention: bool = False
    """the projection of queries makes a gate of what attention returns, too"""
    post_norms: int = 0
    """norms beyond two in a block"""
    float32_norm_weight: bool = False
    """norms multiply by their weight before they cast back"""
    ends_in_norm: bool = False
    """norms follow attention and feed-forward instead of going before them"""
    shared_norm: bool = False
    """attention and feed-forward read the output of one norm"""
    parallel: bool = False
    """attention and feed-forward are fed the same residual"""
    fused_qkv: bool = False
    """one projection makes queries, keys and values"""
    fused_gate: bool = False
    """one projection makes gate and up"""
    partial_rotary: bool = False
    """rotated and plain parts of the heads are joined by a copy"""
    composite_gelu: bool = False
    """GELU by separate operators, each of which keeps its input"""
    relu: bool = False
    """an activation that keeps its output alone"""
    eager_only: bool = False
    """attention scores are always materialized (they are soft-capped)"""
    capped_logits: bool = False
    dropout: int = 0
    """dropouts of hidden states in a block, by the defaults of the configuration class"""
    stored_bytes: int | None = None
    """of all tensors of a quantized checkpoint, where its header says them"""
    attention_dropout: bool = False
    """the scores are dropped out too"""
    adapted_experts: bool = False
    """PEFT makes adapters of the routed experts where all linear layers are asked for, and none of dense feed-forwards beside them"""
    every_expert: bool = False
    """Transformers multiplies each token with every expert, and those that it is not routed to with zeros (Llama 4); engines that serve
    do not"""
    saved: tuple[float, ...] = ()
    """what a block keeps for its backward pass, as traced (``ModelSpec.saved``); empty: by formula"""
    one_norm: bool = False
    """a block is a mixer or a feed-forward, and has one norm"""
    whole_attention: bool = False
    """Transformers' plan for tensor parallelism divides none of it: every part has its weights, and attends for all"""

    @property
    def attending(self) -> float:
        """Share of the blocks that attend by queries, keys and values of their own width."""
        if not self.state_elements:
            return 0.0 if any(mixer.kind == LATENT for mixer in self.mixers) else 1.0
        return sum(kind.layers for kind in self.attended) / self.layers

    @property
    def attention_params(self) -> float:
        """Of a block."""
        return sum(x.params * x.share for x in self.linears if x.role not in FEED_FORWARD)


def build_shape(spec: ModelSpec, task: str, num_labels: int, *, served: bool = False) -> Shape:
    """``task`` text-classification replaces the vocabulary's output layer by ``num_labels`` outputs; ``served``: by an engine of its own,
    which routes tokens."""
    traits = read_block_traits(spec.model_type)
    passed = spec.experts if traits.get("every_expert") and not served else spec.experts_per_token
    query, key = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    encoder = spec.kind == "encoder"
    moe = dict(spec.layer_kinds).get("moe", spec.layers if spec.experts else 0) if spec.experts else 0
    classify = task == "text-classification"
    vocab_params = spec.vocab * spec.hidden
    embedding = min(vocab_params, spec.params)
    has_head = not spec.tied_embeddings and not encoder
    replaced = vocab_params if has_head else 0
    head = num_labels * spec.hidden if classify else replaced
    params = spec.params + (head - replaced)
    expert_ffn = spec.expert_ffn or spec.ffn
    expert_inputs = find_expert_inputs(spec, expert_ffn, moe)
    experts = float((3 if spec.gated else 2) * expert_inputs * expert_ffn * spec.experts * moe)
    linear = min(spec.linear_params, params)
    linear -= experts if linear >= experts else 0.0
    share = moe / spec.layers if spec.layers else 0.0
    dense_active = spec.ffn * find_dense_share(spec, share)
    active = dense_active + share * (passed * expert_ffn + spec.shared_expert_ffn)
    rms_norm = traits.get("rms_norm", spec.gated and not encoder)
    shape = Shape(
        layers=max(spec.layers, 1),
        hidden=spec.hidden,
        query=query,
        key=key,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocab=spec.vocab,
        gated=spec.gated,
        rms_norm=rms_norm,
        rotary=rms_norm or traits.get("partial_rotary", False),
        encoder=encoder,
        moe_layers=moe,
        experts=spec.experts,
        experts_per_token=passed,
        ffn_active=active,
        window=spec.sliding_window,
        attended=spec.attended,
        mixers=spec.mixers,
        state_elements=spec.state_elements,
        linears=list_linears(spec, query, key, share, expert_ffn, expert_inputs, passed),
        params=params,
        stored_bytes=spec.stored_bytes,
        embedding=embedding,
        head=head,
        classifies=classify,
        head_params=head or (0 if classify else vocab_params),
        head_outputs=num_labels if classify else spec.vocab,
        block_params=max(params - embedding - head, 0) / max(spec.layers, 1),
        linear_params=linear / max(spec.layers, 1),
        expert_params=experts / max(spec.layers, 1),
        saved=spec.saved,
        one_norm=is_mixer_or_feed_forward(spec),
        whole_attention=spec.model_type in WHOLE_ATTENTION,
    )
    return replace(shape, **traits)


def find_expert_inputs(spec: ModelSpec, expert_ffn: int, moe: int) -> int:
    """The width that routed experts read: the hidden one, or a latent one (Nemotron 3) where that would be more weights than
    the model has. The weights that a token does not pass say how wide it is."""
    each = (3 if spec.gated else 2) * expert_ffn * spec.experts * moe
    if not each or each * spec.hidden <= spec.linear_params or spec.experts_per_token >= spec.experts:
        return spec.hidden
    idle = (spec.params - spec.active_params) / (1 - spec.experts_per_token / spec.experts)
    return min(spec.hidden, round(idle / each))


def list_linears(
    spec: ModelSpec, query: int, key: int, moe_share: float, expert_ffn: int, expert_inputs: int, passed: int
) -> tuple[Linear, ...]:
    h = spec.hidden
    recurrent = bool(spec.state_elements)
    attending = sum(kind.layers for kind in spec.attended) / max(spec.layers, 1) if recurrent else 1.0
    dense_share = find_dense_share(spec, moe_share)

    def list_feed_forward(width: int, count: int, share: float, inputs: int = h) -> list[Linear]:
        gate = [Linear("gate", inputs, width, count, share)] if spec.gated else []
        return [*gate, Linear("up", inputs, width, count, share), Linear("down", width, inputs, count, share)]

    linears: list[Linear] = []
    if query and attending:
        shapes = (("q", h, query), ("k", h, key), ("v", h, key), ("o", query, h))
        linears += [Linear(*one, share=attending) for one in shapes]
    attention = len(linears)
    if dense_share > 0 and spec.ffn:
        linears += list_feed_forward(spec.ffn, 1, dense_share)
    if moe_share and expert_ffn:
        share = moe_share * passed / spec.experts
        linears += list_feed_forward(expert_ffn, spec.experts, share, expert_inputs)
        if spec.shared_expert_ffn:
            linears += list_feed_forward(spec.shared_expert_ffn, 1, moe_share)
    if recurrent:
        return (*linears, *list_recurrent_linears(spec, linears, moe_share))
    return (*narrow_latent(spec, linears[:attention], linears[attention:], moe_share), *linears[attention:])


def narrow_latent(spec: ModelSpec, attention: list[Linear], others: list[Linear], moe_share: float) -> list[Linear]:
    """Attention through latents (DeepSeek) has fewer weights than heads of that size would: as narrow as those that it has."""
    own = sum(x.params for x in attention) * spec.layers
    left = spec.linear_params - count_block_weights(spec, others, moe_share)
    if not 0 < left < 0.98 * own:
        return attention
    narrow = left / own
    return [
        replace(x, inputs=round(x.inputs * narrow)) if x.role == "o" else replace(x, outputs=round(x.outputs * narrow))
        for x in attention
    ]


def find_dense_share(spec: ModelSpec, moe_share: float) -> float:
    """Of the blocks, those with a dense feed-forward. Where layers are a mixer or a feed-forward and not both, the config counts the latter
    (Nemotron-H)."""
    kinds = dict(spec.layer_kinds)
    return kinds["mlp"] / spec.layers if "mlp" in kinds else 1 - moe_share


def is_mixer_or_feed_forward(spec: ModelSpec) -> bool:
    """Whether each layer is one of the two (Nemotron-H), and has one norm."""
    kinds = dict(spec.layer_kinds)
    return bool(kinds.keys() & {"mlp", "moe"}) and sum(kinds.values()) == spec.layers


def count_block_weights(spec: ModelSpec, linears: list[Linear], moe_share: float) -> float:
    """Of all blocks."""
    routed = moe_share * spec.layers
    return sum(x.params * (routed if x.count > 1 else x.share * spec.layers) for x in linears)


def list_recurrent_linears(spec: ModelSpec, others: list[Linear], moe_share: float) -> tuple[Linear, ...]:
    """The projections of layers with a state, as one matrix: all weights of linears that no other role has."""
    kinds = dict(spec.layer_kinds)
    layers = kinds.get("linear_attention") or kinds.get("conv") or spec.layers
    left = spec.linear_params - count_block_weights(spec, others, moe_share)
    width = round(left / layers / spec.hidden)
    share = layers / spec.layers
    return (Linear("mixer", spec.hidden, width, 1, share),) if width > 0 else ()


@lru_cache(maxsize=64)  # asked for every execution of a search
def select_adapted(shape: Shape, targets: str | tuple[str, ...]) -> tuple[Linear, ...]:
    """The linears of a block that LoRA adapts, routed experts aside."""
    dense = tuple(x for x in shape.linears if x.count == 1)
    if targets == "all-linear":
        beside = ("gate", "up", "down") if shape.adapted_experts else ()
        return fuse_linears(shape, tuple(x for x in dense if x.role not in beside))
    wanted = {role for name in targets for role, known in NAMES.items() if name in known}
    if ("qkv" in wanted and not wanted & {"q", "k", "v"}) or ("qkv" in wanted and not shape.gated):
        fused = Linear("q", shape.hidden, shape.query + 2 * shape.key)
        return (fused, *(x for x in dense if x.role in wanted - {"q", "k", "v", "o"}))
    return tuple(x for x in dense if x.role in wanted)


def fuse_linears(shape: Shape, linears: tuple[Linear, ...]) -> tuple[Linear, ...]:
    """Projections that are one module (GPT-2's c_attn, Phi-3's gate_up_proj) as that one: it gets one adapter."""
    fused = list(linears)
    for roles, together in ((ATTENTION_INPUT, shape.fused_qkv), (("gate", "up"), shape.fused_gate)):
        parts = [x for x in fused if x.role in roles]
        if together and len(parts) > 1:
            one = replace(parts[-1], role="q" if "q" in roles else "up", outputs=sum(x.outputs for x in parts))
            fused = [one, *(x for x in fused if x not in parts)]
    return tuple(fused)


def count_lora_params(shape: Shape, targets: str | tuple[str, ...], rank: int, *, expert_loop: bool = False) -> float:
    """Trained parameters of the adapters of the whole model. "all-linear" also adapts fused experts and their router (PEFT >= 0.19) where
    ``shape.adapted_experts``, and experts that are linear layers by themselves (``expert_loop``)."""
    total = sum(width * number for width, number in list_factors(shape, targets, 1))
    if targets == "all-linear" and (shape.adapted_experts or expert_loop):
        experts = tuple(x for x in shape.linears if x.count > 1)
        each = sum((x.inputs + x.outputs) * x.count for x in experts)
        # gate and up are one weight there, which PEFT adapts with twice the rank: its outputs, of both, meet all of it
        each += sum(2 * x.outputs * x.count for x in experts if x.role == "gate")
        total += shape.moe_layers * (each + shape.hidden + shape.experts)
    return rank * total


def list_factors(shape: Shape, targets: str | tuple[str, ...], rank: int) -> Iterator[tuple[int, float]]:
    """Elements of each low-rank factor, routed experts' aside, and how many such the model has."""
    for x in select_adapted(shape, targets):
        for width in (x.inputs, x.outputs):
            yield rank * width, shape.layers * x.share
