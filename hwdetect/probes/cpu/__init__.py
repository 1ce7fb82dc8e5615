"""The processor: /sys, /proc/cpuinfo, raw CPUID, and its names."""
