"""Cross-entropy without all logits at once: one chunk of tokens at a time, computed again in the backward pass."""

import sys

from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

CHUNK_TOKENS = 1024


def chunk_loss(model, label_smoothing: float = 0.0) -> None:
    """Make ``model`` return its loss without logits; the value and the gradients are those of its own forward."""
    if label_smoothing:  # Trainer takes the labels away, and computes it from the logits
        sys.exit(
            "--label_smoothing_factor needs all logits at once, and this plan never has them: take --pin loss=plain"
        )
    backbone = model.get_decoder()

    def summed_loss(hidden, targets):
        head = model.get_output_embeddings()  # PEFT may put another one in its place
        return F.cross_entropy(head(hidden).float(), targets, reduction="sum")

    def forward(input_ids, labels, num_items_in_batch=None, **inputs):
        outputs = backbone(input_ids=input_ids, **inputs)
        hidden = outputs.last_hidden_state.flatten(0, 1)
        targets = F.pad(labels, (0, 1), value=-100)[:, 1:].flatten()  # each token predicts the next
        chunks = zip(hidden.split(CHUNK_TOKENS), targets.split(CHUNK_TOKENS), strict=True)
        total = sum(checkpoint(summed_loss, h, t, use_reentrant=False) for h, t in chunks)
        count = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch
        routers = outputs.get("router_logits")  # of a mixture, where they are asked for
        return MoeCausalLMOutputWithPast(loss=total / count, router_logits=routers)

    model.forward = forward
