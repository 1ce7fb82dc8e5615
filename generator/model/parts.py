"""What a model is made of: matrices, vectors, attention scores and recurrent states, each counted."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """``count`` equal parameters. ``name`` is the end of the module's path, as LoRA targets name it.

    ``kind``: linear (``nn.Linear`` or GPT-2's Conv1D in a block), outer (one outside the blocks), router (a matrix that is
    multiplied but is no Linear module), expert (one slice of a fused 3-d parameter), embedding (looked up), conv, vector
    (norms and other elementwise parameters), head (the output layer), tied (an output layer that is the input embedding:
    no parameters but a bias).
    ``share`` is the part of a stack's tokens that pass it: experts per token over experts; 0 for once a sequence.
    ``role``: gate, down and shared (the down projection of experts that every token passes) tell a feed-forward's form.
    ``stack`` is "" for the text (or the only) stack, else encoder, vision, audio, projector.
    """

    name: str
    inputs: int
    outputs: int
    bias: int = 0
    """elements of the bias of one"""
    count: int = 1
    kind: str = "linear"
    share: float = 1.0
    role: str = ""
    stack: str = ""

    @property
    def params(self) -> int:
        return self.count * ((0 if self.kind == "tied" else self.inputs * self.outputs) + self.bias)


class Scores(NamedTuple):
    """Attention of ``layers`` equal blocks: every query sees the keys before it, at most ``window`` of them.

    ``cached`` elements a token are what generation keeps of keys and values: none for encoders.
    """

    layers: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    cached: int = 0
    window: int | None = None
    causal: bool = True
    stack: str = ""


class State(NamedTuple):
    """Elements that a recurrent block keeps for each sequence, whatever its length."""

    name: str
    elements: int
    layers: int = 1


Item = Part | Scores | State


def linear(name: str, inputs: int, outputs: int, bias: bool = False, **more) -> Part:
    return Part(name, inputs, outputs, outputs if bias else 0, **more)


def vector(name: str, size: int, count: int = 1) -> Part:
    return Part(name, 1, size, 0, count, "vector")


def embedding(name: str, rows: int, width: int) -> Part:
    return Part(name, rows, width, 0, 1, "embedding")


def conv(name: str, kernel: int, outputs: int, bias: bool = False, count: int = 1) -> Part:
    """``kernel``: weights that make one output (inputs of its group × positions)."""
    return Part(name, kernel, outputs, outputs if bias else 0, count, "conv")


def norm(name: str, size: int, arrays: int) -> list[Item]:
    """``arrays``: 2 LayerNorm with a bias, 1 without or RMSNorm, 0 without parameters."""
    return [vector(name, size, arrays)] if arrays else []


def repeated(items: list[Item], times: int) -> list[Item]:
    """The items of ``times`` equal blocks."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, Part):
            made.append(item._replace(count=item.count * times))
        else:
            made.append(item._replace(layers=item.layers * times))
    return made


def moved(items: list[Item], stack: str) -> list[Item]:
    """The items as those of another stack; its attention keeps nothing for generation."""
    made: list[Item] = []
    for item in items:
        if isinstance(item, Part):
            made.append(item._replace(stack=stack))
        elif isinstance(item, Scores):
            made.append(item._replace(stack=stack, cached=0))
    return made
