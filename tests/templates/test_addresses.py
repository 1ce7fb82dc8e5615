"""addresses.py: what is set of torchrun, gloo and NCCL, and why, on hosts as they are found; two of them run in tests/test_two_hosts.py."""

from __future__ import annotations

import shlex
import socket

import pytest

DEBIAN = {"lo": "127.0.0.1", "docker0": "172.17.0.1", "eth0": "10.0.0.1"}


@pytest.fixture
def addresses(load, monkeypatch):
    leaf = load("addresses")
    monkeypatch.delenv("PET_LOCAL_ADDR", raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
    return leaf


def be_host(leaf, monkeypatch, interfaces: dict, ways: dict, own: set, kinds: dict | None = None, folder=None) -> None:
    """``ways``: from which address a host is reached; ``kinds``: DEVTYPE of interfaces, ``device`` for a port."""
    for name in interfaces:
        (folder / name).mkdir()
        kind = (kinds or {}).get(name, "")
        (folder / name / "uevent").write_text(f"INTERFACE={name}\n" + (f"DEVTYPE={kind}\n" if kind else ""))
        if name.startswith("eth"):
            (folder / name / "device").mkdir()
    monkeypatch.setattr(leaf, "INTERFACES", folder)
    monkeypatch.setattr(leaf, "list_addresses", lambda: interfaces)
    monkeypatch.setattr(leaf, "find_source", ways.get)
    monkeypatch.setattr(leaf, "resolve", lambda host: own)


def run(leaf, monkeypatch, capsys, node: str = "node-1") -> dict[str, str]:
    monkeypatch.setattr("sys.argv", ["addresses.py", node])
    leaf.main()
    lines = capsys.readouterr().out.splitlines()
    return dict(shlex.split(line, comments=True)[1].split("=", 1) for line in lines)


def test_a_name_that_stands_for_this_host_alone_is_not_what_gloo_listens_at(addresses, monkeypatch, capsys, tmp_path):
    """/etc/hosts of Debian on the first node: 127.0.1.1. The default route says where the others are."""
    ways = {"node-1": "127.0.0.1", addresses.ANYWHERE: "10.0.0.1"}
    be_host(addresses, monkeypatch, DEBIAN, ways, {"127.0.1.1"}, folder=tmp_path)
    assert run(addresses, monkeypatch, capsys) == {"PET_LOCAL_ADDR": "10.0.0.1", "GLOO_SOCKET_IFNAME": "eth0"}


def test_where_the_defaults_are_right_they_stay(addresses, monkeypatch, capsys, tmp_path):
    be_host(addresses, monkeypatch, DEBIAN, {"node-1": "10.0.0.1"}, {"10.0.0.1"}, folder=tmp_path)
    assert run(addresses, monkeypatch, capsys) == {"PET_LOCAL_ADDR": "10.0.0.1"}


def test_of_several_networks_the_one_that_leads_to_the_first_node(addresses, monkeypatch, capsys, tmp_path):
    interfaces = {"lo": "127.0.0.1", "eth0": "192.168.0.7", "eth1": "10.0.0.2"}
    be_host(addresses, monkeypatch, interfaces, {"node-1": "10.0.0.2"}, {"192.168.0.7"}, folder=tmp_path)
    assert run(addresses, monkeypatch, capsys) == {"PET_LOCAL_ADDR": "10.0.0.2", "GLOO_SOCKET_IFNAME": "eth1"}


def test_bridges_and_tunnels_are_left_out_of_nccl(addresses, monkeypatch, capsys, tmp_path):
    interfaces = DEBIAN | {"cni0": "10.244.0.1", "wg0": "10.8.0.2", "br0": "10.9.0.1"}
    kinds = {"cni0": "bridge", "wg0": "wireguard", "br0": "bridge"}
    be_host(addresses, monkeypatch, interfaces, {"node-1": "10.0.0.1"}, {"10.0.0.1"}, kinds, tmp_path)
    (tmp_path / "br0" / "lower_eth0").mkdir()  # over a port: a network like another
    found = run(addresses, monkeypatch, capsys)
    assert found["NCCL_SOCKET_IFNAME"] == "^lo,docker,virbr,cni0,wg0"


def test_the_only_interface_of_a_pod_is_taken(addresses, monkeypatch, capsys, tmp_path):
    """It has no device behind it, and no route leads out."""
    be_host(addresses, monkeypatch, {"lo": "127.0.0.1", "net0": "10.1.0.4"}, {}, {"10.1.0.4"}, folder=tmp_path)
    assert run(addresses, monkeypatch, capsys) == {"PET_LOCAL_ADDR": "10.1.0.4"}


def test_what_is_set_stays(addresses, monkeypatch, capsys, tmp_path):
    be_host(addresses, monkeypatch, DEBIAN, {"node-1": "10.0.0.1"}, {"127.0.1.1"}, folder=tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert run(addresses, monkeypatch, capsys) == {"PET_LOCAL_ADDR": "10.0.0.1"}


@pytest.mark.parametrize(
    ("node", "hostname", "names", "expected"),
    [
        ("10.0.0.1", "node-1", {"node-1": {"127.0.1.1"}}, "localhost"),
        ("first.cluster", "node-1", {"node-1": {"127.0.1.1"}, "first.cluster": {"10.0.0.1"}}, "localhost"),
        ("10.0.0.1", "unknown", {}, "localhost"),
        ("10.0.0.1", "node-1", {"node-1": {"10.0.0.1"}}, None),
        ("node-1", "node-1", {"node-1": {"127.0.1.1"}}, None),
        ("node-1.cluster", "node-1", {"node-1": {"127.0.1.1"}, "node-1.cluster": {"127.0.1.1"}}, None),
        ("10.0.0.2", "node-1", {"node-1": {"127.0.1.1"}}, None),
        ("localhost", "node-1", {"node-1": {"127.0.1.1"}, "localhost": {"127.0.0.1"}}, None),
    ],
)
def test_the_first_node_is_known_by_whatever_name_it_is_given(
    addresses, monkeypatch, capsys, tmp_path, node, hostname, names, expected
):
    """As torchrun knows it (torch 2.13), which else waits on all nodes for a store that none of them starts."""
    from torch.distributed.elastic.rendezvous import utils

    def resolve(host):
        return names.get(host, {host} if host[0].isdecimal() else set())

    def getaddrinfo(host, *_, **__):
        if found := resolve(host):
            return [(2, 1, 6, "", (address, 0)) for address in found]
        raise socket.gaierror(host)

    be_host(addresses, monkeypatch, DEBIAN, {node: "10.0.0.1"}, set(), folder=tmp_path)
    monkeypatch.setattr(addresses, "resolve", resolve)
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setenv("MASTER_ADDR", node)
    found = run(addresses, monkeypatch, capsys, node)
    assert found.get("MASTER_ADDR") == expected
    is_first = node != "10.0.0.2"
    assert utils._matches_machine_hostname(found.get("MASTER_ADDR", node)) == is_first


def test_nothing_is_guessed(addresses, monkeypatch, capsys, tmp_path):
    interfaces = {"lo": "127.0.0.1", "eth0": "192.168.0.7", "eth1": "10.0.0.2"}
    be_host(addresses, monkeypatch, interfaces, {"node-1": "127.0.0.1"}, {"127.0.1.1"}, folder=tmp_path)
    monkeypatch.setattr("sys.argv", ["addresses.py", "node-1"])
    addresses.main()
    output = capsys.readouterr()
    assert output.out == "" and "is not clear" in output.err and "GLOO_SOCKET_IFNAME" in output.err


@pytest.mark.parametrize("name", ["node-1..lan", "x" * 80])
def test_what_no_host_can_be_called_stands_for_nothing(load, name):
    leaf = load("addresses")
    assert leaf.find_source(name) is None and leaf.resolve(name) == set()
