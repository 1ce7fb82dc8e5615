"""Numbers, names and objects out of the texts that tools and the kernel write."""

from __future__ import annotations

import itertools
import json
import re

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def parse_integer(text: str | None) -> int | None:
    """An integer that is the whole text (``0x`` allowed), ``None`` for anything else."""
    if text is None:
        return None
    text = text.strip()
    if re.fullmatch(r"[+-]?\d{1,19}", text, re.ASCII):  # 19 digits hold 63 bits: a longer one is a broken file
        return int(text)
    return int(text, 16) if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text) else None


def parse_number(text: str | None) -> float | None:
    """The leading decimal number of a text such as ``350.00 W``, ``None`` for ``N/A``, ``[N/A]``, ``Not Supported``, and for what
    commas or blanks divide (``1,000 W``): which part of it is the whole, only its writer knows."""
    match = re.match(r"\s*([+-]?\d{1,18}(?:\.\d{1,9})?)(?!\d|[.,\s]\d|\.)", text or "", re.ASCII)
    return float(match.group(1)) if match else None


def parse_mebibytes(text: str | None) -> int | None:
    """Bytes of ``81559 MiB``. What has another unit, or commas or blanks among its digits, is no reading: 81,559 MiB was taken for 81."""
    match = re.fullmatch(r"\s*(\d{1,12})(?:\.0+)?\s*(?:MiB)?\s*", text or "", re.ASCII)
    return int(match.group(1)) << 20 if match else None


def clean_line(text: str | None) -> str | None:
    """One line without doubled spaces or control characters, ``None`` if nothing is left."""
    if text is None:
        return None
    line = "".join(c if c.isprintable() else " " for c in ANSI.sub("", text))
    return " ".join(line.split()) or None


def parse_pairs(text: str | None, separator: str = ":") -> dict[str, str]:
    """``key: value`` lines; the first of a repeated key stays."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        key, sep, value = line.partition(separator)
        if sep:
            values.setdefault(key.strip(), value.strip())
    return values


ROW, BORDER = re.compile(r"[|│┃║](?![=+])"), re.compile(r"[|+╞├┠╟╰└┗╚┕┡╘╪=][-=+─━═]")


def explain_cut(text: str | None, end: str | None = None) -> str | None:
    """By what a tool's answer shows that its end is missing, or ``None``. ``end`` is a word of what always stands last in it.

    Lists of one line a board that end with a whole line show nothing.
    """
    whole = ANSI.sub("", text or "").strip()
    if not whole:
        return None
    if whole[0] in "{[":
        return None if whole[-1] in "}]" else "its JSON is not closed"
    if whole[0] == "<":
        return None if whole[-1] == ">" else "its XML is not closed"
    if not (text or "").endswith(("\n", "\r")):
        return "it ends within a line"
    drawn = [line for line in map(str.strip, whole.splitlines()) if ROW.match(line) or BORDER.match(line)]
    if drawn and not BORDER.match(drawn[-1]):
        return "its last table has no lower border"
    return f"nothing of {end} follows" if end and end not in whole else None


MAX_JSON_STARTS = 64


def parse_json(text: str | None) -> object:
    """The first object or list of a text, ``None`` where there is none. A tool's chatter may stand around it.

    Chatter may begin with a bracket itself (``[WARNING] …``): a line whose value does not end well is passed over.
    """
    decoder = json.JSONDecoder()
    starts = re.finditer(r"^[^\S\n]*[^{\[\n]{0,200}?([{\[])", text or "", re.MULTILINE)
    for match in itertools.islice(starts, MAX_JSON_STARTS):
        try:
            value, _ = decoder.raw_decode(text or "", match.start(1))
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | list) and value:
            return value
    return None


def get_mapping(value: object) -> dict[str, object]:
    """The value if it is an object of JSON, else an empty one."""
    return value if isinstance(value, dict) else {}


def get_text(value: object) -> str | None:
    """A scalar of JSON as one line of text; ``None`` for N/A and for containers."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    line = clean_line(str(value))
    return None if line is None or line.lower() in ("n/a", "none", "unknown") else line
