"""Cloud instance types, from ``instances.toml``; prices of AWS, Azure, GCP and RunPod and AWS's sustained network from ``prices.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache

GIB = 2**30
GIGABIT = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """On-demand US dollars an hour for the whole instance; ``source`` pins the revision, ``read`` is the ISO date. ``region``: ``None``
    for the cheapest of the United States. ``spot_usd_per_hour``: of capacity that can be taken away, in the same region, where a table has it,
    with the source and the day of that table."""

    usd_per_hour: float
    source: str
    read: str
    region: str | None = None
    spot_usd_per_hour: float | None = None
    spot_source: str | None = None
    spot_read: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance type. ``devices`` of ``device`` (a catalogue id, ``None``: no accelerator); ``bridged``: its
    boards are joined in pairs by NVLink bridges."""

    cloud: str
    name: str
    device: str | None
    devices: int
    vcpus: int
    cores: int
    memory_bytes: int
    architecture: str
    isa_features: tuple[str, ...]
    cpu: str | None
    network_kind: str
    network_bytes_per_s: float | None
    efa: int | None
    """EFA devices; ``None`` where there are none, or nobody says how many"""
    nvme_bytes: int | None
    bridged: bool
    source: str
    price: Price | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpriced:
    """A cloud that has no types here; ``why``, as of ``read``, the ISO date on which sources were last looked for."""

    cloud: str
    why: str
    read: str


@cache
def list_instances() -> tuple[Instance, ...]:
    """Every instance type, in the order of the file."""
    return tuple(
        _parse_instance(family, name, row) for family in read_types()["family"] for name, row in family["types"].items()
    )


@cache
def list_unpriced() -> tuple[Unpriced, ...]:
    """The clouds that people rent of and that are not in ``list_instances``, each with the reason."""
    return tuple(
        Unpriced(cloud=row["cloud"], why=row["why"], read=row["read"].isoformat()) for row in read_types()["unpriced"]
    )


@cache
def read_types() -> dict:
    from importlib.resources import files  # only those who plan for a cloud pay for it

    return tomllib.loads((files("hwdetect") / "instances.toml").read_text(encoding="utf-8"))


@cache
def read_tables() -> dict[tuple[str, str, str], tuple[float, dict]]:
    """Of ``prices.toml``: the value and its table by cloud, key and type."""
    from importlib.resources import files

    tables = tomllib.loads((files("hwdetect") / "prices.toml").read_text(encoding="utf-8")).get("table", ())
    return {
        (table["cloud"], key, name): (float(value), table)
        for table in tables
        for key in ("usd_per_hour", "spot_usd_per_hour", "network_gbit_per_s")
        for name, value in table.get(key, {}).items()
    }


@cache
def list_instance_names() -> tuple[str, ...]:
    return tuple(instance.name for instance in list_instances())


def find_instance(text: str) -> Instance | None:
    """The instance type of that name, with or without ``cloud:`` before it; ``None`` if there is none."""
    wanted = text.lower()
    for instance in list_instances():
        name = instance.name.lower()
        if wanted in (name, f"{instance.cloud}:{name}"):
            return instance
    return None


def _parse_instance(family: dict, name: str, row: dict) -> Instance:
    devices = row.get("devices", 0)
    tables = read_tables()
    # What a type sustains, where a table says so; its maker's page may name the burst.
    network = tables.get((family["cloud"], "network_gbit_per_s", name), (row.get("network_gbit_per_s"),))[0]
    return Instance(
        cloud=family["cloud"],
        name=name,
        device=family.get("device") if devices else None,
        devices=devices,
        vcpus=row["vcpus"],
        cores=max(1, row["vcpus"] // family.get("threads_per_core", 2)),
        memory_bytes=round(row["memory_gib"] * GIB),
        architecture=family.get("architecture", "x86_64"),
        isa_features=tuple(sorted(family.get("isa", ("avx2",)))),
        cpu=family.get("cpu"),
        network_kind="efa" if "efa" in row else family.get("network", "ethernet"),
        network_bytes_per_s=network * GIGABIT if network else None,
        efa=row.get("efa"),
        nvme_bytes=round(row["nvme_gb"] * 1e9) if row.get("nvme_gb") else None,
        bridged=family.get("bridged", False),
        source=row.get("source", family["source"]),
        price=_parse_price(family, name, row),
    )


def _parse_price(family: dict, name: str, row: dict) -> Price | None:
    if "usd_per_hour" in row:
        day, spot = family["price_read"].isoformat(), row.get("spot_usd_per_hour")
        return Price(
            usd_per_hour=row["usd_per_hour"],
            source=family["price_source"],
            read=day,
            region=family.get("price_region"),
            spot_usd_per_hour=spot,
            spot_source=family["price_source"] if spot else None,
            spot_read=day if spot else None,
        )
    tabled = read_tables().get((family["cloud"], "usd_per_hour", name))
    if tabled is None:
        return None
    usd, table = tabled
    spot, of_spot = read_tables().get((family["cloud"], "spot_usd_per_hour", name), (None, {}))
    return Price(
        usd_per_hour=usd,
        source=table["source"],
        read=table["read"].isoformat(),
        region=table.get("region"),
        spot_usd_per_hour=spot,
        spot_source=of_spot.get("source"),
        spot_read=of_spot["read"].isoformat() if of_spot else None,
    )
