from generator.techniques.base import Published, Technique


class StaticDecode(Technique):
    """Compile the decoding step (generate does it by itself on a GPU once the cache is static).

    One graph for every token: launch overhead disappears. Compiles again when batch or maximum length grow; quantizers that
    are not compileable and weights on CPU or disk switch it off.
    """

    axis = "compile"
    name = "static-decode"
    compiles = True
    modes = ("infer",)
    evidence = (
        Published("https://huggingface.co/docs/transformers/en/llm_optims", "static cache and torch.compile: up to 4x"),
    )

    def obstacle(self, case):
        if case.portable:
            return "the machine is not known"
        if case.on_cpu:
            return "generate compiles by itself on accelerators only"
        if case.capability and case.capability < (7, 0):
            return "Triton needs compute capability 7.0"
        return None

    def clash(self, other, case):
        if other.axis == "cache" and other.name != "static":
            return "only a static cache has the fixed shapes that the compiled step needs"
        if other.axis == "quantization" and other.name.startswith("bnb"):
            return "bitsandbytes layers are not compileable"
        return None

    def effects(self, case):
        return {"compile": "reduce-overhead"}
