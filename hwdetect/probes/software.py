"""Versions of what is installed, read from metadata and text: nothing is imported, so torch costs nothing here."""

from __future__ import annotations

import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes.notes import Notes
from hwdetect.probes.parsing import clean_line, parse_pairs
from hwdetect.probes.process_limits import read_open_files
from hwdetect.types import Software

PACKAGES = [
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "datasets",
    "peft",
    "trl",
    "bitsandbytes",
    "torchao",
    "triton",
    "flash-attn",
    "xformers",
    "vllm",
    "sglang",
    "optimum",
    "openvino",
    "onnxruntime",
    "tensorflow",
    "jax",
    "torch-xla",
    "torch-neuronx",
    "optimum-habana",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "nvidia-ml-py",
    "kernels",
    "liger-kernel",
]


def read_software(machine: Machine, notes: Notes) -> Software:
    """Operating system, Python, packages, and what kind of container or virtual machine this is."""
    installed = machine.list_packages(PACKAGES)
    release = parse_pairs(machine.read("etc/os-release") or machine.read("usr/lib/os-release"), "=")
    versions = dict(installed)
    open_files, open_files_most = read_open_files(machine, notes)
    kernel = clean_line(machine.read("proc/sys/kernel/osrelease"))
    return Software(
        os=(release.get("PRETTY_NAME") or release.get("NAME") or "").strip("\"'") or machine.get_system_name(),
        kernel=kernel,
        python=machine.get_python_version(),
        torch=versions.get("torch"),
        torch_build=machine.get_torch_build() if "torch" in versions else None,
        nccl=versions.get("nvidia-nccl-cu13") or versions.get("nvidia-nccl-cu12"),
        packages=installed,
        container=_find_container(machine),
        wsl=_is_wsl(machine, kernel),
        virtualization=_find_virtualization(machine),
        open_files=open_files,
        open_files_most=open_files_most,
    )


def _find_container(machine: Machine) -> str | None:
    """docker, podman, singularity, kubernetes, lxc, or ``none`` where the process's own root is the machine's."""
    if machine.exists(".dockerenv"):
        return "docker"
    if machine.exists("run/.containerenv"):
        return "podman"
    if machine.exists(".singularity.d") or machine.get_variable("APPTAINER_CONTAINER"):
        return "apptainer"
    if machine.get_variable("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    groups = machine.read("proc/1/cgroup") or ""
    # Outermost first: Kubernetes runs its pods through one of the others.
    for name in ("kubepods", "docker", "libpod", "lxc"):
        if name in groups:
            return {"kubepods": "kubernetes", "libpod": "podman"}.get(name, name)
    # With a control-group namespace the paths above say nothing, but the runtime's own files are mounted in.
    mounts = _read_mounted_file_roots(machine)
    for mark, name in (
        ("/kubelet/pods/", "kubernetes"),
        ("/docker/containers/", "docker"),
        ("/overlay-containers/", "podman"),
        ("/containerd/", "containerd"),
    ):
        if mark in mounts:
            return name
    return (clean_line(machine.get_variable("container")) or "none") if machine.live else None


def _read_mounted_file_roots(machine: Machine) -> str:
    """Where the files come from that every runtime mounts into its containers (a host mounts none of them)."""
    rows = (line.split(" ") for line in (machine.read("proc/self/mountinfo") or "").splitlines())
    own = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
    return "\n".join(row[3] for row in rows if len(row) > 5 and row[4] in own)


def _is_wsl(machine: Machine, kernel: str | None) -> bool | None:
    return None if kernel is None else bool(re.search(r"microsoft|WSL", kernel, re.IGNORECASE))


def _find_virtualization(machine: Machine) -> str | None:
    """The hypervisor, ``none`` where the processor says that there is none, ``None`` where nothing says."""
    product = (machine.read("sys/class/dmi/id/sys_vendor") or "") + (
        machine.read("sys/class/dmi/id/product_name") or ""
    )
    for mark, name in (
        ("QEMU", "qemu"),
        ("KVM", "kvm"),
        ("VMware", "vmware"),
        ("VirtualBox", "virtualbox"),
        ("innotek", "virtualbox"),
        ("Xen", "xen"),
        ("Google", "google"),
        ("Amazon EC2", "amazon"),
        ("Virtual Machine", "hyper-v"),
        ("OpenStack", "openstack"),
    ):
        if mark in product:
            return name
    if (machine.read("sys/hypervisor/type") or "").strip():
        return (machine.read("sys/hypervisor/type") or "").strip()
    # The first processor's block is enough, and a large server's file is a megabyte.
    head = (machine.read("proc/cpuinfo") or "")[:8192]
    flags = re.search(r"^flags\s*:(.*)$", head, re.MULTILINE)
    if flags is None:
        return None
    return "vm" if " hypervisor" in flags.group(1) else "none"
