"""Writes ``hwdetect/prices.toml`` from the tables that three projects generate and keep: prices of AWS, Azure and GCP, AWS's network.

    python benchmarks/instance_tables.py --aws karpenter-provider-aws --azure karpenter-provider-azure --gcp karpenter-provider-gcp

The arguments are clones (or bare git directories) of https://github.com/aws/karpenter-provider-aws,
https://github.com/Azure/karpenter-provider-azure and https://github.com/cloudpilot-ai/karpenter-provider-gcp; the tables of a cloud whose
clone is not given stay as they are. Only facts about types of
``instances.toml`` are taken: dollars an hour in one region, on demand and as spot, and megabits a second that a type sustains; each with
the commit and the day on which that table was made.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hwdetect.cloud import list_instances

AWS, AZURE = "https://github.com/aws/karpenter-provider-aws", "https://github.com/Azure/karpenter-provider-azure"
GCP = "https://github.com/cloudpilot-ai/karpenter-provider-gcp"
GCP_PRICES = "pkg/providers/pricing/initial-prices.json"
BANDWIDTH = "pkg/providers/instancetype/zz_generated.bandwidth.go"
AWS_PRICES = "pkg/providers/pricing/zz_generated.pricing_aws.go"
AZURE_PRICES = "pkg/providers/pricing/zz_generated.pricing.go"
ROW = re.compile(r'"([\w.-]+)":\s*([\d.]+)')
DAY = re.compile(r"generated at (\d{4}-\d{2}-\d{2})")
HEAD = "# Written by benchmarks/instance_tables.py; edit that. Dollars an hour on demand or as spot, and gigabits a second that a type sustains.\n"


def show(repository: Path, path: str) -> str:
    command = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_commit(repository: Path, path: str = ".") -> tuple[str, str]:
    """Its id, and the day on which the file was last changed."""
    command = ["git", "-C", str(repository), "log", "-1", "--format=%H"]
    commit = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    command = ["git", "-C", str(repository), "log", "-1", "--format=%cs", "HEAD", "--", path]
    return commit, subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def read_region(text: str, region: str) -> dict[str, float]:
    """The rows of one region: from its name to the brace that closes its table."""
    _, opening, rest = text.partition(f'"{region}": {{')
    if not opening:
        _, opening, rest = text.partition(f'["{region}"] = map[string]float64{{')
    if not opening:
        raise SystemExit(f"no table of {region}: the file has another form than on 2026-08-21")
    return {name: float(number) for name, number in ROW.findall(rest[: rest.index("}")])}


@dataclass(frozen=True, kw_only=True)
class Table:
    """``rows`` of one key (``usd_per_hour``, …) by type, as one source has them for one region."""

    cloud: str
    key: str
    rows: dict[str, float]
    source: str
    day: str
    region: str | None = None

    def format(self) -> str:
        lines = ["[[table]]", f'cloud = "{self.cloud}"', f'source = "{self.source}"', f"read = {self.day}"]
        lines += [f'region = "{self.region}"'] if self.region else []
        return "\n".join(
            [*lines, f"[table.{self.key}]", *(f'"{n}" = {self.rows[n]:.6g}' for n in sorted(self.rows)), ""]
        )


def read_aws(repository: Path) -> Iterator[Table]:
    commit, day = read_commit(repository)
    network = {name: float(mbit) / 1000 for name, mbit in ROW.findall(show(repository, BANDWIDTH))}
    source = f"{AWS}/blob/{commit}/{BANDWIDTH}"
    yield Table(cloud="aws", key="network_gbit_per_s", rows=network, source=source, day=day)
    yield from read_go_prices("aws", repository, AWS, AWS_PRICES, "us-east-1")


def read_go_prices(cloud: str, repository: Path, address: str, path: str, region: str) -> Iterator[Table]:
    text = show(repository, path)
    made, (commit, day) = DAY.search(text), read_commit(repository)
    rows, source = read_region(text, region), f"{address}/blob/{commit}/{path}"
    yield Table(
        cloud=cloud, key="usd_per_hour", rows=rows, source=source, day=made.group(1) if made else day, region=region
    )


def read_gcp(repository: Path) -> Iterator[Table]:
    """Whole machine types with their accelerators; N1 types are told without theirs, and our names of those are not in it."""
    commit, day = read_commit(repository, GCP_PRICES)
    region = "us-central1"
    prices, source = json.loads(show(repository, GCP_PRICES))["prices"][region], f"{GCP}/blob/{commit}/{GCP_PRICES}"
    for key, name in (("usd_per_hour", "on_demand"), ("spot_usd_per_hour", "spot")):
        yield Table(cloud="gcp", key=key, rows=prices[name], source=source, day=day, region=region)


def read_kept(path: Path, sources: list[str]) -> Iterator[Table]:
    """The tables of the file whose source is not among those that are read anew."""
    for table in tomllib.loads(path.read_text(encoding="utf-8"))["table"]:
        if not any(table["source"].startswith(source) for source in sources):
            key = next(key for key in ("usd_per_hour", "spot_usd_per_hour", "network_gbit_per_s") if key in table)
            yield Table(cloud=table["cloud"], key=key, rows=table[key], source=table["source"], day=table["read"].isoformat(),
                        region=table.get("region"))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    readers = {
        "aws": (AWS, read_aws),
        "azure": (AZURE, lambda clone: read_go_prices("azure", clone, AZURE, AZURE_PRICES, "eastus")),
        "gcp": (GCP, read_gcp),
    }
    for name in readers:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "hwdetect/prices.toml")
    arguments = vars(parser.parse_args())
    given = {name: arguments[name] for name in readers if arguments[name]}
    tables = list(read_kept(arguments["out"], [readers[name][0] for name in given]))
    for name, clone in given.items():
        tables += readers[name][1](clone)
    known = {cloud: {i.name for i in list_instances() if i.cloud == cloud} for cloud in ("aws", "azure", "gcp")}
    ours = [replace(t, rows={n: v for n, v in t.rows.items() if n in known[t.cloud]}) for t in tables]
    arguments["out"].write_text("\n".join([HEAD, *(table.format() for table in ours)]), encoding="utf-8")


if __name__ == "__main__":
    main()
