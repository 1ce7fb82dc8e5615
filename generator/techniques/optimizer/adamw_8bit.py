from generator.techniques.base import Published
from generator.techniques.optimizer.adamw import AdamW


class AdamW8bit(AdamW):
    """AdamW with block-wise 8-bit states (bitsandbytes).

    2 bytes of state a parameter in place of 8. Reported on par with 32-bit states; embeddings deserve a look.
    """

    name = "adamw-8bit"
    optim = "adamw_bnb_8bit"
    quality = 1
    quality_note = "optimizer states are kept in 8 bits"
    requires = "bitsandbytes"

    evidence = (
        Published(
            "https://arxiv.org/abs/2110.02861",
            "8-bit states keep 32-bit performance on GPT-2, RoBERTa, MoE and machine translation",
        ),
    )
