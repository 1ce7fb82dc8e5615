"""Which kernel scaled_dot_product_attention is priced as."""

from __future__ import annotations

from dataclasses import replace

import pytest
from making import A100, H100, case, cpu_device, llama

from generator.techniques.base import find_technique
from hwdetect.catalog import load


@pytest.mark.parametrize(
    ("device", "kernel"),
    [
        (H100, "cudnn"),
        (load("h200-sxm-141gb"), "cudnn"),
        (load("b200-sxm-180gb"), "cudnn"),
        (load("b300-sxm-270gb"), None),  # capability 10.3
        (A100, None),
        (load("rtx-4090"), None),
        (load("rtx-pro-6000-blackwell"), None),
        (load("mi300x-192gb"), None),
        (cpu_device(), None),
    ],
)
def test_pytorch_takes_cudnn_first_on_hopper_and_datacenter_blackwell(device, kernel):
    sdpa = find_technique("attention", "sdpa")
    assert sdpa.effects(case(device)).get("attention_kernel") == kernel
    assert "attention_kernel" not in sdpa.effects(case(device, mode="infer"))
    assert "attention_kernel" not in sdpa.effects(case(device, replace(llama(), head_dim=256)))
