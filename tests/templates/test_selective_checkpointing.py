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


class WritingRope(torch.autograd.Function):
    """Rotates as Liger does: in place, by a kernel that PyTorch does not see."""

    @staticmethod
    def rotate(heads, cosines, sines, sign: int):
        flat = heads.transpose(1, 2).contiguous()
        values, half = flat.detach().numpy(), heads.shape[-1] // 2
        cos, sin = cosines.numpy()[:, :, None, :half], sign * sines.numpy()[:, :, None, :half]
        left, right = values[..., :half].copy(), values[..., half:].copy()
        values[..., :half], values[..., half:] = left * cos - right * sin, right * cos + left * sin
        return flat.transpose(1, 2)

    @staticmethod
    def forward(ctx, queries, keys, cosines, sines):
        ctx.save_for_backward(cosines, sines)
        return tuple(WritingRope.rotate(heads, cosines, sines, 1) for heads in (queries, keys))

    @staticmethod
    def backward(ctx, *gradients):
        tables = ctx.saved_tensors
        return *(WritingRope.rotate(of.clone(), *tables, -1) for of in gradients), None, None


def test_kernels_that_write_over_what_is_kept_give_other_gradients(load, monkeypatch):
    """Why Liger is excluded: the loss is right, and nothing is said."""
    leaf, module = load("selective_checkpointing"), transformers.models.llama.modeling_llama
    right = step(leaf.keep_selected, False)
    monkeypatch.setattr(module, "apply_rotary_pos_emb", lambda q, k, cos, sin, **_: WritingRope.apply(q, k, cos, sin))
    written, kept = step(None, False), step(leaf.keep_selected, False)
    assert written[0] == kept[0] == pytest.approx(right[0])
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(written[1], right[1], strict=True))
    assert not all(torch.allclose(a, b, atol=1e-6) for a, b in zip(kept[1], right[1], strict=True))


def test_attention_that_drops_out_runs_again(load):
    """A kept one would not draw in the repetition, and the dropouts after it would draw its numbers."""
    leaf, aten = load("selective_checkpointing"), torch.ops.aten
    heads = torch.zeros(1, 2, 4, 8)

    def keeps(operator, *args) -> bool:
        context = torch.utils.checkpoint.SelectiveCheckpointContext(is_recompute=False)
        chosen = leaf.choose({False: 0, True: 0}, context, operator, *args)
        return chosen == torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE

    for operator, place in leaf.ATTENTION.items():
        names = [argument.name for argument in operator._schema.arguments]
        assert (names[place] == "dropout_p") if place is not None else "dropout_p" not in names
    flash, efficient = aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention
    assert keeps(flash, heads, heads, heads) and keeps(flash, heads, heads, heads, 0.0, True)
    assert not keeps(flash, heads, heads, heads, 0.1, True)
    assert keeps(efficient.default, heads, heads, heads, None, True)
    assert not keeps(efficient.default, heads, heads, heads, None, True, 0.1)
    assert keeps(torch.ops.torch_attn._varlen_attn.default, heads[0], heads[0], heads[0])
