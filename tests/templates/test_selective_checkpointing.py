"""The leaf that recomputes by operator: equal loss and gradients, fewer operators run again, and what is kept as the formula says."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from collections import Counter  # noqa: E402

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
}
PER_BLOCK = 7
"""products of a Llama block"""


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


def step(selective, autocast: bool, enabled: bool = True):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).train()
    if selective:
        selective(model)
    if enabled:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    tokens = torch.randint(0, 300, (2, 32))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    with Count() as count:
        loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters()], count.calls


@pytest.mark.parametrize("autocast", [False, True])
def test_loss_and_gradients_are_equal_and_half_of_the_products_run_again(load, autocast):
    leaf = load("selective_checkpointing")
    plain, full, selective = (
        step(None, autocast, enabled=False),
        step(None, autocast),
        step(leaf.keep_selected, autocast),
    )
    assert plain[0] == full[0] == selective[0]
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(plain[1], full[1], selective[1], strict=True))
    mm = torch.ops.aten.mm.default
    blocks = CONFIG["num_hidden_layers"]
    assert full[2][mm] - plain[2][mm] == (PER_BLOCK - 1) * blocks, "nothing needs what the last one returns"
    assert selective[2][mm] - plain[2][mm] == PER_BLOCK // 2 * blocks, "each second one is kept"
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert full[2][attention] == blocks and selective[2][attention] == 0
