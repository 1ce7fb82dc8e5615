"""What a model is made of, each counted: weights, attention scores, recurrent states and what is in the place of attention.

A family's table builds a list of these from a config; ``description.py`` sums them. Functions are named as the modules
of ``torch.nn`` whose parameters they count.
"""

from __future__ import annotations

from typing import NamedTuple


class Weights(NamedTuple):
    """The parameters of ``count`` equal modules. ``name`` is the end of the module's path, as LoRA targets name it.

    ``kind``: linear (``nn.Linear`` or GPT-2's Conv1D in a block), outer (one outside the blocks), router (a matrix that
    is multiplied but is no Linear module), expert (one slice of a fused 3-d parameter), embedding (looked up), conv,
    vector (norms and other elementwise parameters), head (the output layer), tied (an output layer that is the input
    embedding: no parameters but a bias).
    ``share`` is the part of a stack's tokens that pass it: experts per token over experts.
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
    """Attention of ``layers`` equal blocks: every query sees at most ``window`` keys.

    ``cached`` elements per token are what generation keeps of keys and values: none for encoders. ``held`` is what the cache
    of Transformers has of a token where the model's code hands it more; ``holds_all``: of tokens that the window has left, too.
    """

    layers: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    cached: int = 0
    window: int | None = None
    stack: str = ""
    held: int = 0
    holds_all: bool = False


class State(NamedTuple):
    """Elements that a recurrent block keeps for each sequence, whatever its length."""

    name: str
    elements: int
    layers: int = 1


class Mixer(NamedTuple):
    """What ``layers`` blocks have in the place of plain attention, by the sizes of what training keeps of a token (cost/mixers.py).

    ``kind`` is a row there. ``width``: of all heads' values, or channels; ``keys``: of queries or of keys, before they are repeated
    for the heads of values; ``state``: of a channel, or of a head's key; ``chunk``: tokens that are computed together; ``rank``: of
    what is narrower than the hidden state in between.
    """

    kind: str
    width: int
    keys: int = 0
    heads: int = 0
    state: int = 0
    chunk: int = 1
    rank: int = 0
    layers: int = 1


Component = Weights | Scores | State | Mixer


def linear(name: str, inputs: int, outputs: int, bias: bool = False, **more) -> Weights:
    return Weights(name, inputs, outputs, outputs if bias else 0, **more)


def vector(name: str, size: int, count: int = 1) -> Weights:
    return Weights(name, 1, size, 0, count, "vector")


def embedding(name: str, rows: int, width: int) -> Weights:
    return Weights(name, rows, width, 0, 1, "embedding")


def conv(name: str, kernel: int, outputs: int, bias: bool = False) -> Weights:
    """``kernel``: weights that make one output (inputs of its group × positions)."""
    return Weights(name, kernel, outputs, outputs if bias else 0, 1, "conv")


def norm(name: str, size: int, arrays: int) -> list[Component]:
    """``arrays``: 2 LayerNorm with a bias, 1 without or RMSNorm, 0 without parameters."""
    return [vector(name, size, arrays)] if arrays else []


def repeat_block(components: list[Component], times: int) -> list[Component]:
    """The components of ``times`` equal blocks."""
    repeated: list[Component] = []
    for component in components:
        if isinstance(component, Weights):
            repeated.append(component._replace(count=component.count * times))
        else:
            repeated.append(component._replace(layers=component.layers * times))
    return repeated


def assign_stack(components: list[Component], stack: str) -> list[Component]:
    """The components as those of another stack.

    Its attention caches nothing: an encoder runs once per sequence, and generation repeats the decoder alone. It keeps
    no recurrent state either, so those are dropped.
    """
    assigned: list[Component] = []
    for component in components:
        if isinstance(component, Weights):
            assigned.append(component._replace(stack=stack))
        elif isinstance(component, Scores):
            assigned.append(component._replace(stack=stack, cached=0))
    return assigned
