"""NVIDIA boards: NVML, else nvidia-smi, else the files of the driver and of the kernel."""
