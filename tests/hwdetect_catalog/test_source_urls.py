"""Every number's source is a page of a known publisher, in the shape that its addresses have, about that board.

What this cannot see, as nothing is fetched: whether the page is still there, and whether it says the number. The pages about
single boards carry the board's name in their address; a maker's general page (a white paper, a list) does not.
"""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from urllib.parse import urlsplit

import pytest

from hwdetect import catalog
from hwdetect.catalog.matching import split_words
from hwdetect.pci_vendors import PCI_VENDORS

# Anyone can open a repository: these are cited, for recordings, lists of a cloud's machines and facts of drivers.
REPOSITORIES = (
    "AI-Hypercomputer/cloud-accelerator-diagnostics",
    "NVIDIA/cutlass",
    "NVIDIA/go-nvml",
    "NVIDIA/k8s-test-infra",
    "Project-HAMi/HAMi-WebUI",
    "api-evangelist/coreweave",
    "dstackai/dstack",
    "dstackai/gpuhunt",
    "huggingface/huggingface.js",
    "influxdata/telegraf",
    "iree-org/iree",
    "mlcommons/training_results_v5.1",
    "skypilot-org/skypilot-catalog",
    "stas00/ml-engineering",
    "tinygrad/open-gpu-kernel-modules",
    "utkuozdemir/nvidia_gpu_exporter",
)
# Who may be cited for a number, and what the path of an address there looks like.
PUBLISHERS = {
    # makers
    "www.nvidia.com": r"/(en-us|en-gb|content|data-center)/.+",
    "forums.developer.nvidia.com": r"/t/[\w-]+/\d+",
    "developer.nvidia.com": r"/cuda-gpus|/blog/[\w-]+/",
    "images.nvidia.com": r"/.+\.pdf",
    "resources.nvidia.com": r"/en-us-[\w/-]+",
    "docs.nvidia.com": r"/(cuda|vgpu|dgx|deeplearning)/.+",
    "www.amd.com": r"/(en|content|system)/.+",
    "rocm.docs.amd.com": r"/en/latest/[\w/.-]+\.html",
    "gpuopen.com": r"/learn/[\w-]+/",
    "www.intel.com": r"/content/www/us/en/.+",
    "cdrdv2-public.intel.com": r"/\d+/.+",
    "developer.apple.com": r"/metal/.+\.pdf",
    "e.huawei.com": r"/cn/documents/.+",
    "www.hiascend.com": r"/hardware/.+",
    "docs.habana.ai": r"/en/latest/[\w/.-]+\.html",
    # clouds, of what they rent
    "aws.amazon.com": r"/ec2/[\w/.-]+",
    "d1.awsstatic.com": r"/[\w/.-]+\.pdf",
    "awsdocs-neuron.readthedocs-hosted.com": r"/en/latest/[\w/.-]+\.html",
    "cloud.google.com": r"/(tpu|compute)/.+",
    "learn.microsoft.com": r"/en-us/azure/.+",
    "docs.oracle.com": r"/en-us/iaas/[\w/.-]+",
    "docs.lambda.ai": r"/public-cloud/[\w/.-]+",
    "docs.coreweave.com": r"/docs/[\w/.-]+",
    # databases, papers and code
    "www.techpowerup.com": r"/gpu-specs/[a-z0-9-]+\.c\d{3,4}",
    "pci-ids.ucw.cz": r"/read/PC/[0-9a-f]{4}",
    "en.wikipedia.org": r"/wiki/[\w()%.#-]+",
    "arxiv.org": r"/abs/\d{4}\.\d{4,5}",
    "github.com": rf"/({'|'.join(REPOSITORIES)})(/[\w./-]+)?",
    "pypi.org": r"/project/[\w.-]+/",
    "chipsandcheese.com": r"/p/[\w-]+",
    "www.pugetsystems.com": r"/labs/hpc/[\w/-]+",
}
# Pages that stand for no publisher, each for one board that its maker does not describe.
SINGLE_PAGES = {
    "https://zangshuxian.com/new/674733024499207168": "h20 h20-3e-141gb",
    "https://willitrunai.com/es/gpus/h20-96gb": "h20 h20-3e-141gb",
    "https://github.com/NVIDIA/nvbandwidth/issues/48": "h20-3e-141gb",
    "https://github.com/tile-ai/TileOPs/pull/1658": "h20-3e-141gb",
    "https://github.com/sgl-project/sglang/issues/6823": "h20-3e-141gb",
    "https://www.tomshardware.com/pc-components/gpus/new-nvidia-ai-gpus-designed-to-get-around-us-export-bans-come-to-china-"
    "h20-l20-and-l2-to-fill-void-left-by-restricted-models": "l2",
    "https://github.com/awslabs/amazon-eks-ami/issues/2768": "rtx-pro-4500-blackwell-server",
    "https://www.exxactcorp.com/blog/benchmark/nvidia-rtx-pro-4500-blackwell-llm-inference-benchmark": "rtx-pro-4500-blackwell-server",
    "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47": "gb10",
    "https://github.com/JustAResearcher/gpu-unlock-ada": "rtx-4090-48gb",
    "https://tweakers.net/nieuws/203182/nvidia-introduceert-a800-gpu-voor-china-die-niet-onder-exportrestricties-vs-valt.html": "a800-pcie-80gb a800-pcie-40gb",
    "https://www.philisun.com/technical-analysis/nvidia-h800-vs-h100-a-technical-deep-dive-into-politically-defined-ai-chips/": "h800-pcie-80gb",
    "https://zolotukhin.ai/blog/2026-05-18-intel-arc-pro-b70-deep-dive-and-zincs-t-intel-plan/": "arc-pro-b70",
    "https://awesomeagents.ai/hardware/apple-m5-max": "m5-max",
    "https://www.technetbooks.com/2026/03/apple-m5-pro-max-chips-debut-fusion.html": "m5-pro",
}
# Boards that a page about another name describes, and why.
OTHER_NAME = {
    ("b100", "b200.c4210"): "the page of the chip",
    ("arc-pro-b60", "arc-b580.c4244"): "the page of a board with its chip",
}

TEXTS = {
    **{f"devices/{device_id}": text for device_id, text in catalog.read_texts().items()},
    **{name: (files("hwdetect") / name).read_text(encoding="utf-8") for name in ("instances.toml", "operations.toml")},
}


def list_urls(text: str) -> set[str]:
    """Every string of a file that begins like an address."""

    def walk(value):
        if isinstance(value, str) and "://" in value:
            yield value
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from walk(inner)

    return set(walk(tomllib.loads(text)))


def find_fault(url: str) -> str | None:
    """What is wrong with an address, ``None`` where it is one of a known publisher."""
    parts = urlsplit(url)
    if url in SINGLE_PAGES:
        return None
    if parts.scheme != "https" or parts.hostname is None or parts.port or parts.username:
        return "no plain https address"
    if parts.hostname not in PUBLISHERS:
        return f"{parts.hostname} is no publisher that the list knows"
    return None if re.fullmatch(PUBLISHERS[parts.hostname], parts.path) else f"no page of {parts.hostname} is called so"


@pytest.mark.parametrize("name", TEXTS)
def test_sources_are_pages_of_known_publishers(name):
    assert {url: fault for url in list_urls(TEXTS[name]) if (fault := find_fault(url))} == {}


@pytest.mark.parametrize(
    "url",
    [
        "http://www.nvidia.com/en-us/data-center/h100/",
        "https://www.nvidia.com.example.org/en-us/data-center/h100/",
        "https://www.techpowerup.com/gpu-specs/h100",
        "https://pci-ids.ucw.cz/read/PC/nvidia",
        "https://example.com/h100",
        "https://arxiv.org/abs/h100",
        "https://github.com/someone/gpu-facts",
        "https://user@www.nvidia.com/en-us/h100",
    ],
)
def test_an_invented_address_is_refused(url):
    assert find_fault(url)


def test_no_publisher_is_listed_in_vain():
    cited = {urlsplit(url).hostname for text in TEXTS.values() for url in list_urls(text)}
    assert set(PUBLISHERS) <= cited
    assert set(SINGLE_PAGES) <= {url for text in TEXTS.values() for url in list_urls(text)}
    assert all(page in TEXTS[f"devices/{device_id}"] for device_id, page in OTHER_NAME)


@pytest.mark.parametrize("device", catalog.list_devices(), ids=lambda device: device.id)
def test_a_page_about_one_board_is_about_this_one(device):
    names = set(split_words(device.name)) | set(split_words(device.id))
    models = {word for word in names if re.search(r"\d", word) and not re.fullmatch(r"\d+(gb|g)|hbm\d\w?", word)}
    for url in list_urls(TEXTS[f"devices/{device.id}"]):
        page = url.rsplit("/", 1)[-1]
        if "techpowerup.com" in url and models and (device.id, page) not in OTHER_NAME:
            assert models & set(split_words(page.split(".")[0].replace("-", " "))), url
        if url in SINGLE_PAGES:
            assert device.id in SINGLE_PAGES[url].split()
        if "pci-ids.ucw.cz" in url:
            vendor = "habana" if device.id.startswith("gaudi") else device.vendor
            assert url.endswith(PCI_VENDORS[vendor])


# What was read, and how, stands in devices/README.md.
OPENED = re.compile(
    r"https://(www\.techpowerup\.com/gpu-specs|pci-ids\.ucw\.cz|github\.com|pypi\.org|cloud\.google\.com/tpu/docs/(v5e|v5p|v6e|tpu7x)"
    r"|awsdocs-neuron\.readthedocs-hosted\.com/en/latest/about-neuron/arch/neuron-hardware/(trainium2?|inferentia2)\.html"
    r"|chipsandcheese\.com/p/nvidias-b200-keeping-the-cuda-juggernaut)\b"
)
COMPARED = "https://www.techpowerup.com/gpu-specs/"
"""the table with which `make devices-audit` compares every figure of a board that cites it"""


def list_unmarked(text: str) -> list[str]:
    """Lines with a source that nobody opened, that no table bears out, and that does not say so."""
    if COMPARED in text:
        return []
    cited = [
        (line, match[1]) for line in text.splitlines() if (match := re.search(r'"(https://[^"]+)"(?!.*"https)', line))
    ]
    return [
        line for line, url in cited if not OPENED.match(url) and url not in SINGLE_PAGES and "not opened" not in line
    ]


@pytest.mark.parametrize("device_id", catalog.list_ids())
def test_every_source_was_opened_or_is_marked(device_id):
    assert list_unmarked(catalog.read_texts()[device_id]) == []


def test_an_unmarked_source_is_found():
    page = 'source = "https://cloud.google.com/tpu/docs/v2"'
    assert list_unmarked(page) == [page] and list_unmarked(f"{page}  # not opened") == []
    assert list_unmarked('source = "https://cloud.google.com/tpu/docs/v5e"') == []
