"""nvidia-smi's texts: tables that lost tabs, new words for versions, lost boards, a failing topology."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hwdetect.assemble import fill_instance, read_machine
from hwdetect.probes.notes import Notes
from hwdetect.probes.nvidia.smi_tables import read_query_rows
from hwdetect.probes.nvidia.smi_topo import parse_topo
from hwdetect.types import Accelerator, Board
from tests.hwdetect.memory_machine import MemoryMachine


def table(gpus=8, ports=4, cell="NV18", port="NODE", affinity="0-55,112-167", numa="0", tab="\t", near="PXB"):
    """``topo -m`` of a machine as FACTS_TOPO.csv describes such ones."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(ports)]
    lines = ["\t\x1b[4m" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"]
    for i in range(gpus):
        cells = [" X " if i == j else cell for j in range(gpus)] + [near if i == j else port for j in range(ports)]
        lines.append(tab.join([f"GPU{i}", *cells, affinity, numa, "", "N/A"]))
    legend = [f"  NIC{i}: mlx5_{i}" for i in range(ports)]
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "", "NIC Legend:", "", *legend])


def test_a_whole_table():
    topo, refused = parse_topo(table())
    assert refused == 0 and len(topo.links) == 28 and {(k.kind, k.count) for k in topo.links} == {("nvlink", 18)}
    assert topo.numa_nodes == dict.fromkeys(range(8), 0)
    assert [p.kind for p in topo.paths if p.port == "mlx5_2" and p.board == 2] == ["pxb"]


@pytest.mark.parametrize("name", ["mlx5_bond_0", "mlx5_ib0", "mana_0", "cxi0", "ens1f0np0", "qedr0"])
def test_ports_of_any_name(name):
    topo, refused = parse_topo(table(gpus=2, ports=2).replace("NIC1", name))
    assert refused == 0 and [link.count for link in topo.links] == [18]
    assert [(p.board, p.kind) for p in topo.paths if p.port == name] == [(0, "node"), (1, "pxb")]


def test_spaces_in_place_of_tabs():
    topo, refused = parse_topo(table(tab="   "))
    assert refused == 0 and len(topo.links) == 28


@pytest.mark.parametrize("glued", [("PXB\tNODE", "PXBNODE"), ("NODE\tNODE", "NODENODE"), ("NV18\tNV18", "NV18NV18")])
def test_a_row_with_a_lost_tab_is_refused_and_its_pairs_come_from_the_other_side(glued):
    complete = table()
    topo, refused = parse_topo(complete.replace(*glued, 1))
    assert refused == 1 and len(topo.links) == 28
    assert all(path in parse_topo(complete)[0].paths for path in topo.paths)


def test_cells_glued_to_the_cpu_list_in_every_row_refuse_the_table():
    topo, refused = parse_topo(
        table(cell="NV12", port="PHB", near="PHB", affinity="0-115", numa="0-3").replace("PHB\t0-115", "PH0-115")
    )
    assert refused == 8 and not topo.links


@pytest.mark.parametrize("numa", ["N/A", "", "0-3"])
def test_a_numa_affinity_that_is_no_node(numa):
    assert parse_topo(table(gpus=2, ports=0, numa=numa))[0].numa_nodes == {}


def gpu(name="X", address="00000000:01:00.0", **more):
    lines = "\n".join(f"    {key:<50} : {value}" for key, value in more.items())
    return f"GPU {address}\n    Product Name        : {name}\n{lines}\n"


def smi(*boards, version="Driver Version : 590.1", extra=""):
    return {
        "nvidia-smi-q.txt": f"====NVSMI LOG====\n{extra}\n{version}\nCUDA Version : 13.1\nAttached GPUs : {len(boards)}\n"
        + "".join(boards)
    }


def test_the_new_words_for_versions():
    files = smi(gpu(), version="KMD Version : 610.10\nCUDA UMD Version : 14.0")
    files["nvidia-smi-q.txt"] = files["nvidia-smi-q.txt"].replace("CUDA Version : 13.1\n", "")
    software = read_machine(MemoryMachine(files), 1).software
    assert (software.driver, software.cuda_driver) == ("610.10", "14.0")


def test_a_board_that_the_tool_could_not_open_is_lost():
    line = (
        "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"
    )
    files = smi(gpu())
    files["nvidia-smi-q.txt"] = line + "\n" + files["nvidia-smi-q.txt"]
    hardware = read_machine(MemoryMachine(files), 1)
    assert [(b.pci_address, b.state) for b in hardware.boards] == [("0000:01:00.0", "ok"), ("0000:3b:00.0", "lost")]
    assert [a.board for a in hardware.accelerators] == [0]


@pytest.mark.parametrize("word", ["Not Supported", "[N/A]", "N/A"])
def test_memory_that_is_not_told_is_unknown(word):
    hardware = read_machine(
        MemoryMachine(smi(gpu(name="NVIDIA GB10") + f"    FB Memory Usage\n        Total : {word}\n")), 1
    )
    assert hardware.boards[0].memory_bytes is None and hardware.boards[0].unified_memory is True


def test_a_file_that_holds_less_than_the_machine_says_so():
    files = smi(gpu())
    files["nvidia-smi-q.txt"] = files["nvidia-smi-q.txt"].replace("Attached GPUs : 1", "Attached GPUs : 4")
    hardware = read_machine(MemoryMachine(files), 1)
    assert len(hardware.boards) == 1 and any("4 attached" in note.why for note in hardware.notes)


def test_where_topo_fails_the_pci_tree_answers():
    class Tree(MemoryMachine):
        def resolve_link(self, path):
            places = {
                "sys/bus/pci/devices/0000:01:00.0": "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
                "sys/bus/pci/devices/0000:02:00.0": "sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0",
                "sys/bus/pci/devices/0000:82:00.0": "sys/devices/pci0000:80/0000:80:01.0/0000:82:00.0",
            }
            return places.get(path)

    files = smi(*(gpu(address=f"00000000:{bus}:00.0") for bus in ("01", "02", "82")))
    files["nvidia-smi-topo.txt"] = "Failed to run topology matrix\n"
    for bus, node in (("01", 0), ("02", 0), ("82", 1)):
        files[f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node"] = str(node)
    links = read_machine(Tree(files), 1).links
    assert [(k.a, k.b, k.kind) for k in links] == [(0, 1, "phb"), (0, 2, "sys"), (1, 2, "sys")]


XML = """<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log>
<driver_version>{driver}</driver_version><cuda_version>{cuda}</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:3B:00.0"><product_name>{name}</product_name><a_field_of_tomorrow><deep>1</deep></a_field_of_tomorrow>
<mig_mode><current_mig>{mig}</current_mig></mig_mode>{instances}<uuid>{uuid}</uuid><compute_mode>{mode}</compute_mode>
<pci><pci_device_id>{device}</pci_device_id><pci_gpu_link_info><pcie_gen><max_link_gen>{gen}</max_link_gen>
<current_link_gen>{gen}</current_link_gen><max_device_link_gen>5</max_device_link_gen></pcie_gen>
<link_widths><max_link_width>{width}</max_link_width><current_link_width>{width}</current_link_width></link_widths></pci_gpu_link_info></pci>
<fb_memory_usage><total>{total}</total><free>{total}</free></fb_memory_usage><temperature><gpu_temp>{heat}</gpu_temp></temperature>
<ecc_mode><current_ecc>{ecc}</current_ecc></ecc_mode>
<gpu_power_readings><current_power_limit>{limit}</current_power_limit><default_power_limit>700.00 W</default_power_limit></gpu_power_readings>
</gpu></nvidia_smi_log>"""
SOUND = {
    "driver": "595.58.03", "cuda": "13.2", "name": "NVIDIA H100 80GB HBM3", "mig": "Disabled", "instances": "",
    "uuid": "GPU-1a2b", "mode": "Default", "device": "0x233010DE", "gen": "5", "width": "16x", "total": "81559 MiB", "heat": "41 C",
    "ecc": "Enabled", "limit": "700.00 W",
}  # fmt: skip
NO_READINGS = ["[N/A]", "N/A", "[Not Supported]", "Not Supported", "ERR!", "[Unknown Error]", "Unknown Error",
               "Insufficient Permissions", "[Insufficient Permissions]", "Function Not Found", "GPU is lost", ""]  # fmt: skip


def xml(**changes):
    return read_machine(MemoryMachine({"nvidia-smi.xml": XML.format(**{**SOUND, **changes})}), 1)


def test_a_sound_log():
    (board,) = xml().boards
    assert (board.device, board.memory_bytes, board.pci_address) == ("h100-sxm-80gb", 81559 << 20, "0000:3b:00.0")
    assert (board.pcie.width, board.pcie.generation_max, board.ecc_enabled, board.temperature_c) == (16, 5, True, 41)


@pytest.mark.parametrize("word", NO_READINGS)
def test_the_ways_of_saying_nothing_are_null_with_a_note(word):
    names = ("driver", "cuda", "name", "uuid", "mode", "gen", "width", "total", "heat", "ecc", "limit", "mig")
    hardware = xml(**dict.fromkeys(names, word))
    (board,) = hardware.boards
    read_of = (board.name, board.uuid, board.compute_mode, board.pcie.generation, board.pcie.generation_max, board.pcie.width,
               board.memory_bytes, board.temperature_c, board.ecc_enabled, board.power_limit_watts, board.mig_enabled,
               hardware.software.driver, hardware.software.cuda_driver)  # fmt: skip
    assert set(read_of) == {None}
    assert board.device == "h100-sxm-80gb", "its PCI id says enough"
    noted = {note.field for note in hardware.notes}
    assert {"boards.0.memory_bytes", "boards.0.name", "boards.0.pcie.width"} <= noted


@pytest.mark.parametrize(("word", "state"), [("GPU is lost", "lost"), ("GPU requires reset", "reset-required")])
def test_a_board_that_stopped_answering_is_no_accelerator(word, state):
    hardware = xml(name=word, mode=word, uuid=word)
    assert hardware.boards[0].state == state and hardware.accelerators == ()


@pytest.mark.parametrize(
    ("name", "device", "total", "expected"),
    [
        ("NVIDIA L40S", "0x26B910DE", "46068 MiB", "l40s"),
        ("NVIDIA H100 PCIe", "0x233110DE", "81559 MiB", "h100-pcie-80gb"),
        ("NVIDIA B200", "0x290110DE", "183359 MiB", "b200-sxm-180gb"),
        ("NVIDIA GeForce RTX 4090", "0x268410DE", "24564 MiB", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "0x268410DE", "49140 MiB", "rtx-4090-48gb"),
        ("Graphics Device", "0x233510DE", "143771 MiB", "h200-sxm-141gb"),
        ("NVIDIA Tomorrow 1", "0xFFFF10DE", "999999 MiB", None),
        ("GRID T4-8C", "0x1EB810DE", "8192 MiB", "t4"),
        ("NVIDIA A40-48Q", "0x223510DE", "49152 MiB", "a40"),
        ("NVIDIA A100-1-5C", "0x20B010DE", "5120 MiB", "a100-sxm-40gb"),
    ],
)
def test_other_boards_in_the_same_log(name, device, total, expected):
    (board,) = xml(name=name, device=device, total=total).boards
    assert board.device == expected and board.name == name and board.memory_bytes == int(total.split()[0]) << 20
    assert (board.virtualization == "VGPU") is ("-" in name)


def slice_of(gi, ci, units, total):
    return (f"<mig_device><index>0</index><gpu_instance_id>{gi}</gpu_instance_id><compute_instance_id>{ci}</compute_instance_id>"
            f"<device_attributes><shared><multiprocessor_count>{units}</multiprocessor_count></shared></device_attributes>"
            f"<fb_memory_usage><total>{total} MiB</total><free>{total} MiB</free></fb_memory_usage></mig_device>")  # fmt: skip


def test_other_mig_profiles():
    slices = (
        "<mig_devices>"
        + slice_of(1, 0, 64, 40448)
        + slice_of(5, 0, 32, 20096)
        + slice_of(5, 1, 16, 20096)
        + "</mig_devices>"
    )
    hardware = xml(mig="Enabled", instances=slices)
    assert [(a.gpu_instance, a.compute_instance, a.compute_units, a.memory_bytes >> 20, round(a.compute_share, 3))
            for a in hardware.accelerators] == [(1, 0, 64, 40448, 0.485), (5, 0, 32, 20096, 0.242), (5, 1, 16, 20096, 0.121)]  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "cuda"), [("418.43", "10.1"), ("610.10.05", "14.0"), ("591.86", "13.1"), ("580", "13.0")]
)
def test_drivers_of_all_times(driver, cuda):
    software = xml(driver=driver, cuda=cuda).software
    assert (software.driver, software.cuda_driver) == (driver, cuda)


def test_an_idle_board_is_idle_in_either_words():
    text = smi(gpu() + "    Clocks Event Reasons\n        Idle    : Active\n        SW Power Cap  : Not Active\n")
    assert read_machine(MemoryMachine(text), 1).boards[0].throttle_reasons == ("gpu_idle",)
    assert read_machine(MemoryMachine(smi(gpu())), 1).boards[0].throttle_reasons is None, (
        "a log without them says nothing"
    )


def test_a_topology_alone_counts_the_boards():
    hardware = read_machine(MemoryMachine({"nvidia-smi-topo.txt": table()}), 1)
    assert len(hardware.boards) == len(hardware.accelerators) == 8 and len(hardware.links) == 28
    assert {b.cpu_affinity for b in hardware.boards} == {"0-55,112-167"} and len(hardware.paths) == 32


LIST = """GPU 0: A100-SXM4-40GB (UUID: GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f)
  MIG 1g.5gb      Device  0: (UUID: MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/7/0)
  MIG 1g.5gb      Device  1: (UUID: MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/8/0)
GPU 1: A100-SXM4-40GB (UUID: GPU-aaaaaaaa-d268-c3f3-1b07-005d5ae1dc3f)
"""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [(0, 7), (0, 8), (1, None)]),
        ("MIG-GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f/8/0", [(0, 8)]),
        ("1", [(1, None)]),
        ("GPU-aaaa", [(1, None)]),
    ],
)
def test_a_list_alone_names_boards_and_slices_by_old_ids(value, expected):
    files = {"nvidia-smi-list.txt": LIST} | ({"proc/self/environ": f"CUDA_VISIBLE_DEVICES={value}"} if value else {})
    hardware = read_machine(MemoryMachine(files), 1)
    assert [(b.name, b.mig_enabled) for b in hardware.boards] == [("A100-SXM4-40GB", True), ("A100-SXM4-40GB", None)]
    assert [(a.board, a.gpu_instance) for a in hardware.accelerators] == expected
    assert hardware.accelerators[0].profile == ("1g.5gb" if expected[0][1] else None)


def test_a_query_table_alone():
    text = ("index, name, uuid, pci.bus_id, pci.device_id, compute_cap, memory.total [MiB], memory.free [MiB]\n"
            "0, NVIDIA L4, GPU-1, 00000000:3B:00.0, 0x27B810DE, 8.9, 23034 MiB, 22000 MiB\n")  # fmt: skip
    hardware = read_machine(MemoryMachine({"nvidia-smi-query.csv": text}), 1)
    (board,) = hardware.boards
    assert (board.device, board.compute_capability, board.memory_bytes) == ("l4", "8.9", 23034 << 20)
    assert hardware.accelerators[0].free_memory_bytes == 22000 << 20


def test_what_a_tool_said_of_an_instance_is_not_taken_from_its_name():
    """Drivers differ by MiB: the catalogue fills in what nobody read, and nothing else."""
    board = Board(index=0, vendor="nvidia", device="h100-sxm-80gb", mig_enabled=True)
    read = Accelerator(index=0, board=0, profile="1g.10gb", memory_bytes=9_999 << 20, compute_units=15)
    notes = Notes()
    filled = fill_instance(read, (board,), notes)
    assert filled == replace(read, compute_share=15 / 132) and not notes.items


MIG_TABLE = (
    "index, name, uuid, pci.bus_id, pci.device_id, compute_cap, memory.total [MiB], memory.free [MiB], compute_mode, mig.mode.current\n"
    "0, NVIDIA H100 80GB HBM3, GPU-1, 00000000:3B:00.0, 0x233010DE, 9.0, 81559 MiB, 81000 MiB, Default, {mig}\n"
)
MIG_LIST = (
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
    "  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n"
    "  MIG 1g.10gb+me  Device  1: (UUID: MIG-2)\n"
    "  MIG 1c.2g.20gb  Device  2: (UUID: MIG-3)\n"
)


@pytest.mark.parametrize("mig", ["Enabled", "[N/A]"])
def test_a_query_table_alone_gives_a_job_the_instances_of_a_board(mig):
    """A job was given all 80 GiB of a board, of which it gets a slice."""
    files = {"nvidia-smi-query.csv": MIG_TABLE.format(mig=mig), "nvidia-smi-list.txt": MIG_LIST}
    hardware = read_machine(MemoryMachine(files), 1)
    assert [(a.profile, a.memory_bytes and a.memory_bytes >> 20, round(a.compute_share or 0, 2))
            for a in hardware.accelerators] == [("3g.40gb", 40448, 0.45), ("1g.10gb+me", 9984, 0.12), ("1c.2g.20gb", None, 0)]  # fmt: skip
    taken = [note.field for note in hardware.notes if "taken from the name" in note.why]
    assert taken == ["accelerators.0.memory_bytes", "accelerators.1.memory_bytes"]


def test_a_query_table_alone_gives_no_job_a_divided_board_without_instances():
    hardware = read_machine(MemoryMachine({"nvidia-smi-query.csv": MIG_TABLE.format(mig="Enabled")}), 1)
    assert not hardware.accelerators
    assert any("no instance" in note.why for note in hardware.notes)


def test_a_query_table_alone_gives_no_job_a_board_that_admits_none():
    text = MIG_TABLE.format(mig="Disabled").replace("Default", "Prohibited")
    hardware = read_machine(MemoryMachine({"nvidia-smi-query.csv": text}), 1)
    assert not hardware.accelerators and hardware.boards[0].compute_mode == "Prohibited"


@pytest.mark.parametrize("size", ["81,559 MiB", "81.559 MiB", "81 559 MiB", "81\N{NO-BREAK SPACE}559 MiB", "79.65 GiB"])
def test_a_size_in_another_form_is_no_reading(size):
    """It was taken for 81 MiB, or 79."""
    text = MIG_TABLE.format(mig="Disabled").replace("81559 MiB", f'"{size}"')
    (board,) = read_machine(MemoryMachine({"nvidia-smi-query.csv": text}), 1).boards
    assert board.memory_bytes is None
    log = f"====NVSMI LOG====\nGPU 00000000:01:00.0\n    Product Name   : X\n    FB Memory Usage\n        Total   : {size}\n"
    (board,) = read_machine(MemoryMachine({"nvidia-smi-q.txt": log}), 1).boards
    assert board.memory_bytes is None


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_what_powershell_writes(encoding):
    """Its mark stood before the first board, which was none then."""
    text = "".join(f"GPU {i}: NVIDIA L4 (UUID: GPU-{i})\r\n" for i in range(4))
    hardware = read_machine(MemoryMachine({"nvidia-smi-list.txt": text.encode(encoding)}), 1)
    assert len(hardware.boards) == 4


QUERIED = """index, name, uuid, memory.total [MiB]
0, NVIDIA GeForce RTX 4090, GPU-0, 24564 MiB
1, NVIDIA GeForce RTX 4090, GPU-1, 24564 MiB
"""


@pytest.mark.parametrize(
    ("text", "boards", "note"),
    [
        (QUERIED, 2, None),
        ("WARNING: infoROM is corrupted at gpu 0000:65:00.0\n" + QUERIED, 2, None),
        ("$ nvidia-smi --query-gpu=index,name,uuid,memory.total --format=csv\n" + QUERIED, 2, None),
        (QUERIED + QUERIED, 2, None),  # asked twice
        (QUERIED + "WARNING: infoROM is corrupted at gpu 0000:65:00.0\n", 2, "1 of its 3 rows do not fit"),
        ("Failed to initialize NVML: Driver/library version mismatch, try again\n", 0, "no board in its answer"),
    ],
)
def test_what_stands_around_a_queried_table_is_none_of_it(text, boards, note):
    notes = Notes()
    rows = read_query_rows(MemoryMachine({"nvidia-smi-query.csv": text}), notes)
    assert len(rows) == boards
    assert [n.why for n in notes.items] == [] if note is None else note in notes.items[0].why
