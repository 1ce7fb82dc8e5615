"""What is a maker's own: the words of its tool, the variables that hide its boards, what its boards tell of themselves.

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
from typing import Literal

Rule = Literal["cuda", "rocr", "hip", "level-zero", "numbers", "numbers or all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """``processes`` shows who uses a board, ``power`` lifts its limit, ``reset`` resets it (by the board's index, or by its place on
    the bus), ``log`` names its messages in the kernel's log, ``visible`` is the variable that chooses boards, with what is told beside it.
    ``build`` of PyTorch runs on every one of its boards that is sold today; ``None``: there is none, or it leaves some out (ROCm's).

    ``variables`` hide boards, one after the other, each with the rule by which its value is read (``probes/visible.py`` has the rules);
    of several names of one the first that is set counts. ``order`` is the variable, with its value, without which numbers count unequal
    boards in another order than that of the bus. ``pcie``: its tools show a link to the host; ``capability``: a compute capability and
    MIG; ``virtual_names``: its virtual boards are named after the physical one; ``arm_host``: they sit beside its own Arm processor.
    ``sold_by`` has its boards in the catalogue where another company bought it. ``ecc_share`` is what ECC takes of a board's memory."""

    processes: str
    power: str
    reset: str
    log: str
    visible: str
    build: str | None = None
    variables: tuple[tuple[Rule, tuple[str, ...]], ...] = ()
    order: tuple[str, str] | None = None
    pcie: bool = True
    capability: bool = False
    virtual_names: bool = False
    arm_host: bool = False
    sold_by: str | None = None
    ecc_share: float = 0.0

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
        variables=(("cuda", ("CUDA_VISIBLE_DEVICES",)),),
        order=("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        capability=True,
        virtual_names=True,
    ),
    "amd": Tool(
        processes="amd-smi process",
        power="amd-smi set -g {index} --power-cap {watts:.0f}",
        reset="amd-smi reset -g {index} --gpureset",
        log="amdgpu",
        visible="HIP_VISIBLE_DEVICES",
        # HIP reads CUDA's variable only where its own says nothing, and counts what ROCr has left.
        variables=(("rocr", ("ROCR_VISIBLE_DEVICES",)), ("hip", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))),
    ),
    "intel": Tool(
        processes="xpu-smi ps",
        power="xpu-smi config -d {index} --powerlimit {watts:.0f}",
        reset="xpu-smi config -d {index} --reset",
        log="i915 or xe",
        visible="ZE_AFFINITY_MASK",
        build="XPU",
        variables=(("level-zero", ("ZE_AFFINITY_MASK",)),),
        ecc_share=0.125,  # 21,414 MiB of 24,480 (https://github.com/intel/xpumanager/issues/169)
    ),
    "habana": Tool(
        processes="hl-smi",
        power="hl-smi -i {place} -p {watts:.0f}",
        reset="hl-smi -i {place} -r",
        log="habanalabs",
        visible="HABANA_VISIBLE_MODULES",
        variables=(("numbers or all", ("HABANA_VISIBLE_DEVICES",)),),
        sold_by="intel",  # the driver still reports the company that Intel bought
    ),
    "huawei": Tool(
        processes="npu-smi info",
        power="the BMC of the server",
        reset="npu-smi set -t reset -i NPU-ID -c CHIP-ID -m 1, both as npu-smi info lists them",
        log="davinci",
        visible="ASCEND_RT_VISIBLE_DEVICES",
        variables=(("numbers", ("ASCEND_RT_VISIBLE_DEVICES",)),),
        pcie=False,
    ),
    "google": Tool(
        processes="tpu-info",
        power="(Google sets it)",
        reset="a restart of the TPU VM",
        log="accel",
        visible="TPU_VISIBLE_CHIPS",
        variables=(("numbers", ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")),),
        pcie=False,
    ),
    "aws": Tool(
        processes="neuron-ls",
        power="(AWS sets it)",
        reset="a restart of the instance",
        log="neuron",
        visible="NEURON_RT_VISIBLE_CORES",
        pcie=False,
    ),
    "apple": Tool(
        processes="Activity Monitor",
        power="(macOS sets it)",
        reset="a restart of the Mac",
        log="AGX",
        visible="nothing: a Mac has one GPU",
        arm_host=True,
        pcie=False,
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


def get_seller(vendor: str) -> str:
    """The company under whose name the catalogue has the boards of ``vendor``."""
    return get_tool_of(vendor).sold_by or vendor
