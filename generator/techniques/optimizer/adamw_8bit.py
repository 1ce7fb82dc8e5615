from generator.case.optimizer_states import pack_in_8_bits
from generator.techniques.base import Published
from generator.techniques.optimizers import Optimizer


class AdamW8bit(Optimizer):
    """AdamW with block-wise 8-bit states (bitsandbytes).

    What it does: 2 bytes of state per parameter in place of 8, rounded block by block.
    When it loses: where 32-bit states fit.
    Known problems: reported on par with 32-bit states; embeddings deserve a look. Not tested by DeepSpeed, not written
    for DTensor.
    """

    name = "adamw-8bit"
    optim = "adamw_bnb_8bit"
    state = pack_in_8_bits(2)
    quality = 1
    quality_note = "optimizer states are kept in 8 bits"
    requires = "bitsandbytes"
    evidence = (
        Published(
            "https://arxiv.org/abs/2110.02861",
            "8-bit states keep 32-bit performance on GPT-2, RoBERTa, MoE and machine translation",
        ),
    )
