"""Writes ``hwdetect/prices.toml`` from the tables that two projects generate and keep: prices and sustained network of AWS and Azure.

    python benchmarks/instance_tables.py --aws karpenter-provider-aws --azure karpenter-provider-azure

Both arguments are clones (or bare git directories) of https://github.com/aws/karpenter-provider-aws and
https://github.com/Azure/karpenter-provider-azure. Only facts about types of ``instances.toml`` are taken: dollars an hour on demand in
one region, and megabits a second that a type sustains; each with the commit and the day on which that table was made.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from hwdetect.cloud import list_instances

AWS, AZURE = "https://github.com/aws/karpenter-provider-aws", "https://github.com/Azure/karpenter-provider-azure"
BANDWIDTH = "pkg/providers/instancetype/zz_generated.bandwidth.go"
AWS_PRICES = "pkg/providers/pricing/zz_generated.pricing_aws.go"
AZURE_PRICES = "pkg/providers/pricing/zz_generated.pricing.go"
ROW = re.compile(r'"([\w.-]+)":\s*([\d.]+)')
DAY = re.compile(r"generated at (\d{4}-\d{2}-\d{2})")
HEAD = "# Written by benchmarks/instance_tables.py; edit that. Dollars an hour on demand, and gigabits a second that a type sustains.\n"


def show(repository: Path, path: str) -> str:
    command = ["git", "-C", str(repository), "show", f"HEAD:{path}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_commit(repository: Path) -> tuple[str, str]:
    """Its id and day."""
    command = ["git", "-C", str(repository), "log", "-1", "--format=%H %cs"]
    commit, day = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return commit, day


def read_region(text: str, region: str) -> dict[str, float]:
    """The rows of one region: from its name to the brace that closes its table."""
    _, opening, rest = text.partition(f'"{region}": {{')
    if not opening:
        _, opening, rest = text.partition(f'["{region}"] = map[string]float64{{')
    if not opening:
        raise SystemExit(f"no table of {region}: the file has another form than on 2026-08-21")
    return {name: float(number) for name, number in ROW.findall(rest[: rest.index("}")])}


def format_table(cloud: str, key: str, rows: dict[str, float], source: str, day: str, region: str | None) -> str:
    lines = ["[[table]]", f'cloud = "{cloud}"', f'source = "{source}"', f"read = {day}"]
    lines += [f'region = "{region}"'] if region else []
    return "\n".join([*lines, f"[table.{key}]", *(f'"{name}" = {rows[name]:g}' for name in sorted(rows)), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aws", type=Path, required=True)
    parser.add_argument("--azure", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "hwdetect/prices.toml")
    arguments = parser.parse_args()
    names = {cloud: {i.name for i in list_instances() if i.cloud == cloud} for cloud in ("aws", "azure")}
    commit, day = read_commit(arguments.aws)
    network = {name: float(mbit) / 1000 for name, mbit in ROW.findall(show(arguments.aws, BANDWIDTH))}
    tables = [("aws", "network_gbit_per_s", network, f"{AWS}/blob/{commit}/{BANDWIDTH}", day, None)]
    for cloud, repository, address, path, region in (
        ("aws", arguments.aws, AWS, AWS_PRICES, "us-east-1"),
        ("azure", arguments.azure, AZURE, AZURE_PRICES, "eastus"),
    ):
        text = show(repository, path)
        made = DAY.search(text)
        own = read_commit(repository)[0]
        rows = read_region(text, region)
        tables.append(
            (cloud, "usd_per_hour", rows, f"{address}/blob/{own}/{path}", made.group(1) if made else day, region)
        )
    texts = []
    for cloud, key, rows, source, when, region in tables:
        texts.append(
            format_table(cloud, key, {n: v for n, v in rows.items() if n in names[cloud]}, source, when, region)
        )
    arguments.out.write_text("\n".join([HEAD, *texts]), encoding="utf-8")


if __name__ == "__main__":
    main()
