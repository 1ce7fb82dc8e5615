"""How the work is divided over several devices, and how many of them are used."""

from generator.techniques.traits import Trait

ORDER = 5
PROVIDES = frozenset({Trait.COLLECTIVES})
