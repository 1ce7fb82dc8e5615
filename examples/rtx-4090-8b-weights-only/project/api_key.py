"""The key that a server asks for, and whoever asks it sends."""

import os
import sys


def read_key() -> str | None:
    """API_KEY, without the line break that a file or a secret of Kubernetes ends with: no header of HTTP holds one.
    Ends the process where it is none that a header can hold: every request would be refused, or none."""
    value = os.environ.get("API_KEY")
    if not value:
        return None
    key = value.strip()
    if not key or not key.isascii() or not key.isprintable():
        sys.exit("API_KEY is blank, or holds what no header of HTTP can: take letters, digits and signs of ASCII")
    return key
