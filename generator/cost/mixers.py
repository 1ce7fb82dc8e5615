"""What the blocks of a hybrid, and attention through a latent, keep for their backward pass beside what their projections read.

Tensors that the PyTorch code of Transformers 5.23 saves, by storage: a project installs neither mamba-ssm nor causal-conv1d nor
flash-linear-attention. Each row was solved for on shapes of many sizes (tests/cost/test_traces.py compares them with whole steps).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from generator.cost import constants as c
from generator.cost.execution import BYTES, Execution
from generator.model import Mixer

FLOAT = BYTES["float32"]
"""bytes of what is computed in float32 whatever the model's dtype"""


class Kept(NamedTuple):
    """Of a token: elements of the compute dtype, and bytes of other tensors."""

    elements: float
    others: float


def count_delta_rule(m: Mixer, run: Execution) -> Kept:
    """The gated delta rule (modeling_qwen3_next.py: torch_chunk_gated_delta_rule): queries and keys, normalized and times beta, in eight
    tensors of every value head; six of values; within a chunk five square matrices of each head; and the states between chunks."""
    of_keys, squares, states = m.heads * m.state, 5 * m.chunk * m.heads, m.width * m.state / m.chunk
    cast = 0.0  # autocast's products keep copies of what is float32
    if run.autocast_dtype:
        cast = (6.5 if run.train == "full" else 1.5) * of_keys
    others = FLOAT * (8 * of_keys + 6 * m.width + squares + 9 * m.heads + states)
    return Kept(4 * m.keys + 4 * m.width + m.heads + cast, others)


def count_mamba(m: Mixer, _run: Execution) -> Kept:
    """Mamba's scan, token by token: its state thrice in float32 for each, and what is discretized (modeling_jamba.py: slow_forward)."""
    of_states = m.width * m.state
    others = FLOAT * (2 * m.width + 3 * m.keys + m.rank + 3 * of_states)
    return Kept(7 * m.width + 3 * m.keys + 2 * m.rank + of_states, others)


def count_mamba2(m: Mixer, run: Execution) -> Kept:
    """Mamba-2's scan by chunks, with the gated norm after it in float32."""
    scan = count_mamba2_without_norm(m, run)
    return Kept(scan.elements - m.width, scan.others + FLOAT * 4 * m.width)


def count_mamba2_without_norm(m: Mixer, run: Execution) -> Kept:
    """B, C and their decays five times for every head, and three square matrices of a chunk (modeling_bamba.py: torch_forward)."""
    of_heads, squares, states = m.heads * m.state, m.heads * m.chunk, m.width * m.state / m.chunk
    if run.autocast_dtype:  # its products keep 16 bits of what they read
        others = FLOAT * (3 * m.width + of_heads + squares + m.heads)
        return Kept(6 * m.width + 4 * m.keys + 5 * of_heads + 2 * squares + 4 * states, others)
    others = FLOAT * (6 * m.width + 5 * of_heads + 3 * squares + 2 * states + m.heads)
    return Kept(4 * m.width + 4 * m.keys + 3 * m.heads, others)


def count_lightning(m: Mixer, _run: Execution) -> Kept:
    """MiniMax's linear attention by chunks (modeling_minimax.py: MiniMaxLightningAttention), with the norm's input in float32."""
    return Kept(11 * m.width + 1.5 * m.heads * m.chunk + m.width * m.state / m.chunk, FLOAT * m.width)


def count_gated_recurrence(m: Mixer, _run: Execution) -> Kept:
    """RG-LRU (modeling_recurrent_gemma.py): the gates' branches, and the state of each token in float32, once and times its decay."""
    return Kept(13 * m.width, FLOAT * 2 * m.width)


def count_short_convolution(m: Mixer, _run: Execution) -> Kept:
    """LFM2's, between two gates (modeling_lfm2.py: slow_forward)."""
    return Kept(5 * m.width, 0.0)


def count_latent_attention(m: Mixer, _run: Execution) -> Kept:
    """DeepSeek's: latents, before and after their norms, whose inputs are float32; queries and keys; what keys and values are views of;
    and the output with its row statistics (modeling_deepseek_v3.py)."""
    return Kept(2 * m.keys + m.heads * m.state + 2 * m.width + 2 * m.rank, FLOAT * (m.rank + m.heads))


KINDS: Mapping[str, Callable[[Mixer, Execution], Kept]] = {
    "gated-delta": count_delta_rule,
    "mamba": count_mamba,
    "mamba2": count_mamba2,
    "mamba2-without-norm": count_mamba2_without_norm,
    "lightning": count_lightning,
    "gated-recurrence": count_gated_recurrence,
    "short-convolution": count_short_convolution,
    "latent": count_latent_attention,
}


def count_kept(mixer: Mixer, run: Execution) -> Kept:
    """Of one token and block, beside what its projections read."""
    return KINDS[mixer.kind](mixer, run)


def find_gradient_share(mixer: Mixer) -> float:
    """Bytes of gradients that are alive while the mixer is differentiated, for each byte that it keeps."""
    return c.MIXER_GRADIENTS.get(mixer.kind, c.MIXER_GRADIENTS["others"])
