from generator.techniques.base import Published, Technique
from generator.techniques.quantization.bnb_nf4 import quantized_edits, quantizer_obstacle


class BnbInt8(Technique):
    """Serve the weights in 8 bits (bitsandbytes LLM.int8).

    Half the memory of 16 bits with answers that hardly change; slower at every batch size.
    """

    axis = "quantization"
    name = "bnb-int8"
    modes = ("infer",)
    quality = 1
    quality_note = "weights are rounded to 8 bits"
    evidence = (Published("https://arxiv.org/abs/2208.07339", "LLM.int8: no degradation up to 175B"),)

    def obstacle(self, case):
        return quantizer_obstacle(case)

    def effects(self, case):
        return {"quant": "int8"}

    def edits(self, case):
        return quantized_edits("quantization = BitsAndBytesConfig(load_in_8bit=True)")
