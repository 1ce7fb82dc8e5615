"""What a configuration needs and how fast it is: formulas, pure, with the source of every number."""

from generator.cost.costmodel import CostModel

__all__ = ["CostModel"]
