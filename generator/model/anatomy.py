"""From a parsed config.json to a ``ModelSpec``, by the table of families alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from generator.model.families import SAME_AS, row_of
from generator.model.guard import check_said, check_understood
from generator.model.parts import Item, Part, Scores, State
from generator.model.settings import Settings
from generator.model.spec import Attended, ModelSpec, NeedsMetaDevice
from generator.model.stacks import Row


class Anatomy(NamedTuple):
    """Every parameter, attention and recurrent state of a model, equal ones together, and the kinds of its text layers."""

    row: Row
    whole: Settings
    text: Settings
    parts: tuple[Part, ...]
    scores: tuple[Scores, ...]
    states: tuple[State, ...]
    layer_kinds: tuple[tuple[str, int], ...]


def anatomy(config: Mapping) -> Anatomy:
    """What the model is made of.

    Raises ``NeedsMetaDevice`` for a type without a row or a config that says what its row does not understand,
    ``MissingSize`` (a KeyError) naming the size that is not said.
    """
    said = config.get("model_type")
    if not isinstance(said, str):
        raise NeedsMetaDevice(f"{said!r} is not in perfgen's tables")
    model_type = SAME_AS.get(said, said)
    row = row_of(model_type)
    if row is None:
        raise NeedsMetaDevice(f"{said!r} is not in perfgen's tables")
    whole = Settings(row.lifted(config), model_type)
    text = whole.inner(row.text) if row.text else whole
    if row.text is None and row.kind in ("decoder", "encoder"):
        check_said(whole)
    items = row.body(whole) + row.head(whole)
    kinds = row.kinds(text)
    check_understood(whole, row.refuses)
    return Anatomy(row, whole, text, *merged(items), layer_kinds=tuple(Counter(kinds).items()))


def merged(items: Iterable[Item]) -> tuple[tuple[Part, ...], tuple[Scores, ...], tuple[State, ...]]:
    """Equal parts, attentions and states together."""
    parts: Counter[Part] = Counter()
    scores: Counter[Scores] = Counter()
    states: Counter[State] = Counter()
    for item in items:
        if isinstance(item, Part):
            parts[item._replace(count=1)] += item.count
        elif isinstance(item, Scores):
            scores[item._replace(layers=1)] += item.layers
        else:
            states[item._replace(layers=1)] += item.layers
    return (
        tuple(part._replace(count=n) for part, n in parts.items() if n),
        tuple(score._replace(layers=n) for score, n in scores.items() if n),
        tuple(state._replace(layers=n) for state, n in states.items() if n),
    )


MULTIPLIED = ("linear", "router", "expert", "head", "tied")
"""parts that a token is multiplied with"""
ENDS = ("embedding", "head", "tied", "outer")


def describe(config: Mapping, name: str) -> ModelSpec:
    """Exact sizes of the model that Transformers builds from ``config``; raises what ``anatomy`` raises."""
    made = anatomy(config)
    row, text, parts = made.row, made.text, made.parts
    own = [part for part in parts if not part.stack]
    params = sum(part.params for part in parts)
    routed = next((part for part in own if part.kind == "expert" and part.role == "down"), None)
    main = max((s for s in made.scores if not s.stack), key=lambda s: s.layers, default=Scores(0, 0, 0, 0, 0))
    told, inner = made.whole.told, text.told
    return ModelSpec(
        name=name,
        model_type=told["model_type"],
        architecture=(told.get("architectures") or [None])[0],
        kind=row.kind,
        layers=row.depth(text),
        hidden=row.width(text),
        heads=main.heads,
        kv_heads=main.kv_heads,
        head_dim=(main.key_dim + main.value_dim) // 2,
        ffn=max((part.inputs for part in own if part.role == "down" and part.kind == "linear"), default=0),
        vocab=text.size("vocab"),
        gated=any(part.role == "gate" for part in own),
        tied_embeddings=tied(own, text),
        experts=text.size("experts") if routed else 0,
        experts_per_token=text.size("experts_per_token") if routed else 0,
        expert_ffn=routed.inputs if routed else 0,
        shared_expert_ffn=next((part.inputs for part in own if part.role == "shared"), 0),
        sliding_window=window(made),
        max_positions=text.positions,
        layer_kinds=kinds_of(made),
        params=params,
        active_params=params - round(sum(p.params * (1 - p.share) for p in own if p.kind == "expert")),
        embedding_params=sum(part.params for part in own if part.kind in ENDS or part.name == "embeddings.norm"),
        linear_params=sum(p.inputs * p.outputs * p.count for p in parts if p.kind in ("linear", "expert")),
        flops_per_token=2.0 * sum(p.inputs * p.outputs * p.count * p.share for p in own if p.kind in MULTIPLIED),
        attention=tuple(
            Attended(s.layers, s.heads * (s.key_dim + s.value_dim) // 2, s.cached, s.window)
            for s in made.scores
            if not s.stack
        ),
        state_elements=sum(state.layers * state.elements for state in made.states),
        dtype=next((v for of in (told, inner) for key in ("dtype", "torch_dtype") if (v := of.get(key))), None),
        quantization=(told.get("quantization_config") or {}).get("quant_method"),
    )


def tied(parts: list[Part], text: Settings) -> bool:
    """By the output layer, and by what the config says where the model has none."""
    kinds = {part.kind for part in parts}
    return "tied" in kinds if kinds & {"head", "tied"} else bool(text["tie_word_embeddings"])


def window(made: Anatomy) -> int | None:
    """The widest, where every attention has one."""
    told = [score.window for score in made.scores if not score.stack]
    return max((n for n in told if n), default=None) if all(told) else None


def kinds_of(made: Anatomy) -> tuple[tuple[str, int], ...]:
    """Nothing where all layers are alike, attend to everything and have the same kind of feed-forward."""
    counts = Counter(dict(made.layer_kinds))
    sparse = made.row.sparse(made.text)
    if counts.keys() <= {"full_attention"} and len(set(sparse)) < 2:
        return ()
    return (*counts.items(), *([("moe", sum(sparse))] if any(sparse) and "moe" not in counts else []))
