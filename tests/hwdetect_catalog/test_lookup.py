"""Reading the catalogue: names, aliases, close matches, how little is parsed, and what is not imported."""

import subprocess
import sys

import pytest

from hwdetect import catalog


def test_aliases_mean_the_common_form():
    assert catalog.load("h200") is catalog.load("h200-sxm-141gb")
    assert catalog.load("a100-80gb").id == "a100-sxm-80gb"
    assert catalog.load("v100-16gb").id == "v100-sxm-16gb"
    assert catalog.load(" RTX4090 ").id == "rtx-4090"


@pytest.mark.parametrize(
    ("name", "device_id"),
    [
        ("l4-24gb", "l4"),
        ("nvidia-l4", "l4"),
        ("geforce-rtx-3090", "rtx-3090"),
        ("mi300x-192gb", "mi300x"),
        ("b200-sxm-192gb", "b200-sxm-180gb"),
        ("h100-sxm-81gb", None),
        ("v100-sxm-40gb", None),
        ("gpu_1x_a10", None),
        ("a100_80g", None),
        ("h100;rm -rf /", None),
        ("the h100", None),
    ],
)
def test_a_maker_or_a_right_size_is_forgiven_and_nothing_else(name, device_id):
    assert catalog.resolve(name) == device_id


def test_an_unknown_name_gets_its_neighbours():
    with pytest.raises(catalog.UnknownDevice) as caught:
        catalog.load("h100-sxm-81gb")
    assert isinstance(caught.value, KeyError)
    assert "h100-sxm-80gb" in caught.value.close
    assert "h100-sxm-81gb" in str(caught.value) and "h100-sxm-80gb" in str(caught.value)


@pytest.mark.parametrize("name", ["", "..", "../h100", "h100.toml", "/etc/passwd", "\0", "a" * 10_000])
def test_a_name_is_never_a_path(name):
    assert catalog.resolve(name) is None


def test_loading_one_parses_one_file():
    code = """
from hwdetect import catalog
assert catalog.load("h100-sxm-80gb").memory_bytes
print(catalog._parse_device.cache_info().currsize)
"""
    assert _run(code).strip() == "1"


def test_matching_parses_few_files():
    code = """
from hwdetect import catalog
assert catalog.match("nvidia", "NVIDIA H200", None, "9.0", 143771 * 2**20)
print(catalog._parse_device.cache_info().currsize)
"""
    assert 1 <= int(_run(code)) <= 20  # those with "h200" in their names, of some two hundred


def test_nothing_heavy_is_imported():
    code = "import sys; import hwdetect.spec, hwdetect.catalog; print([m for m in ('torch', 'pydantic') if m in sys.modules])"
    assert _run(code).strip() == "[]"


def test_a_device_is_read_once():
    assert catalog.load("h100-sxm-80gb") is catalog.load("h100-sxm-80gb")


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
