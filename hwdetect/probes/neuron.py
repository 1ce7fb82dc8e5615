"""AWS Inferentia and Trainium, from ``neuron-ls`` or the driver's device nodes."""

from __future__ import annotations

import re

from hwdetect.machine.protocol import Machine
from hwdetect.probes import pci
from hwdetect.probes.notes import Notes, note_no_board, run_tool
from hwdetect.probes.parsing import get_mapping, get_text, parse_integer, parse_json
from hwdetect.probes.partial import NOTHING, PartialHardware, list_board_accelerators
from hwdetect.types import Board, Link

SECONDS = 1.5
NEURON = {
    "inf1": "AWS Inferentia",
    "inf2": "AWS Inferentia2",
    "trn1": "AWS Trainium",
    "trn2": "AWS Trainium2",
    "trn3": "AWS Trainium3",
}
# The platform names its own product: then the catalogue needs no other proof.
CATALOGUE = {
    "AWS Inferentia": "inferentia",
    "AWS Inferentia2": "inferentia2",
    "AWS Trainium": "trainium",
    "AWS Trainium2": "trainium2",
    "AWS Trainium3": "trainium3",
}


def read_neuron(machine: Machine, listed: tuple[pci.PciDevice, ...], notes: Notes) -> PartialHardware:
    """``neuron-ls``: devices with their memory; what they are called stands in the instance's product name."""
    devices = [n for n in machine.list_folder("dev") if re.fullmatch(r"neuron\d+", n)]
    if machine.live and not devices:
        return NOTHING
    text = run_tool(machine, ("neuron-ls", "--json-output"), SECONDS, notes, "boards")
    document = parse_json(text)
    # Since 2.20 the tool names the instance beside its list (`instance_type`); before it printed the list alone.
    named = get_text(get_mapping(document).get("instance_type")) or next(
        (
            text
            for entry in (document if isinstance(document, list) else [])
            if (text := get_text(get_mapping(entry).get("instance_type")))
        ),
        None,
    )
    entries = get_mapping(document).get("neuron_devices", get_mapping(document).get("mlas", document))
    listed_devices = [get_mapping(entry) for entry in entries] if isinstance(entries, list) else []
    if not listed_devices:
        note_no_board(notes, "neuron-ls", text)
    product = (named or machine.read("sys/class/dmi/id/product_name") or "").split(".")[0].strip()
    name = NEURON.get(product[:4])
    boards = tuple(
        Board(
            index=i,
            vendor="aws",
            name=name,
            device=CATALOGUE.get(name or ""),
            pci_address=_complete_address(get_text(entry.get("bdf"))),
            numa_node=_parse_node(get_text(entry.get("numa_node"))),
            cpu_affinity=get_text(entry.get("cpu_affinity")),
            memory_bytes=parse_integer(get_text(entry.get("memory_size"))),
            compute_units=parse_integer(get_text(entry.get("nc_count"))),
            state="ok",
        )
        for i, entry in enumerate(listed_devices)
    ) or tuple(
        Board(index=i, vendor="aws", name=name, device=CATALOGUE.get(name or ""), state="ok")
        for i, _ in enumerate(devices)
    )
    return PartialHardware(
        boards=boards, accelerators=list_board_accelerators(boards), links=_list_links(listed_devices)
    )


def _list_links(entries: list[dict[str, object]]) -> tuple[Link, ...]:
    """NeuronLinks between the devices that are listed: each names its neighbours, by numbers of the instance (`connected_to`)."""
    places = {parse_integer(get_text(entry.get("neuron_device"))): i for i, entry in enumerate(entries)}
    pairs = set()
    for place, entry in enumerate(entries):
        neighbours = entry.get("connected_to")
        for number in neighbours if isinstance(neighbours, list) else []:
            other = places.get(parse_integer(get_text(number)))
            if other is not None and other != place:
                pairs.add((min(place, other), max(place, other)))
    return tuple(Link(a=a, b=b, kind="neuronlink") for a, b in sorted(pairs))


def _complete_address(text: str | None) -> str | None:
    """``0000:cc:00.0``: older versions leave the domain out."""
    address = (text or "").lower()
    address = f"0000:{address}" if address.count(":") == 1 else address
    return address if pci.ADDRESS.fullmatch(address) else None


def _parse_node(text: str | None) -> int | None:
    node = parse_integer(text)
    return node if node is not None and node >= 0 else None
