from generator.techniques.base import Published, Technique
from generator.techniques.cache.dynamic import no_generation
from generator.techniques.edits import Edits, argument


class Static(Technique):
    """Room for all keys and values from the start.

    Fixed shapes, which compiled decoding needs. Holds the longest sequence even for a short answer.
    """

    axis = "cache"
    name = "static"
    modes = ("infer",)
    evidence = (
        Published("https://huggingface.co/docs/transformers/en/llm_optims", "static cache and torch.compile: up to 4x"),
    )

    def obstacle(self, case):
        return no_generation(case)

    def clash(self, other, case):
        if other.axis == "compile" and other.name == "off":
            return "without compilation a static cache only attends to empty positions"
        return None

    def effects(self, case):
        return {"cache": "static"}

    def edits(self, case):
        return Edits(
            infer_generate_arguments=(
                argument("cache_implementation", "static", "generate compiles the decoding step"),
            )
        )
