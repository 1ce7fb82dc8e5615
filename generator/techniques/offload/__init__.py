"""What is kept in the memory of the host, or on its disk, between two uses."""

ORDER = 6
