"""How the devices of one node are joined, when only their kind and number are known."""

from __future__ import annotations

from itertools import combinations

from hwdetect.types import Device, Link, NetworkPort

GIGABIT = 1e9 / 8

# One direction, after line coding, bytes per second and lane: 8b/10b to generation 2, 128b/130b to 5 (PCI-SIG).
PCIE_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

# The hybrid cube mesh of DGX-1 and of all eight-GPU V100 servers built like it: links between each pair
# (`nvidia-smi topo -m` of an AWS p3.16xlarge). P100 has the same neighbours with one link each.
# https://docs.nvidia.com/dgx/dgx1-user-guide/introduction-to-dgx1.html
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
LINKS_OF_A_P100 = 4


def list_peer_links(device: Device, count: int, *, bridged: bool = False) -> tuple[Link, ...]:
    """Every pair of devices and what joins it; ``bridged``: the optional bridges join 0-1, 2-3, …"""
    return tuple(_build_link(device, count, a, b, bridged) for a, b in combinations(range(count), 2))


def _build_link(device: Device, count: int, a: int, b: int, bridged: bool) -> Link:
    rate = device.link_bytes_per_s
    if device.link_bridge:
        if bridged and a % 2 == 0 and b == a + 1:
            return Link(a=a, b=b, kind="nvlink", bandwidth_bytes_per_s=rate, p2p=True)
        return _build_pcie_link(device, a, b)
    if device.link_kind is None:
        return _build_pcie_link(device, a, b)
    if device.link_kind == "nvlink":
        return _build_cube_mesh_link(device, count, a, b)
    if device.link_kind == "nvswitch" or not device.link_count:
        return Link(a=a, b=b, kind=device.link_kind, count=device.link_count, bandwidth_bytes_per_s=rate, p2p=True)
    links = 1
    per_link = rate / device.link_count if rate else None
    return Link(a=a, b=b, kind=device.link_kind, count=links, bandwidth_bytes_per_s=per_link, p2p=True)


def _build_cube_mesh_link(device: Device, count: int, a: int, b: int) -> Link:
    # The mesh is wired on a board of eight; its pairs are known by number.
    if count > 8:  # more than eight of these were only ever built around NVSwitch (DGX-2)
        return Link(a=a, b=b, kind="nvswitch", bandwidth_bytes_per_s=device.link_bytes_per_s, p2p=True)
    links = CUBE_MESH.get((a, b), 0)
    total = device.link_count or LINKS_OF_A_P100
    if not links or not device.link_bytes_per_s:
        return _build_pcie_link(device, a, b)
    # V100 doubles some of the P100's links, with two more per board.
    links = min(links, 1) if total == LINKS_OF_A_P100 else links
    return Link(
        a=a, b=b, kind="nvlink", count=links, bandwidth_bytes_per_s=device.link_bytes_per_s / total * links, p2p=True
    )


def _build_pcie_link(device: Device, a: int, b: int) -> Link:
    # Boards that NVIDIA sells bridges for have no peer access without them, unless the file says otherwise.
    p2p = False if device.link_bridge and device.p2p is None else device.p2p
    return Link(
        a=a,
        b=b,
        kind="sys",
        bandwidth_bytes_per_s=get_pcie_bytes_per_s(device.pcie_generation, device.pcie_width),
        p2p=p2p,
    )


def get_pcie_bytes_per_s(generation: int | None, width: int | None) -> float | None:
    """One direction of a PCIe link."""
    lane = PCIE_LANE_BYTES_PER_S.get(generation or 0)
    return lane * width if lane and width else None


def assume_fabric(device: Device | None, count: int) -> tuple[NetworkPort, ...]:
    """What such nodes usually have between them: one NIC per device for switch-connected boards, else 100 Gbit/s.

    A port of 200 Gbit/s per device for A100, 400 for H100 and later (NVIDIA DGX A100, H100, B200 data sheets:
    https://www.nvidia.com/en-us/data-center/dgx-platform/), 800 from B300 on; AMD OAM boxes 400
    (https://www.amd.com/en/products/accelerators/instinct/mi300/platform.html).
    """
    if device is None or device.link_kind not in ("nvswitch", "xgmi"):
        return (NetworkPort(name="port0", kind="ethernet", state="up", rate_bytes_per_s=100 * GIGABIT),)
    gigabits = 400
    if device.architecture in ("volta", "pascal"):
        gigabits = 100
    elif device.architecture in ("ampere", "cdna", "cdna2"):
        gigabits = 200
    elif device.compute_capability == "10.3":
        gigabits = 800
    return tuple(
        NetworkPort(name=f"port{i}", kind="infiniband", state="up", rate_bytes_per_s=gigabits * GIGABIT)
        for i in range(count)
    )
