"""No password and no token in a message: of an address (HF_ENDPOINT, a proxy), or of a variable."""

import logging
import os
import re
import sys
import traceback
import warnings
from typing import Any

PATTERNS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "hf_***"),  # a token of the hub
    # user and password in an address, which has one / left once it was a Path
    (re.compile(r"(://|\b[A-Za-z][\w+.-]+:/)[^/\s'\"<>]*@"), r"\1***@"),
    (re.compile(r"([?&](?:[\w-]*(?:token|key|secret|password|signature)|sig)=)[^&\s'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic)\s+)[^\s'\"]+", re.IGNORECASE), r"\1***"),
)
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD")
"""What the hub and the trackers take a secret from; its value is hidden whatever it looks like."""
SHORTEST = 8
"""Characters of a secret: of a shorter value (x, 1, none) every word that has it in would be stars."""


def mask_secrets(text: str) -> str:
    """``text`` without what looks like a secret: a message may end in a log, and that in a bug report."""
    for name in VARIABLES:
        secret = os.environ.get(name, "").strip()
        if len(secret) >= SHORTEST:
            text = text.replace(secret, "***")
    for pattern, stars in PATTERNS:
        text = pattern.sub(stars, text)
    return text


def mask_messages() -> None:
    """What libraries say too: log records, warnings and tracebacks. huggingface_hub logs the address that it asks."""
    make_record, format_warning = logging.getLogRecordFactory(), warnings.formatwarning

    def make_masked(*args, **kwargs) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit: logging says so itself, where it is
            return record
        if mask_secrets(text) != text:
            record.msg, record.args = mask_secrets(text), ()
        return record

    def format_masked(message, category, filename, lineno, line=None) -> str:
        return mask_secrets(format_warning(message, category, filename, lineno, line))

    def print_masked(kind, error, trace) -> None:
        print(mask_secrets("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)

    logging.setLogRecordFactory(make_masked)
    replaceable: Any = warnings  # type checkers take a function for a constant
    replaceable.formatwarning = format_masked
    sys.excepthook = print_masked
