"""AMD boards: the kernel's files, else the tools."""
