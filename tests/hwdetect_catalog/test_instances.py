"""Cloud instance types: complete, plausible, sourced, and reachable by name."""

import re
from collections import Counter

import pytest

from hwdetect import catalog
from hwdetect.cloud import find_instance, list_instances
from hwdetect.spec import parse_spec

GIB = 2**30
INSTANCES = list_instances()


def test_there_are_enough_of_each_cloud():
    clouds = Counter(instance.cloud for instance in INSTANCES)
    assert len(INSTANCES) >= 100
    assert {"aws", "gcp", "azure", "oci", "lambda", "coreweave"} <= set(clouds)
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
    if instance.network_bytes_per_s:
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
