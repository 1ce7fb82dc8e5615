"""Who prepares the batches while the device computes."""

ORDER = 90
