"""Rows that stand one after the other attend as each does by itself: values, gradients, windows, grouped heads."""

from __future__ import annotations

from types import SimpleNamespace as Values

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leaves import load_leaf

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

HEADS, WIDTH = 4, 8


def make_inputs(lengths: list[int], kv_heads: int) -> tuple[list, torch.Tensor]:
    """Query, key and value of all rows, and where each begins."""
    generator = torch.Generator().manual_seed(sum(lengths))
    shapes = [(1, heads, sum(lengths), WIDTH) for heads in (HEADS, kv_heads, kv_heads)]
    tensors = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    return tensors, torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def attend_with_mask(query, key, value, limits, window, scaling) -> torch.Tensor:
    """Plain matrix products under a mask of tokens x tokens: causal, within a row, within the window."""
    tokens = query.shape[2]
    row = torch.searchsorted(limits, torch.arange(tokens), right=True)
    back = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
    seen = (row[:, None] == row[None, :]) & (back >= 0) & (back < (window or tokens))
    groups = HEADS // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


def check_rows(lengths: list[int], kv_heads: int, window: int | None, scaling: float) -> None:
    leaf = load_leaf("row_attention")
    tensors, limits = make_inputs(lengths, kv_heads)
    module = Values(num_key_value_groups=HEADS // kv_heads, is_causal=True)
    keywords = {"scaling": scaling, "dropout": 0.0, "sliding_window": window, "cu_seq_lens_q": limits}
    output, _ = leaf.attend_row_by_row(module, *tensors, None, **keywords)
    expected = attend_with_mask(*tensors, limits, window, scaling)
    assert output.shape == (1, sum(lengths), HEADS, WIDTH)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
    gradients, expected_gradients = (torch.autograd.grad((of * weights).sum(), tensors) for of in (output, expected))
    for gradient, of_mask in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, of_mask, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 1, 3, 7, 64])
def test_as_a_mask_would_have_it(kv_heads, window):
    check_rows([7, 1, 12, 3], kv_heads, window, WIDTH**-0.5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 24), min_size=1, max_size=9),
    st.sampled_from([4, 2, 1]),
    st.none() | st.integers(1, 30),
    st.sampled_from([WIDTH**-0.5, 1.0, 0.07]),
)
def test_any_rows(lengths, kv_heads, window, scaling):
    check_rows(lengths, kv_heads, window, scaling)


def test_without_limits_it_is_transformers_own():
    """Generation: a cache that is longer than the query, and its mask."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    leaf = load_leaf("row_attention")
    module = Values(num_key_value_groups=2, is_causal=True)
    (query, key, value), _ = make_inputs([9], 2)
    mask = torch.rand(1, 1, 2, 9, generator=torch.Generator().manual_seed(0)) > 0.3
    asked = (module, query[:, :, :2], key, value, mask)
    keywords = {"scaling": 0.5, "dropout": 0.0, "sliding_window": None}
    assert torch.equal(leaf.attend_row_by_row(*asked, **keywords)[0], sdpa_attention_forward(*asked, **keywords)[0])


@pytest.mark.parametrize(("lengths", "computes_in"), [([7, 5], torch.float32), ([7, 6], torch.bfloat16)])
def test_short_rows_are_computed_in_fp32(monkeypatch, lengths, computes_in):
    """Under autocast, where the rotary embedding has made queries and keys fp32; what comes out has the dtype of the values."""
    leaf = load_leaf("row_attention")
    monkeypatch.setattr(leaf, "SHORT_ROW", 6 if computes_in is torch.bfloat16 else 7)
    seen, function = [], torch.nn.functional.scaled_dot_product_attention

    def watch(query, key, value, **kwargs):
        output = function(query, key, value, **kwargs)
        seen.append(output.dtype)
        return output

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watch)
    (query, key, value), limits = make_inputs(lengths, HEADS)
    module = Values(num_key_value_groups=1, is_causal=True)
    keywords = {"scaling": 0.5, "dropout": 0.0, "cu_seq_lens_q": limits}
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = leaf.attend_row_by_row(module, query, key, value.bfloat16(), None, **keywords)
    assert seen == [computes_in] * 2 and output.dtype is torch.bfloat16
    expected = attend_with_mask(query, key, value, limits, None, 0.5)
    torch.testing.assert_close(output.float(), expected, rtol=2e-2, atol=2e-2)


@pytest.fixture
def varlen_attention(load):
    load("row_attention")
    return load("varlen_attention")


@pytest.mark.parametrize(("window", "limits"), [(None, (-1, 0)), (3, (2, 0)), (12, (-1, 0)), (40, (-1, 0))])
@pytest.mark.parametrize("autocast", [False, True])
def test_what_the_flash_kernel_is_given(varlen_attention, monkeypatch, window, limits, autocast):
    """PyTorch's own function and operator, forward and backward, on tensors without values: they check shapes and heads.
    Values need a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    calls, function = [], varlen_attention.varlen.varlen_attn

    def watch(*args, **kwargs):
        calls.append((args, kwargs))
        return function(*args, **kwargs)

    monkeypatch.setattr(varlen_attention.varlen, "varlen_attn", watch)
    module = Values(num_key_value_groups=2, is_causal=True)
    with FakeTensorMode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        query, key, value = (torch.randn(1, heads, 23, WIDTH, requires_grad=True) for heads in (HEADS, 2, 2))
        places = torch.zeros(5, dtype=torch.int32)
        keywords = {"cu_seq_lens_q": places, "cu_seq_lens_k": places, "max_length_q": 12, "max_length_k": 12}
        keywords |= {"scaling": 0.5, "dropout": 0.0, "sliding_window": window, "position_ids": None}
        output, _ = varlen_attention.attend_varlen(module, query, key, value, None, **keywords)
        output.sum().backward()
        assert output.shape == (1, 23, HEADS, WIDTH) and query.grad.shape == query.shape
    ((args, kwargs),) = calls
    assert all(tensor.dtype == (torch.bfloat16 if autocast else torch.float32) for tensor in args[:3])
    assert [tuple(tensor.shape) for tensor in args[:3]] == [(23, HEADS, WIDTH), (23, 2, WIDTH), (23, 2, WIDTH)]
    assert args[3] is places and args[4] is places and args[5:] == (12, 12)
    assert kwargs == {"scale": 0.5, "window_size": limits, "enable_gqa": True}


def test_dropout_is_left_to_sdpa(varlen_attention):
    """The flash kernel for rows drops nothing out: each row is then attended to by itself, as on a CPU."""
    torch.manual_seed(0)
    tensors, limits = make_inputs([5, 3], 2)
    module = Values(num_key_value_groups=2, is_causal=True)
    keywords = {"cu_seq_lens_q": limits, "max_length_q": 5, "scaling": 0.5, "dropout": 1e-9, "sliding_window": None}
    output, _ = varlen_attention.attend_varlen(module, *tensors, None, **keywords)
    torch.testing.assert_close(output, attend_with_mask(*tensors, limits, None, 0.5), rtol=1e-5, atol=1e-5)
