"""`perfgen devices` and the plan's tables: every name in full, at 80 columns and in a pipe; nonsense is refused with what is near."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from generator.cli import perfgen
from generator.emit.plan_document import GoalRecord, OfferRecord
from generator.errors import UsageError
from generator.show import listings
from generator.show.terminal import build_offers_table
from hwdetect import catalog
from hwdetect.cloud import list_instances, list_unpriced


def run(*arguments: str) -> str:
    done = CliRunner().invoke(perfgen, ["devices", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_devices_are_named_in_full():
    lines = run().splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(catalog.list_ids())
    assert all(line.endswith(catalog.load(line.split()[0]).name) for line in lines)


@pytest.mark.parametrize(
    ("pattern", "device"),
    [("3090ti", "rtx-3090-ti"), ("Tesla T4", "t4"), ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"), ("h200-sxm", "h200-sxm-141gb")],
)  # fmt: skip
def test_a_device_is_found_by_whatever_it_is_called(pattern, device):
    told = json.loads(run("--json", pattern))
    assert told["schema"] == 1 and [d["id"] for d in told["devices"]] == [device]


def test_instances_of_a_board_are_listed_with_it():
    text = run("h100-sxm-80gb")
    assert "MIG h100-sxm-80gb:3g.40gb  at most 2, 60 of 132 multiprocessors, 39.5 GiB: https://" in text
    (told,) = json.loads(run("--json", "h100-sxm-80gb"))["devices"]
    assert {p["name"] for p in told["mig"]} >= {"1g.10gb", "7g.80gb"}


def test_an_instance_leads_to_its_board():
    """As `--hardware` reads it; one that the board does not have is refused with those that it has."""
    (told,) = json.loads(run("--json", "h100-mig-1g.10gb"))["devices"]
    assert told["id"] == "h100-sxm-80gb"
    with pytest.raises(UsageError, match=r"has no MIG instance 5g\.10gb; it has 1g\.10gb"):
        listings.select_devices("h100-mig-5g.10gb")


def test_a_source_stands_beside_its_number():
    lines = [line.strip() for line in run("rtx-4090-d").splitlines()]
    for words in (
        "peak_flops.bf16: 147.1 TFLOP/s  https://",
        "memory.bytes_per_s: 1,008 GB/s  https://",
        "power.tdp_watts: 425 W  https://",
    ):
        assert any(line.startswith(words) for line in lines), (words, lines)
    for device in catalog.list_devices():
        for field, _ in device.sources:
            told = listings.format_field(device, field)
            assert told or field == "host.kind", (device.id, field)
            assert "e+" not in told and (field != "host.kind" or device.kind not in told), (device.id, field, told)


@pytest.mark.parametrize(
    ("pattern", "ids"),
    [("m5", {"m5", "m5-pro", "m5-max"}), ("rubin", {"vr200"}), ("b60", {"arc-pro-b60"}), ("4070 ti", {"rtx-4070-ti", "rtx-4070-ti-super"})],
)  # fmt: skip
def test_a_name_is_looked_for_where_a_word_begins(pattern, ids):
    """`perfgen devices M5` named the H100 first, for its SXM5."""
    assert {device.id for device in listings.select_devices(pattern)} == ids


def test_cloud_instances_have_price_date_and_source():
    lines = run("--instances").splitlines()[1:]
    assert [line.split()[0] for line in lines[: len(list_instances())]] == [i.name for i in list_instances()]
    text = run("--instances", "p5.48xlarge")
    assert "8 x h100-sxm-80gb" in text and "price: https://" in text and "2026-" in text
    (told,) = json.loads(run("--instances", "--json", "p5.48xlarge"))["instances"]
    assert told["price"]["usd_per_hour"] > 0 and told["price"]["read"] and told["source"].startswith("https://")


@pytest.mark.parametrize(
    ("arguments", "near"), [(("rtx-4091",), "rtx-4090"), (("qqqqq",), ""), (("--instances", "p5.48xlarg3"), "p5.48xlarge")]
)  # fmt: skip
def test_nonsense_is_refused_with_what_is_near(arguments, near):
    with pytest.raises(UsageError, match="is called") as error:
        CliRunner().invoke(perfgen, ["devices", *arguments], catch_exceptions=False, standalone_mode=False)
    assert near in str(error.value) and error.value.code == 2


def test_a_cloud_without_prices_says_why():
    listed = run("--instances")
    clouds = {instance.cloud for instance in list_instances()}
    for cloud in list_unpriced():
        assert cloud.cloud not in clouds and f"no price of {cloud.cloud}: {cloud.why} ({cloud.read})" in listed
        for typed in (cloud.cloud, f"{cloud.cloud.title()}:8xh100"):
            with pytest.raises(UsageError) as error:
                CliRunner().invoke(
                    perfgen, ["devices", "--instances", typed], catch_exceptions=False, standalone_mode=False
                )
            assert cloud.why in str(error.value)
    assert {"vast", "together"} <= {cloud.cloud for cloud in list_unpriced()}


@pytest.mark.parametrize("arguments", [(), ("--instances",), ("--json",)])
def test_a_reader_that_stops_is_no_error(arguments):
    command = [sys.executable, "-m", "generator.cli", "devices", *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == b"" and child.wait(60) == 0


def test_an_instance_says_its_spot_price_with_its_day():
    text = CliRunner().invoke(perfgen, ["devices", "--instances", "p4d.24xlarge"]).output
    assert "21.96  us-east-1, 2026-07-20" in text and "spot: 14.23, 2026-08-06: https://" in text


@pytest.mark.parametrize(
    ("pci", "device"),
    [("10de:26b7", "l20"), ("10DE:248C", "rtx-3070-ti"), ("2207", "rtx-3070-ti"), ("248d", "rtx-3070"), ("248e", "rtx-3060-ti"), ("2501", "rtx-3060")],
)  # fmt: skip
def test_a_device_is_found_by_its_pci_id(pci, device):
    """lspci prints the two numbers, and not the name of a board that its table has not yet."""
    assert [found.id for found in listings.select_devices(pci)] == [device]


def test_tables_cut_no_name():
    offers = tuple(
        OfferRecord(
            hardware=f"2x{instance.name}",
            cloud=instance.cloud,
            devices=16,
            copies=2,
            concurrency=4,
            usd_per_hour=123456.78,
            usd_per_million_tokens=1234.567,
            tokens_per_day=1e15,
            latency_seconds=1234.5,
            price_read="2026-11-21",
            price_region="us-east-1",
            spot_usd_per_hour=99999.99,
            spot_read="2026-08-06",
            price_source=None,
            peak_memory_gib=1.0,
            choice={"parallelism": "fsdp2-no-reshard"},
        )
        for instance in sorted(list_instances(), key=lambda i: -len(i.name))[:3]
    )
    goal = GoalRecord(
        goal="cheapest",
        ranked_by="usd_per_hour",
        target_tokens_per_day=1e9,
        max_latency_seconds=None,
        concurrencies=(1, 4),
        offers=offers,
    )
    for width in (60, 80, 200):
        out = io.StringIO()
        Console(file=out, width=width).print(build_offers_table(goal))
        text = out.getvalue()
        assert "…" not in text
        if width == 200:
            assert all(offer.hardware in text for offer in offers)
            assert "(spot 2026-08-06)" in text
