"""Cloud instance types: complete, plausible, sourced, and reachable by name."""

import re
from collections import Counter

import pytest

from hwdetect import catalog
from hwdetect.cloud import find_instance, list_instances
from hwdetect.spec import parse_spec

GIB = 2**30
INSTANCES = list_instances()
# in no table that is kept for the United States, or, of N1, with host and board apart
UNPRICED = {
    "Standard_ND128isr_GB300_v6", "a3-ultragpu-8g", "a4-highgpu-8g", "a4x-highgpu-4g", "p5e.48xlarge", "p6e-gb200.36xlarge",
    "trn2.48xlarge", "n1-standard-4-t4", "n1-standard-8-t4", "n1-standard-16-2t4", "n1-standard-32-4t4", "n1-standard-8-v100",
    "n1-standard-16-2v100", "n1-standard-32-4v100", "n1-standard-96-8v100",
}  # fmt: skip


def test_there_are_enough_of_each_cloud():
    clouds = Counter(instance.cloud for instance in INSTANCES)
    assert len(INSTANCES) >= 100
    assert {"aws", "gcp", "azure", "oci", "lambda", "coreweave", "nebius", "runpod", "crusoe"} <= set(clouds)
    assert clouds["aws"] >= 50 and clouds["gcp"] >= 25 and clouds["azure"] >= 15


def test_names_are_unique():
    names = [(instance.cloud, instance.name.lower()) for instance in INSTANCES]
    assert len(names) == len(set(names))
    assert len({name for _, name in names}) == len(names), "a bare name must mean one instance"


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.name)
def test_instance_is_plausible(instance):
    assert re.fullmatch(r"https://\S+", instance.source)
    assert 2 <= instance.vcpus <= 512 and instance.cores in (instance.vcpus, instance.vcpus // 2)
    assert 1 * GIB <= instance.memory_bytes / instance.vcpus <= 32 * GIB
    assert (instance.device is None) == (instance.devices == 0)
    if instance.device:
        assert catalog.load(instance.device).id == instance.device, "write the id, not an alias"
        assert 1 <= instance.devices <= 16
        # No cloud gives a GPU less than a third of its memory in RAM (g5g, g4dn.xlarge and the TPU hosts are lowest).
        assert instance.memory_bytes > 0.3 * instance.devices * catalog.load(instance.device).memory_bytes
    if instance.cloud == "runpod":  # between pods; all others are joined
        assert instance.network_bytes_per_s == 12.5e6
    elif instance.network_bytes_per_s:
        assert 1e8 < instance.network_bytes_per_s <= 1e12
    if instance.nvme_bytes:
        assert 1e11 <= instance.nvme_bytes <= 1e14
    if instance.price:
        assert re.fullmatch(r"https://\S+/[0-9a-f]{40}/\S+", instance.price.source), "the source pins a revision"
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", instance.price.read)
        # Between the cheapest T4 and the dearest GB300 by the hour.
        assert 0.1 < instance.price.usd_per_hour / max(1, instance.devices) < 40


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda i: i.name)
def test_every_instance_is_a_spec(instance):
    for text in (instance.name, f"{instance.cloud}:{instance.name}", instance.name.upper()):
        hardware = parse_spec(text)
        assert len(hardware.boards) == instance.devices
        assert {board.device for board in hardware.boards} == ({instance.device} if instance.device else set())
        assert hardware.memory.total_bytes == instance.memory_bytes
        assert hardware.cpu.budget == instance.vcpus
        assert len(hardware.links) == instance.devices * (instance.devices - 1) // 2


def test_well_known_instances():
    p5 = parse_spec("2xaws:p5.48xlarge")
    assert p5.nodes.count == 2 and len(p5.boards) == 8 and {port.kind for port in p5.network} == {"efa"}
    assert len(p5.network) == 32 and sum(port.rate_bytes_per_s for port in p5.network) == 400e9 and p5.cpu.cores == 96
    assert p5.disks[0].kind == "nvme" and p5.disks[0].total_bytes == 30_720 * 10**9
    assert find_instance("g5.xlarge").device == "a10g"
    assert find_instance("aws:a2-highgpu-1g") is None
    assert "amx_bf16" in find_instance("c7i.4xlarge").isa_features
    assert find_instance("c7g.16xlarge").architecture == "aarch64"


def test_a_number_in_a_name_is_no_number_of_nodes():
    """RunPod's types are named by their number of boards; nodes come before it, as with any instance."""
    eight = parse_spec("2x8x_H100-SXM_SECURE")
    assert eight.nodes.count == 2 and len(eight.boards) == 8
    assert len(parse_spec("8xh100-sxm-80gb").boards) == 8


def test_prices_say_where_and_which_are_spot():
    """A type that its cloud's home region has not is priced where the United States are cheapest, and its spot price is of there."""
    far = find_instance("a3-megagpu-8g").price
    assert far.region == "us-east4" and far.usd_per_hour == 92.9376 and far.spot_usd_per_hour == 23.2752
    assert find_instance("Standard_ND96isr_H200_v5").price.region == "eastus2"
    assert find_instance("a2-highgpu-1g").price.region == "us-central1"
    # A host of TPUs is paid by the chip, 1.20 dollars each; v5p's slices are named by cores, two a chip.
    assert find_instance("ct5lp-hightpu-4t").price.usd_per_hour == 4 * 1.2
    assert find_instance("ct5p-hightpu-4t").price.usd_per_hour == 4 * 4.2
    pods = [i for i in INSTANCES if i.cloud == "runpod"]
    assert len(pods) == 26 and all(i.price and i.price.region == "US" and not i.price.spot_usd_per_hour for i in pods)
    assert {i.name for i in INSTANCES if i.price is None} == UNPRICED


def test_spot_prices_are_of_the_region_and_say_their_day():
    """AWS's are its own feed's of another day than its prices on demand; nobody pays more for what can be taken away."""
    p4d = find_instance("p4d.24xlarge").price
    assert (p4d.region, p4d.usd_per_hour, p4d.spot_usd_per_hour) == ("us-east-1", 21.9576, 14.2313)
    assert p4d.read == "2026-07-20" and p4d.spot_read == "2026-08-06" and "spotinfo" in p4d.spot_source
    priced = [i.price for i in INSTANCES if i.price and i.price.spot_usd_per_hour]
    assert all(0.05 * price.usd_per_hour < price.spot_usd_per_hour < price.usd_per_hour for price in priced)
    assert all(price.spot_read and re.fullmatch(r"https://\S+/[0-9a-f]{40}/\S+", price.spot_source) for price in priced)
    boards = [i for i in INSTANCES if i.cloud == "aws" and i.device and i.price]
    without = {i.name.partition(".")[0] for i in boards if not i.price.spot_usd_per_hour}
    assert boards and without == {"g7"}, (
        "every type with a board but those that are younger than the feed that was read"
    )
    assert find_instance("l40s-48gb.10x").price.spot_usd_per_hour == 10 * 0.5


def test_efa_devices_are_counted_where_there_are_any():
    """EC2 joins instances by EFA from one card of 100 Gbit/s to 32; GB200's are not in the source."""
    for instance in INSTANCES:
        fabric = instance.network_kind == "efa" and instance.name not in ("trn1.2xlarge", "p6e-gb200.36xlarge")
        assert (instance.efa is not None) == fabric, instance.name
        if instance.efa:
            assert 12.5e9 <= instance.network_bytes_per_s / instance.efa <= 50e9


def test_azure_pairs_are_joined_by_bridges():
    joined = {(x.a, x.b) for x in parse_spec("Standard_NC96ads_A100_v4").links if x.kind == "nvlink"}
    assert joined == {(0, 1), (2, 3)}
