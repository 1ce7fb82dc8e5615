"""What is to be planned: the request, the workload and its defaults, the devices, the versions. Frozen values."""
