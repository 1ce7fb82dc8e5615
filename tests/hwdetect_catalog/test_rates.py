"""Peak rates are units × clock × operations per clock, bandwidth is bus × data rate: a file with another board's rates fails.

What this cannot see: a board whose units, clock and rates are all another's (its PCI id tells, test_pci_ids.py), and a rate
whose maker publishes a number that is no such product: those stand in the tables below, each with the reason.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from hwdetect import catalog

RATE_TOLERANCE = (
    0.02  # data sheets round to three digits; L40S and the custom A100 differ by 1.2 % from their boost clock
)
MEMORY_TOLERANCE = 0.025  # H100 PCIe is published as 2.0 TB/s and H200 as 4.8 TB/s, 2 % below bus × data rate
CLOCK_SPREAD = 0.065  # B300, from rates in two digits: tf32 at 1815 MHz, fp16 at 1856 MHz, fp4 at 1925 MHz
BY_MATRIX_UNITS = frozenset(["tf32", "fp16", "bf16", "fp8", "fp4", "int8"])

NO_CLOCK = "NVIDIA publishes rates in two digits and no clock"
NO_UNITS = "its maker publishes no unit counts with a clock"
NO_L2_CLOCK = "NVIDIA has no page about it, and the table that was found gives no clock"
NO_APPLE_CLOCK = "Apple publishes no clock of its GPUs"
# Devices none of whose rates is recomputed.
NOT_RECOMPUTED = {
    **dict.fromkeys(["b100", "b200-sxm-180gb", "b300-sxm-270gb", "gb200", "gb300", "vr200"], NO_CLOCK),
    **dict.fromkeys(
        [i for i in catalog.list_ids() if i.startswith(("tpu-", "gaudi", "trainium", "inferentia", "ascend"))], NO_UNITS
    ),
    **dict.fromkeys([i for i in catalog.list_ids() if catalog.load(i).vendor == "apple"], NO_APPLE_CLOCK),
    "l2": NO_L2_CLOCK,
    "rtx-pro-4500-blackwell-server": "no page has its clock: the rates are those of its workstation sister",
    **dict.fromkeys(["h20", "h20-3e-141gb"], "its rates are capped for export, whatever its units and clock"),
    "h800-sxm-80gb": "published with the H100's rates, listed with a lower clock (1755 MHz)",
}
# Single rates that are no product of units and boost clock.
PUBLISHED_OTHERWISE = {
    **dict.fromkeys(["h100-nvl-94gb", "h200-nvl"], (BY_MATRIX_UNITS, "no clock of the matrix units is published")),
    **dict.fromkeys(
        ["arc-a750", "arc-a770"], (BY_MATRIX_UNITS, "Intel's figures fit 2.0 GHz, which it does not state")
    ),
    "h800-pcie-80gb": (frozenset(["fp64"]), "capped for export"),
    "radeon-vii": (frozenset(["fp64"]), "half of the chip's fp64 rate is switched off"),
    "titan-v": (frozenset(["fp16"]), "published as 110 TFLOP/s, below its boost clock"),
}

FILES = {device_id: tomllib.loads(text) for device_id, text in catalog.read_texts().items()}
OPERATIONS = tomllib.loads((files("hwdetect") / "operations.toml").read_text(encoding="utf-8"))
RECOMPUTED = [device_id for device_id, data in FILES.items() if "clock_mhz" in data.get("arithmetic", {})]


def get_operations(data: dict) -> dict[str, dict[str, int]]:
    """Operations per clock and unit by table and dtype; empty for an architecture without an entry."""
    key = data.get("compute", {}).get("capability") if data["vendor"] == "nvidia" else data.get("architecture")
    entry = OPERATIONS.get(data["vendor"], {}).get(key, {})
    variant = entry.get(data.get("arithmetic", {}).get("matrix_units"), {})
    peak = variant if "none" in entry and variant == entry["none"] else entry.get("peak", {}) | variant
    return {"peak_flops": peak, "vector_flops": entry.get("vector", {})}


def list_rates(data: dict):
    """(table, dtype, rate) of every rate in a file."""
    for table in ("peak_flops", "vector_flops"):
        for dtype, rate in data.get(table, {}).items():
            if dtype not in ("source", "sources"):
                yield table, dtype, rate


def get_shown_rate(data: dict) -> float:
    """The rate by which two boards are called different: fp32 without matrix units, fp16 where that is not published."""
    return data.get("vector_flops", {}).get("fp32") or data["peak_flops"]["fp16"]


def find_wrong_rates(data: dict, rates: dict, skip: frozenset[str] = frozenset()) -> list[str]:
    """The rates of the file ``rates`` that are not what the units and clock of ``data`` give."""
    wrong = []
    operations, arithmetic = get_operations(data), data["arithmetic"]
    for table, dtype, rate in list_rates(rates):
        if dtype in skip:
            continue
        by_matrix = table == "peak_flops" and dtype in BY_MATRIX_UNITS
        clock = arithmetic.get("matrix_clock_mhz", arithmetic["clock_mhz"]) if by_matrix else arithmetic["clock_mhz"]
        expected = data["compute"]["units"] * clock * 1e6 * operations[table].get(dtype, 0)
        if abs(rate - expected) > RATE_TOLERANCE * rate:
            wrong.append(f"{table}.{dtype} = {rate:.4g}, units × clock × operations = {expected:.4g}")
    return wrong


@pytest.mark.parametrize("device_id", RECOMPUTED)
def test_rates_are_units_by_clock_by_operations(device_id):
    skip, _ = PUBLISHED_OTHERWISE.get(device_id, (frozenset(), ""))
    assert find_wrong_rates(FILES[device_id], FILES[device_id], skip) == []


def test_every_other_device_says_why_not():
    unexplained = set(FILES) - set(RECOMPUTED) - set(NOT_RECOMPUTED)
    assert not unexplained, f"{unexplained}: give [arithmetic] its clock_mhz, or name the reason in NOT_RECOMPUTED"
    assert set(NOT_RECOMPUTED) <= set(FILES) - set(RECOMPUTED)
    nvidia = [i for i in RECOMPUTED if FILES[i]["vendor"] == "nvidia"]
    instinct = {i for i in FILES if i.startswith("mi") and FILES[i]["vendor"] == "amd"}
    assert len(nvidia) >= 120 and instinct <= set(RECOMPUTED)


@pytest.mark.parametrize("device_id", PUBLISHED_OTHERWISE)
def test_an_exception_is_still_one(device_id):
    """An exception that agrees after all is to be struck from the table."""
    dtypes, _ = PUBLISHED_OTHERWISE[device_id]
    wrong = {line.split(" ")[0].split(".")[1] for line in find_wrong_rates(FILES[device_id], FILES[device_id])}
    assert wrong and wrong <= dtypes


def test_the_rates_of_another_board_do_not_pass():
    """Every file with the rates of every other one that differs by more than both tolerances."""
    passed = []
    for device_id in RECOMPUTED:
        data, (skip, _) = FILES[device_id], PUBLISHED_OTHERWISE.get(device_id, (frozenset(), ""))
        for other in RECOMPUTED:
            differs = abs(get_shown_rate(FILES[other]) / get_shown_rate(data) - 1) > 2 * RATE_TOLERANCE
            seen = any(dtype not in skip for _, dtype, _ in list_rates(FILES[other]))  # Thor has matrix rates alone
            if differs and seen and not find_wrong_rates(data, FILES[other], skip):
                passed.append((device_id, other))
    assert passed == []


def list_matrix_clocks(data: dict) -> dict[str, float]:
    """The clock in Hz that each rate of the matrix units means; empty where units or operations are not known."""
    units, operations = data.get("compute", {}).get("units"), get_operations(data)["peak_flops"]
    own = {k: r for table, k, r in list_rates(data) if table == "peak_flops" and k in BY_MATRIX_UNITS & set(operations)}
    return {dtype: rate / units / operations[dtype] for dtype, rate in own.items()} if units else {}


@pytest.mark.parametrize(
    "device_id",
    [i for i, data in FILES.items() if list_matrix_clocks(data) and not i.startswith("h20-") and i != "h20"],
)
def test_rates_of_the_matrix_units_mean_one_clock(device_id):
    """Also where no clock is published: all dtypes of one board at one clock, and that a plausible one."""
    clocks = list_matrix_clocks(FILES[device_id])
    assert max(clocks.values()) <= (1 + CLOCK_SPREAD) * min(clocks.values()), clocks
    assert min(clocks.values()) > 0.6e9 and max(clocks.values()) < 3.2e9


@pytest.mark.parametrize("device_id", [i for i, data in FILES.items() if "bus_bits" in data.get("arithmetic", {})])
def test_bandwidth_is_bus_by_data_rate(device_id):
    memory, arithmetic = FILES[device_id]["memory"], FILES[device_id]["arithmetic"]
    expected = arithmetic["bus_bits"] / 8 * arithmetic["pin_gbit_per_s"] * 1e9
    assert memory["bytes_per_s"] == pytest.approx(expected, rel=MEMORY_TOLERANCE)


@pytest.mark.parametrize("device_id", [i for i, data in FILES.items() if "arithmetic" in data])
def test_the_arithmetic_is_written_as_documented(device_id):
    table = FILES[device_id]["arithmetic"]
    keys = {"clock_mhz", "matrix_clock_mhz", "matrix_units", "bus_bits", "pin_gbit_per_s", "source", "sources"}
    assert set(table) <= keys and table["source"].startswith("https://")
    assert set(table.get("sources", {})) <= set(table)
    assert table.get("matrix_units", "half") in ("half", "half_int8", "none")
    assert ("bus_bits" in table) == ("pin_gbit_per_s" in table)


def test_every_entry_of_the_operations_has_a_source_and_is_used():
    entries = {(vendor, key) for vendor, table in OPERATIONS.items() for key in table}
    assert all(OPERATIONS[vendor][key]["source"].startswith("https://") for vendor, key in entries)
    used = {
        (
            data["vendor"],
            data.get("compute", {}).get("capability") if data["vendor"] == "nvidia" else data["architecture"],
        )
        for data in FILES.values()
        if get_operations(data)["peak_flops"]
    }
    assert entries == used


def test_geforce_boards_have_half_the_matrix_rate():
    for device_id, data in FILES.items():
        if "GeForce RTX" in data["name"]:
            assert data["arithmetic"]["matrix_units"] == "half", device_id
