"""A machine from a few words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwdetect import catalog
from hwdetect.described import ASSUMED_CPUS_PER_DEVICE
from hwdetect.spec import SpecError, parse_spec

GIB = 2**30


def assumed(hardware) -> str:
    return " | ".join(f"{note.field}: {note.why}" for note in hardware.notes)


@pytest.mark.parametrize(
    ("text", "device", "count", "nodes"),
    [
        ("h200", "h200-sxm-141gb", 1, 1),
        ("1xh100-sxm-80gb", "h100-sxm-80gb", 1, 1),
        ("1xrtx-4090", "rtx-4090", 1, 1),
        ("1xt4", "t4", 1, 1),
        ("8xh100-sxm-80gb", "h100-sxm-80gb", 8, 1),
        ("2x8xh100-sxm-80gb", "h100-sxm-80gb", 8, 2),
        ("1250x8xh100", "h100-sxm-80gb", 8, 1250),
        (" 4 x A100-80GB ", "a100-sxm-80gb", 4, 1),
        ("3×rtx-3090", "rtx-3090", 3, 1),
        ("8xmi300x", "mi300x", 8, 1),
        ("72xgb200", "gb200", 72, 1),
    ],
)
def test_devices(text, device, count, nodes):
    hardware = parse_spec(text)
    known = catalog.load(device)
    assert [b.device for b in hardware.boards] == [device] * count
    assert [a.memory_bytes for a in hardware.accelerators] == [known.memory_bytes] * count
    assert [a.board for a in hardware.accelerators] == list(range(count))
    assert hardware.nodes.count == nodes and hardware.nodes.source == "spec"
    assert len(hardware.links) == count * (count - 1) // 2
    assert bool(hardware.network) == (nodes > 1)
    board = hardware.boards[0]
    assert (board.vendor, board.compute_capability) == (known.vendor, known.compute_capability)
    assert catalog.match(board.vendor, board.name, board.pci_id, board.compute_capability, board.memory_bytes) == device


@pytest.mark.parametrize("device_id", catalog.list_ids())
def test_every_device_can_be_asked_for(device_id):
    hardware = parse_spec(f"1x{device_id}")
    assert hardware.accelerators[0].memory_bytes == catalog.load(device_id).memory_bytes
    assert hardware.memory.total_bytes >= hardware.accelerators[0].memory_bytes
    assert hardware.cpu.budget >= 1 and hardware.cpu.isa_features


def test_what_the_text_does_not_say_is_noted():
    hardware = parse_spec("2x8xh100-sxm-80gb")
    assert hardware.cpu.cores == 8 * ASSUMED_CPUS_PER_DEVICE
    assert hardware.memory.total_bytes == 2 * 8 * catalog.load("h100-sxm-80gb").memory_bytes
    for field in ("cpu", "memory.total_bytes", "network", "software"):
        assert f"{field}: not in the spec: assumed" in assumed(hardware)


def test_what_the_text_says_is_not_assumed():
    hardware = parse_spec("4xrtx-4090:64,256gb")
    assert (hardware.cpu.cores, hardware.memory.total_bytes) == (64, 256 * GIB)
    assert "cpu:" not in assumed(hardware) and "memory" not in assumed(hardware)


def test_switch_connected_boards():
    links = parse_spec("8xh100-sxm-80gb").links
    assert {(link.kind, link.bandwidth_bytes_per_s, link.p2p) for link in links} == {("nvswitch", 450e9, True)}


@pytest.mark.parametrize("device", ["rtx-3090", "rtx-4090", "rtx-5090"])
def test_geforce_boards_have_no_peer_access(device):
    links = parse_spec(f"4x{device}").links
    assert {link.p2p for link in links} == {False}
    assert {link.kind for link in links} == {"sys"}
    assert all(2e10 < link.bandwidth_bytes_per_s < 7e10 for link in links)


def test_professional_boards_have_peer_access_over_pcie():
    assert {(link.kind, link.p2p) for link in parse_spec("2xl40s").links} == {("sys", True)}


def test_bridges_join_pairs_only_where_asked_for():
    joined = {(link.a, link.b) for link in parse_spec("4xrtx-3090+nvlink").links if link.kind == "nvlink"}
    assert joined == {(0, 1), (2, 3)}
    assert all(link.p2p for link in parse_spec("2xrtx-a6000+nvlink").links)


def test_the_cube_mesh_of_v100_servers():
    links = parse_spec("8xv100-sxm-32gb").links
    count = {
        device: sum(x.count or 0 for x in links if device in (x.a, x.b) and x.kind == "nvlink") for device in range(8)
    }
    assert set(count.values()) == {6}  # every V100 has six links
    assert {x.bandwidth_bytes_per_s / x.count for x in links if x.kind == "nvlink"} == {25e9}
    assert sum(x.kind == "sys" for x in links) == 12
    p100 = parse_spec("8xp100-sxm-16gb").links
    assert {sum(x.count or 0 for x in p100 if d in (x.a, x.b) and x.kind == "nvlink") for d in range(8)} == {4}


def test_point_to_point_links_share_the_bandwidth_of_a_device():
    links = parse_spec("8xmi300x").links
    assert {(x.kind, x.count, x.bandwidth_bytes_per_s) for x in links} == {("xgmi", 1, 64e9)}


@pytest.mark.parametrize(
    ("text", "cores", "gib", "has", "lacks"),
    [
        ("cpu:16", 16, 64, {"avx2", "avx512f"}, {"avx512_bf16", "amx_bf16"}),
        ("cpu:16+bf16", 16, 64, {"avx512f", "avx512_bf16", "avx512_vnni"}, {"amx_bf16"}),
        ("cpu:16+amx,256gb", 16, 256, {"amx_bf16", "amx_tile", "amx_int8"}, set()),
        ("cpu:4+avx2,8GB", 4, 8, {"avx2"}, {"avx512f"}),
        ("cpu:64+sve", 64, 256, {"sve", "bf16"}, {"avx2"}),
        ("cpu:64+arm", 64, 256, {"neon"}, {"sve", "avx2"}),
        ("cpu:16,1.5gb", 16, 1.5, set(), set()),
    ],
)
def test_cpu(text, cores, gib, has, lacks):
    hardware = parse_spec(text)
    assert (hardware.cpu.cores, hardware.cpu.budget) == (cores, cores)
    assert hardware.memory.total_bytes == gib * GIB
    assert has <= set(hardware.cpu.isa_features) and not lacks & set(hardware.cpu.isa_features)
    assert not hardware.boards and not hardware.accelerators
    assert hardware.cpu.architecture == ("aarch64" if "neon" in has | {*hardware.cpu.isa_features} else "x86_64")


def test_plain_cpu_says_what_it_assumed():
    assert "cpu.cores: not in the spec: assumed 8 cores" in assumed(parse_spec("cpu"))
    assert assumed(parse_spec("cpu:16+bf16,64gb")) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("8xh1000", "h100"),
        ("p5.48xlarg", "p5.48xlarge"),
        ("0xt4", "0 is not a number of devices"),
        ("cpu:0", "0 is not a number of CPUs"),
        ("cpu:x", "':x' was not understood"),
        ("cpu:16+quantum", "+quantum"),
        ("cpu:16+arm+amx", "different CPUs"),
        ("t4+nvlink", "no optional NVLink bridge"),
        ("t4+amx", "+amx is not understood for t4"),
        ("500xt4", "at most 128"),
        ("3x3x3xh100", "3xh100"),
        ("4xjetson-orin", "has one"),
        ("2x2xp5.48xlarge", "one number"),
        ("h100,80", "was not understood"),
        ("cpu:4,0gb", "without memory"),
        ("h100, gb", "was not understood"),
        ("../../etc/passwd", "is no device"),
        ("h100;rm -rf /", "is no device"),
        ("999999999xt4", "is not a number of devices"),
        ("9" * 5000 + "xt4", "too long"),
        ("9" * 50 + "xt4", "is no device"),
        ("cpu:4," + "9" * 50 + "gb", "was not understood"),
    ],
)
def test_a_bad_spec_says_what_was_not_understood(text, says):
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)


@given(st.text(max_size=40) | st.text(alphabet="0123456789x:+,.gbhcpu-ta", max_size=30))
def test_any_text_is_a_machine_or_a_spec_error(text):
    try:
        hardware = parse_spec(text)
    except SpecError as error:
        assert str(error)
    else:
        assert hardware.nodes.count >= 1


def test_same_text_same_machine():
    assert parse_spec("8xh100-sxm-80gb") == parse_spec("8XH100-SXM-80GB")
