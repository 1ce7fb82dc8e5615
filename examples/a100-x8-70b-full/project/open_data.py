"""Files of data, compressed or not."""

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO


def open_zstd(file: BinaryIO | Path, mode: str) -> io.BufferedReader:
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(file) if isinstance(file, Path) else file, compression="zstd"))


UNREADABLE = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
"""What reading a file raises that is damaged, or gone since it was listed."""
OPENERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": open_zstd}


def open_data(file: Path) -> io.BufferedReader:
    """The bytes of a file, decompressed if its name says so."""
    return io.BufferedReader(OPENERS.get(file.suffix.lower(), open)(file, "rb"))
