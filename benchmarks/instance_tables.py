"""Writes ``hwdetect/prices.toml`` from the tables that five projects generate and keep: prices of AWS, Azure, GCP and RunPod, AWS's network.

    python benchmarks/instance_tables.py --aws karpenter-provider-aws --azure karpenter-provider-azure --gcp karpenter-provider-gcp
        --sky gcp 8427bbff... 2026-11-24 gcp.csv --sky runpod 01acdfd4... 2026-11-24 runpod.csv --spot 69bcec67... 2026-08-06 spot.json

The first three are clones (or bare git directories) of https://github.com/aws/karpenter-provider-aws,
https://github.com/Azure/karpenter-provider-azure and https://github.com/cloudpilot-ai/karpenter-provider-gcp. SkyPilot's catalogue
(https://github.com/skypilot-org/skypilot-catalog) has 1.8 GB: a file of it is given, or some of its lines, with its revision and the day;
likewise AWS's own feed of spot prices, which https://github.com/alexei-led/spotinfo keeps (internal/spot/data/spot-price-data.json, and a
manifest with the day). The tables of what is not given stay as they are. Only facts about types of ``instances.toml`` are taken: dollars
an hour on demand and as spot, and megabits a second that a type sustains; each with the commit and the day on which that table was made.
A type is priced in its cloud's home region, or, where that has it not, in the cheapest of the United States.
"""

from __future__ import annotations

import argparse
import csv
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
SKY = "https://github.com/skypilot-org/skypilot-catalog"
SPOT = "https://github.com/alexei-led/spotinfo"
SPOT_PRICES = "internal/spot/data/spot-price-data.json"
GCP_PRICES = "pkg/providers/pricing/initial-prices.json"
BANDWIDTH = "pkg/providers/instancetype/zz_generated.bandwidth.go"
AWS_PRICES = "pkg/providers/pricing/zz_generated.pricing_aws.go"
AZURE_PRICES = "pkg/providers/pricing/zz_generated.pricing.go"
AWS_HOME = "us-east-1"
ROW = re.compile(r'"([\w.-]+)":\s*([\d.]+)')
REGION = re.compile(r'(?:"([\w-]+)": |\["([\w-]+)"\] = map\[string\]float64)\{\n')
US = re.compile(r"^us(-(?!gov)|$)|^(?!us)[a-z]+us\d?$")
TPU = re.compile(r"(ct4p|ct5lp|ct5p|ct6e)-\w+-(\d+)t")
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


def read_regions(text: str) -> dict[str, dict[str, float]]:
    """The rows of each region: from its name to the brace that closes its table."""
    regions = {name: float_rows(text, match) for match in REGION.finditer(text) if (name := match[1] or match[2])}
    if not regions:
        raise SystemExit("no table of any region: the file has another form than on 2026-08-21")
    return regions


def float_rows(text: str, match: re.Match[str]) -> dict[str, float]:
    return {name: float(number) for name, number in ROW.findall(text[match.end() : text.index("}", match.end())])}


def place_types(prices: dict[str, dict[str, float]], home: str) -> dict[str, list[str]]:
    """The types of each region that are priced there: at home where it has them, otherwise where the United States are cheapest."""
    placed: dict[str, list[str]] = {home: []}
    for name in sorted({name for rows in prices.values() for name in rows}):
        regions = [region for region, rows in prices.items() if name in rows and (region == home or US.search(region))]
        if regions:
            chosen = home if home in regions else min(regions, key=lambda region: (prices[region][name], region))
            placed.setdefault(chosen, []).append(name)
    return placed


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
    yield from read_go_prices("aws", repository, AWS, AWS_PRICES, AWS_HOME)


def read_spot(commit: str, day: str, path: str) -> Iterator[Table]:
    """What AWS itself told that day of each type with Linux, in the region in which its types are priced."""
    regions = {
        r["region"]: r["instanceTypes"] for r in json.loads(Path(path).read_text(encoding="utf-8"))["config"]["regions"]
    }
    rows = {
        size["size"]: float(column["prices"]["USD"])
        for kind in regions[AWS_HOME]
        for size in kind["sizes"]
        for column in size["valueColumns"]
        if column["name"] == "linux" and not column["prices"]["USD"].startswith("N/A")
    }
    source = f"{SPOT}/blob/{commit}/{SPOT_PRICES}"
    yield Table(cloud="aws", key="spot_usd_per_hour", rows=rows, source=source, day=day, region=AWS_HOME)


def read_go_prices(cloud: str, repository: Path, address: str, path: str, home: str) -> Iterator[Table]:
    text = show(repository, path)
    made, (commit, day) = DAY.search(text), read_commit(repository)
    day = made.group(1) if made else day
    yield from make_tables(cloud, read_regions(text), {}, home, f"{address}/blob/{commit}/{path}", day)


def make_tables(
    cloud: str, prices: dict[str, dict], spots: dict[str, dict], home: str, source: str, day: str
) -> Iterator[Table]:
    """On demand, and as spot in the same region."""
    for region, names in place_types(prices, home).items():
        for key, rows in (("usd_per_hour", prices), ("spot_usd_per_hour", spots)):
            ours = {name: rows[region][name] for name in names if name in rows.get(region, {})}
            yield Table(cloud=cloud, key=key, rows=ours, source=source, day=day, region=region)


def read_gcp(repository: Path) -> Iterator[Table]:
    """Whole machine types with their accelerators; N1 types are told without theirs, and our names of those are not in it."""
    commit, day = read_commit(repository, GCP_PRICES)
    regions = json.loads(show(repository, GCP_PRICES))["prices"]
    prices, spots = ({r: rows.get(name, {}) for r, rows in regions.items()} for name in ("on_demand", "spot"))
    yield from make_tables("gcp", prices, spots, "us-central1", f"{GCP}/blob/{commit}/{GCP_PRICES}", day)


def read_sky(cloud: str, commit: str, day: str, path: str) -> Iterator[Table]:
    """RunPod's types, and GCP's hosts of TPUs: those are paid by the chip, host and all, and stand there under the slice's name."""
    prices: dict[str, dict[str, float]] = {}
    spots: dict[str, dict[str, float]] = {}
    hosts = {name_slice(i.name): i.name for i in list_instances() if TPU.fullmatch(i.name)}
    with Path(path).open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            name = hosts.get(row["AcceleratorName"]) if cloud == "gcp" else row["InstanceType"]
            if name and row["Price"]:
                usd, spot = float(row["Price"]), float(row["SpotPrice"] or 0)
                prices.setdefault(row["Region"], {})[name] = usd
                if 0 < spot < usd:  # one that is no cheaper says that there is none
                    spots.setdefault(row["Region"], {})[name] = spot
    home = {"gcp": "us-central1", "runpod": "US"}[cloud]
    yield from make_tables(cloud, prices, spots, home, f"{SKY}/blob/{commit}/catalogs/v8/{cloud}/vms.csv", day)


def name_slice(host: str) -> str:
    """``ct6e-standard-4t`` is tpu-v6e-4; v4 and v5p count cores, of which a chip has two."""
    family, chips = TPU.fullmatch(host).groups()  # ty: ignore[unresolved-attribute]
    name, cores = {"ct4p": ("v4", 2), "ct5lp": ("v5litepod", 1), "ct5p": ("v5p", 2), "ct6e": ("v6e", 1)}[family]
    return f"tpu-{name}-{int(chips) * cores}"


def read_kept(path: Path, given: set[tuple[str, str]]) -> Iterator[Table]:
    """The tables of the file whose cloud and project are not among those that are read anew."""
    for table in tomllib.loads(path.read_text(encoding="utf-8"))["table"]:
        if (table["cloud"], table["source"].partition("/blob/")[0]) not in given:
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
    parser.add_argument("--sky", nargs=4, action="append", default=[], metavar=("CLOUD", "COMMIT", "DAY", "CSV"))
    parser.add_argument("--spot", nargs=3, metavar=("COMMIT", "DAY", "JSON"))
    arguments = vars(parser.parse_args())
    clones = {name: arguments[name] for name in readers if arguments[name]}
    given = {(name, readers[name][0]) for name in clones} | {(file[0], SKY) for file in arguments["sky"]}
    given |= {("aws", SPOT)} if arguments["spot"] else set()
    tables = list(read_kept(arguments["out"], given))
    for name, clone in clones.items():
        tables += readers[name][1](clone)
    for file in arguments["sky"]:
        tables += read_sky(*file)
    if arguments["spot"]:
        tables += read_spot(*arguments["spot"])
    tables.sort(
        key=lambda table: (table.cloud, table.source, table.key, table.region or "")
    )  # whichever were read anew
    known = {(i.cloud, i.name) for i in list_instances()}
    all_ours = (replace(t, rows={n: v for n, v in t.rows.items() if (t.cloud, n) in known}) for t in tables)
    ours = [table for table in all_ours if table.rows]
    arguments["out"].write_text("\n".join([HEAD, *(table.format() for table in ours)]), encoding="utf-8")


if __name__ == "__main__":
    main()
