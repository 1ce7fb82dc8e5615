"""One file or folder for each subject that is read; each takes a Machine and gives values of ``types``."""
