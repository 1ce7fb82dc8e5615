"""What a row of a task is: what a model does, and what planning and emission must know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from generator.model import ModelSpec

Refusal = tuple[str, str]
"""what is wrong, and what to do"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a model is used for.

    ``name`` is what ``--task`` takes, as Transformers and the hub call it. ``title`` is what a project does that infers, ``training``
    what one does that trains, ``learner`` what that makes, and ``trainer`` its class; without ``training`` nothing is trained.
    ``model_class`` loads the model. ``explain_model`` is why a model is not for it, or ``None``: of the model, its words in a message,
    and whether it must be trained already. ``suits`` says that a model whose use nobody names is for this.
    ``seq_len`` is the usual number of its ``positions`` (tokens, where nothing else is said) of a row that is trained on or computed.

    ``writes``: it goes on with a text, behind a server, whose engine may be any. All others are computed row by row, in batch.py:
    ``row_leaves`` are its modules there with their leaves, ``column`` and ``example`` show a row, ``packages`` open its files.
    ``generates``: it makes token after token; else one pass is the whole answer. ``rows_together`` are computed at a time.
    ``classifies``: it has a head for labels in the place of the vocabulary's, and every row a label.
    ``example_leaf`` makes an example of a row whose format nobody could look at.
    """

    name: str
    title: str
    training: str = ""
    learner: str = ""
    trainer: str = "Trainer"
    model_class: str
    explain_model: Callable[[ModelSpec, str, bool], Refusal | None]
    suits: Callable[[ModelSpec], bool] = lambda model: False
    seq_len: int
    positions: str = "tokens"
    writes: bool = False
    generates: bool = False
    classifies: bool = False
    row_leaves: Mapping[str, str] = field(default_factory=dict)
    rows_together: int = 32
    column: str = "text"
    example: str = "What a day!"
    packages: frozenset[str] = frozenset()
    example_leaf: str = "text"

    @property
    def trained(self) -> bool:
        return bool(self.training)

    @property
    def reads_media(self) -> bool:
        """Rows name files, and no tokenizer reads them."""
        return self.positions != "tokens"


def name_model(model: ModelSpec) -> str:
    """With its type and its class, as a refusal names it."""
    return f"{model.name} ({model.model_type}, {model.architecture or 'without a head'})"
