"""nvidia-smi's texts: tables that lost tabs, new words for versions, lost boards, a failing topology."""

from __future__ import annotations

import pytest

from hwdetect.assemble import read
from hwdetect.probes.nvidia_topo import parse_topo
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


def test_spaces_in_place_of_tabs():
    topo, refused = parse_topo(table(tab="   "))
    assert refused == 0 and len(topo.links) == 28


@pytest.mark.parametrize("glued", [("PXB\tNODE", "PXBNODE"), ("NODE\tNODE", "NODENODE"), ("NV18\tNV18", "NV18NV18")])
def test_a_row_with_a_lost_tab_is_refused_and_its_pairs_come_from_the_other_side(glued):
    whole = table()
    topo, refused = parse_topo(whole.replace(*glued, 1))
    assert refused == 1 and len(topo.links) == 28
    assert all(path in parse_topo(whole)[0].paths for path in topo.paths)


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
    software = read(MemoryMachine(files), 1).software
    assert (software.driver, software.cuda_driver) == ("610.10", "14.0")


def test_a_board_that_the_tool_could_not_open_is_lost():
    line = (
        "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"
    )
    files = smi(gpu())
    files["nvidia-smi-q.txt"] = line + "\n" + files["nvidia-smi-q.txt"]
    hardware = read(MemoryMachine(files), 1)
    assert [(b.pci_address, b.state) for b in hardware.boards] == [("0000:01:00.0", "ok"), ("0000:3b:00.0", "lost")]
    assert [a.board for a in hardware.accelerators] == [0]


@pytest.mark.parametrize("word", ["Not Supported", "[N/A]", "N/A"])
def test_memory_that_is_not_told_is_unknown(word):
    hardware = read(MemoryMachine(smi(gpu(name="NVIDIA GB10") + f"    FB Memory Usage\n        Total : {word}\n")), 1)
    assert hardware.boards[0].memory_bytes is None and hardware.boards[0].unified_memory is True


def test_a_file_that_holds_less_than_the_machine_says_so():
    files = smi(gpu())
    files["nvidia-smi-q.txt"] = files["nvidia-smi-q.txt"].replace("Attached GPUs : 1", "Attached GPUs : 4")
    hardware = read(MemoryMachine(files), 1)
    assert len(hardware.boards) == 1 and any("4 attached" in note.why for note in hardware.notes)


def test_where_topo_fails_the_pci_tree_answers():
    class Tree(MemoryMachine):
        def link(self, path):
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
    links = read(Tree(files), 1).links
    assert [(k.a, k.b, k.kind) for k in links] == [(0, 1, "phb"), (0, 2, "sys"), (1, 2, "sys")]
