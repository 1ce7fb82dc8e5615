"""The commands that a recording keeps, and how it names what each of them printed."""

from __future__ import annotations

SMI_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,uuid,pci.bus_id,pci.device_id,compute_cap,memory.total,memory.free,compute_mode,mig.mode.current",
    "--format=csv",
)

# How a recording names what a command printed (a real recording has no process to run).
COMMAND_FILES: dict[tuple[str, ...], str] = {
    ("nvidia-smi", "-q", "-x"): "nvidia-smi.xml",
    ("nvidia-smi", "-q"): "nvidia-smi-q.txt",
    ("nvidia-smi", "-L"): "nvidia-smi-list.txt",
    ("nvidia-smi", "topo", "-m"): "nvidia-smi-topo.txt",
    ("nvidia-smi", "nvlink", "-s"): "nvidia-smi-nvlink.txt",
    SMI_QUERY: "nvidia-smi-query.csv",
    ("nvidia-smi", "--version"): "nvidia-smi-version.txt",
    ("rocm-smi", "-a", "--json"): "rocm-smi.json",
    ("amd-smi", "static", "--json"): "amd-smi-static.json",
    ("amd-smi", "metric", "--json"): "amd-smi-metric.json",
    ("amd-smi", "topology", "--json"): "amd-smi-topology.json",
    ("xpu-smi", "discovery", "--dump", "-1"): "xpu-smi-discovery.csv",
    ("xpu-smi", "discovery", "-j"): "xpu-smi-discovery.json",
    ("sysctl", "-a"): "sysctl.txt",
    ("vm_stat",): "vm_stat.txt",
    ("system_profiler", "-json", "SPDisplaysDataType"): "system_profiler-displays.json",
    ("tpu-info",): "tpu-info.txt",
    ("hl-smi",): "hl-smi.txt",
    ("hl-smi", "-L"): "hl-smi-list.txt",
    ("hl-smi", "-Q", "index,uuid,name,memory.total,memory.used", "-f", "csv"): "hl-smi.csv",
    ("neuron-ls", "--json-output"): "neuron-ls.json",
    ("npu-smi", "info"): "npu-smi.txt",
}
