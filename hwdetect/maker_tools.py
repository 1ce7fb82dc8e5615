"""What each maker's own tool is asked, in the words that its users know.

Each command was read in its tool's own documentation on 2026-11-24 (all want root):
nvidia-smi(1), --gpu-reset and --power-limit; https://rocm.docs.amd.com/projects/amdsmi/en/latest/how-to/amdsmi-cli-tool.html, set
--power-cap WATTS and reset --gpureset, which resets all boards of an XGMI hive and ends whoever has /dev/kfd open;
https://intel.github.io/xpumanager/2.0/xpu-smi/config.html, --powerlimit and --reset;
https://docs.habana.ai/en/latest/Management_and_Monitoring/Embedded_System_Tools_Guide/System_Management_Interface_Tool.html, -r and -p,
with -i and a place on the bus; https://www.hiascend.com/document/detail/zh/Atlas%20200I%20A2/2520/re/npu/npusmi_074.html, where -m 1
resets a chip in band, and without it the BMC must do it. Google and AWS document no command that resets a chip.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """``processes`` shows who uses a board, ``power`` lifts its limit, ``reset`` resets it (by the board's index, or by its place on
    the bus), ``log`` names its messages in the kernel's log, ``visible`` is the variable that chooses boards, with what is told beside it.
    ``build`` of PyTorch runs on every one of its boards that is sold today; ``None``: there is none, or it leaves some out (ROCm's)."""

    processes: str
    power: str
    reset: str
    log: str
    visible: str
    build: str | None = None

    def lift_power(self, index: int, place: str | None, watts: float) -> str:
        return self.power.format(index=index, place=place or "PCI-ADDRESS", watts=watts)

    def reset_board(self, index: int, place: str | None) -> str:
        return self.reset.format(index=index, place=place or "PCI-ADDRESS")


TOOLS = {
    "nvidia": Tool(
        processes="nvidia-smi",
        power="nvidia-smi -i {index} -pl {watts:.0f}",
        reset="nvidia-smi -i {index} --gpu-reset",
        log="Xid",
        visible="CUDA_VISIBLE_DEVICES (and set CUDA_DEVICE_ORDER=PCI_BUS_ID, or numbers mean another order)",
        build="CUDA",
    ),
    "amd": Tool(
        processes="amd-smi process",
        power="amd-smi set -g {index} --power-cap {watts:.0f}",
        reset="amd-smi reset -g {index} --gpureset",
        log="amdgpu",
        visible="HIP_VISIBLE_DEVICES",
    ),
    "intel": Tool(
        processes="xpu-smi ps",
        power="xpu-smi config -d {index} --powerlimit {watts:.0f}",
        reset="xpu-smi config -d {index} --reset",
        log="i915 or xe",
        visible="ZE_AFFINITY_MASK",
        build="XPU",
    ),
    "habana": Tool(
        processes="hl-smi",
        power="hl-smi -i {place} -p {watts:.0f}",
        reset="hl-smi -i {place} -r",
        log="habanalabs",
        visible="HABANA_VISIBLE_MODULES",
    ),
    "huawei": Tool(
        processes="npu-smi info",
        power="the BMC of the server",
        reset="npu-smi set -t reset -i NPU-ID -c CHIP-ID -m 1, both as npu-smi info lists them",
        log="davinci",
        visible="ASCEND_RT_VISIBLE_DEVICES",
    ),
    "google": Tool(
        processes="tpu-info",
        power="(Google sets it)",
        reset="a restart of the TPU VM",
        log="accel",
        visible="TPU_VISIBLE_CHIPS",
    ),
    "aws": Tool(
        processes="neuron-ls",
        power="(AWS sets it)",
        reset="a restart of the instance",
        log="neuron",
        visible="NEURON_RT_VISIBLE_CORES",
    ),
}
UNKNOWN = Tool(
    processes="its maker's tool",
    power="its maker's tool",
    reset="its maker's tool",
    log="its driver's",
    visible="the variable of its runtime",
)


def get_tool_of(vendor: str) -> Tool:
    return TOOLS.get(vendor, UNKNOWN)
