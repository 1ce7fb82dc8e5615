"""A machine from a few words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwdetect import catalog, checks, detect, mig
from hwdetect.described import ASSUMED_CPUS_PER_DEVICE
from hwdetect.spec import SpecError, parse_spec
from tests.hwdetect.conftest import index_rows, recordings

__all__ = ["recordings"]

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
        ("gv100", "quadro-gv100", 1, 1),
        ("2xm40", "m40-12gb", 2, 1),
        ("rtx-pro-4000-sff", "rtx-pro-4000-blackwell-sff", 1, 1),
        ("rtx-pro-5000-72gb", "rtx-pro-5000-72gb-blackwell", 1, 1),
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
    device = catalog.load(device_id)
    assert len(hardware.boards) == 1 and len(hardware.accelerators) == device.tiles
    assert sum(a.memory_bytes for a in hardware.accelerators) == device.memory_bytes
    assert hardware.memory.total_bytes >= hardware.accelerators[0].memory_bytes
    assert hardware.cpu.budget >= 1 and hardware.cpu.isa_features


def test_tiles_are_devices_of_their_own_on_one_board():
    hardware = parse_spec("2xgpu-max-1550")
    assert [(a.board, a.profile) for a in hardware.accelerators] == [
        *((0, "tile 0"), (0, "tile 1")),
        *((1, "tile 0"), (1, "tile 1")),
    ]
    assert {a.compute_share for a in hardware.accelerators} == {0.5}
    assert sum(a.memory_bytes for a in hardware.accelerators) == sum(b.memory_bytes for b in hardware.boards)


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
        ("rtx-4090,rtx-3090", "a spec is of equal devices"),
        ("4xa100-sxm-80gb + 4xh100-sxm-80gb", "detect --json"),
        ("../../etc/passwd", "is no device"),
        ("rtx4090x2", "the number stands in front: 2xrtx-4090"),
        ("4090 x2", "the number stands in front: 2xrtx-4090"),
        ("h100-sxm-80gb *8", "the number stands in front: 8xh100-sxm-80gb"),
        ("h100;rm -rf /", "is no device"),
        ("999999999xt4", "is not a number of devices"),
        ("99999999999xh100", "99999999999 is not a number of devices or nodes (1 to 100000)"),
        (f"{'9' * 150}x8xh100", "is not a number of devices"),
        ("h100:9g.99gb", "h100-sxm-80gb has no MIG instance 9g.99gb; it has 1g.10gb"),
        ("t4:1g.5gb", "knows of no MIG instances of t4"),
        ("a100:1c.3g.40gb", "name the instance alone: a100:3g.40gb"),
        ("9" * 5000 + "xt4", "too long"),
        ("9" * 50 + "xt4", "is not a number of devices"),
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


@pytest.mark.parametrize("device_id", catalog.list_ids())
def test_what_the_vendors_tool_prints_is_a_name(device_id):
    assert parse_spec(catalog.load(device_id).name).boards[0].device == device_id


@pytest.mark.parametrize(
    ("text", "device", "count"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb", 1),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb", 1),
        ("Tesla T4", "t4", 1),
        ("2x Tesla T4", "t4", 2),
        ("8 x NVIDIA GeForce RTX 4090", "rtx-4090", 8),
        ("4090", "rtx-4090", 1),
        ("rtx4090", "rtx-4090", 1),
        ("3090ti", "rtx-3090-ti", 1),
        ("b580", "arc-b580", 1),
        ("2xa770", "arc-a770", 2),
        ("v6e", "tpu-v6e", 1),
        ("4070 Ti Super", "rtx-4070-ti-super", 1),
        ("1080 ti", "gtx-1080-ti", 1),
        ("a100 40gb", "a100-sxm-40gb", 1),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop", 1),
        ("AMD Instinct MI300X", "mi300x", 1),
        ("4 x A100-80GB:32 , 256 GB", "a100-sxm-80gb", 4),
    ],
)
def test_names_that_people_type(text, device, count):
    assert [b.device for b in parse_spec(text).boards] == [device] * count


def test_which_of_several_a_short_name_was_taken_for():
    assert "h100 is taken for h100-sxm-80gb; others: h100-nvl-94gb, h100-pcie-80gb" in assumed(parse_spec("8xh100"))
    for text in ("h100-sxm-80gb", "t4", "RTX4090", "NVIDIA H100 80GB HBM3"):
        assert "taken for" not in assumed(parse_spec(text))


@pytest.mark.parametrize(
    ("text", "device", "profile", "count", "boards", "units", "mib"),
    [
        ("h100-mig-1g.10gb", "h100-sxm-80gb", "1g.10gb", 1, 1, 16, 9984),
        ("a100:3g.40gb", "a100-sxm-80gb", "3g.40gb", 1, 1, 42, 40192),
        ("A100-MIG-3g.20gb", "a100-sxm-40gb", "3g.20gb", 1, 1, 42, 19968),
        ("a100-pcie-40gb:2g.10gb", "a100-pcie-40gb", "2g.10gb", 1, 1, 28, 9856),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "h100-sxm-80gb", "3g.40gb", 1, 1, 60, 40448),
        ("8xa100:1g.10gb", "a100-sxm-80gb", "1g.10gb", 8, 2, 14, 9856),
        ("2x3xh100:2g.20gb:16,64gb", "h100-sxm-80gb", "2g.20gb", 3, 1, 32, 20096),
        ("3xa30:1g.6gb+me", "a30", "1g.6gb+me", 3, 3, 14, 5836),
        ("rtx-pro-6000:4g.96gb", "rtx-pro-6000-blackwell", "4g.96gb", 1, 1, 188, None),
    ],
)
def test_mig_instances(text, device, profile, count, boards, units, mib):
    hardware = parse_spec(text)
    assert [b.device for b in hardware.boards] == [device] * boards and all(b.mig_enabled for b in hardware.boards)
    assert [a.profile for a in hardware.accelerators] == [profile] * count
    first = hardware.accelerators[0]
    assert first.compute_units == units and first.compute_share == units / catalog.load(device).compute_units
    assert mib is None or first.memory_bytes == mib << 20
    assert not hardware.links and f"{profile} of {device}: {units} of" in assumed(hardware)


@pytest.mark.parametrize("device_id", mig.list_boards())
def test_instances_are_parts_of_their_board(device_id):
    """The table of the MIG user guide: as many as fit have no more memory and multiprocessors than the board, nor much less."""
    device = catalog.load(device_id)
    for profile in mig.list_profiles(device):
        slices, _, gigabytes = profile.name.removesuffix("gb").partition("g.")
        assert profile.units * profile.most <= device.compute_units, profile
        assert profile.memory_bytes * profile.most <= device.memory_bytes, profile
        assert 0.85 * int(gigabytes) * 1e9 <= profile.memory_bytes <= 1.08 * int(gigabytes) * 1e9, profile
        assert profile.units >= int(slices) * device.compute_units / 8.5, profile
        assert list(checks.find_faults(parse_spec(f"{profile.most}x{device_id}:{profile.name}"))) == []


@pytest.mark.parametrize(
    ("device", "label", "name"),
    [
        ("h100-sxm-80gb", "1g.10gb", "1g.10gb"),
        ("h100-sxm-80gb", "1g.10gb+me", "1g.10gb"),
        ("h100-sxm-80gb", "1g.10gb+me.all", "1g.10gb"),
        ("h100-sxm-80gb", "1g.10gb-me", "1g.10gb"),
        ("rtx-pro-6000-blackwell-server", "1g.24gb+gfx", "1g.24gb"),
        ("h100-sxm-80gb", "1c.3g.40gb", None),  # a part of an instance
        ("h100-sxm-80gb", "5g.50gb", None),
        ("l4", "1g.10gb", None),
    ],
)
def test_an_instance_is_found_by_what_nvidia_smi_calls_it(device, label, name):
    profile = mig.find_profile(catalog.load(device), label)
    assert (profile.name if profile else None) == name


def test_a_recorded_board_has_the_instances_of_the_table(recordings):
    """What nvidia-smi said of an H100 that is divided, beside what the table says of its profiles."""
    (name,) = [row["id"] for row in index_rows() if "h100-mig" in row["id"]]
    read = detect(recordings(name)).accelerators
    table = {p.name: p for p in mig.list_profiles(catalog.load("h100-sxm-80gb"))}
    assert len(read) > 2
    for accelerator in read:
        profile = table[accelerator.profile]
        assert (accelerator.compute_units, accelerator.memory_bytes) == (profile.units, profile.memory_bytes)


def test_same_text_same_machine():
    assert parse_spec("8xh100-sxm-80gb") == parse_spec("8XH100-SXM-80GB")


@pytest.mark.parametrize(
    ("spec", "cores", "gib", "processes"),
    [
        ("grace", 72, 480, None),
        ("grace:144,960gb", 144, 960, None),
        ("2xgrace", 72, 480, 2),
        ("Grace:36", 36, 480, None),
    ],
)
def test_grace_is_a_processor(spec, cores, gib, processes):
    """`--hardware grace` was no device, no instance and not cpu."""
    machine = parse_spec(spec)
    assert (machine.cpu.model_name, machine.cpu.cores, machine.boards) == ("NVIDIA Grace", cores, ())
    assert machine.memory.total_bytes == gib * GIB and machine.nodes.processes == processes
    assert {"sve", "bf16", "i8mm"} <= set(machine.cpu.isa_features)


@pytest.mark.parametrize(
    ("spec", "cores", "gib"),
    [("gh200", 72, 480), ("4xgb200", 144, 960), ("gb300", 72, 480), ("3xgb300", 144, 960), ("gh200:64,432gb", 64, 432)],
)
def test_a_superchip_brings_its_host(spec, cores, gib):
    """Twice the memory of the devices was assumed, and 16 cores."""
    machine = parse_spec(spec)
    assert (machine.cpu.model_name, machine.cpu.cores) == ("NVIDIA Grace", cores)
    assert machine.memory.total_bytes == gib * GIB
    assert not any("assumed twice" in note.why or "16 CPUs" in note.why for note in machine.notes)


@pytest.mark.parametrize("spec", ["graviton3", "Xeon 8480", "epyc-9654", "2xpower9"])
def test_processors_are_said_by_their_cores(spec):
    with pytest.raises(SpecError, match=r"a processor is said by its cores and what they can do: cpu:64"):
        parse_spec(spec)


@pytest.mark.parametrize(
    "text, gib",
    [
        ("m4-max-64gb", 64),
        ("1xm2-8gb", 8),
        ("Apple M2 Max 32GB", 32),
        ("m2-8gb,16gb", 16),  # what is said apart stands above the name
        ("m4-max", 128),
        ("m4-max-128gb", 128),
        ("strix-halo-96gb", 96),
        ("gb10-128gb", 122),  # of which the host keeps some
        ("jetson-agx-orin-64gb", 64),
    ],
)
def test_a_size_behind_a_chip_that_shares_its_memory_is_the_machines(text, gib):
    """It was left out without a word: a Mac of 8 GiB was planned as the largest, of 24."""
    machine = parse_spec(text)
    assert machine.boards[0].memory_bytes is not None
    assert round(machine.boards[0].memory_bytes / 2**30) == pytest.approx(gib, abs=1)


def test_more_than_a_chip_is_sold_with_is_refused():
    with pytest.raises(SpecError, match="Apple M2 is sold with 24 GiB at most"):
        parse_spec("m2-64gb")
