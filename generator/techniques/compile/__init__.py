"""Whether torch.compile fuses the model's operators."""

from generator.techniques.traits import Trait

ORDER = 70
PROVIDES = frozenset({Trait.COMPILED_GRAPH, Trait.COMPILED_BLOCKS})
