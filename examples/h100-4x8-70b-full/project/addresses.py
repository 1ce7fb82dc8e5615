"""How the other nodes reach this one, as lines for env.sh: each library has a default of its own, and it may be wrong.

python addresses.py NODE        NODE is the first of them, at which all meet
"""

import fcntl
import os
import shlex
import socket
import struct
import sys
from pathlib import Path

INTERFACES = Path("/sys/class/net")
SIOCGIFADDR = 0x8915
UNREACHED = ("lo", "docker", "virbr")
"""Beginnings of the names that NCCL itself leaves out."""
ANYWHERE = "192.0.2.1"  # of no host (RFC 5737): the way to it is the default route, and nothing is sent


def list_addresses() -> dict[str, str]:
    """The IPv4 address of every interface that is up and has one."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:  # it has none
                continue
            addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


def find_source(host: str) -> str | None:
    """The address from which this host sends to that one; ``None`` where it is not known, or no way leads there."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return probe.getsockname()[0]
    except (OSError, UnicodeError):  # no name can be so
        return None


def is_physical(name: str) -> bool:
    """Whether a device is behind it, or behind what it is made of: a bond, a VLAN, a bridge over a port."""
    folder = INTERFACES / name
    return (folder / "device").exists() or any(is_physical(lower.name[6:]) for lower in folder.glob("lower_*"))


def is_virtual(name: str) -> bool:
    """A bridge of containers, or a tunnel: the same address on every host, or slow. The port of a pod is neither."""
    folder = INTERFACES / name
    kinds = [line.partition("=")[2] for line in (folder / "uevent").read_text().splitlines() if "DEVTYPE=" in line]
    return (kinds in (["bridge"], ["wireguard"]) or (folder / "tun_flags").exists()) and not is_physical(name)


def find_interface(node: str, addresses: dict[str, str]) -> str | None:
    """By which the first node is reached. On that its name may stand for 127.0.1.1, as Debian has it: then that of the
    default route, or the only one."""
    for source in (find_source(node), find_source(ANYWHERE)):
        for name, address in addresses.items():
            if address == source and name != "lo":
                return name
    others = [name for name in addresses if not name.startswith(UNREACHED) and not is_virtual(name)]
    return others[0] if len(others) == 1 else None


def resolve(host: str) -> set[str]:
    """What gloo would listen at."""
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, socket.AF_INET)}
    except (OSError, UnicodeError):
        return set()


def choose_meeting(node: str, addresses: dict[str, str]) -> dict[str, tuple[str, str]]:
    """On the first node, where torchrun would not know that it is the one: no launcher would start the store."""
    own, hostname, meeting = resolve(socket.gethostname()), socket.gethostname(), resolve(node)
    if not meeting & set(addresses.values()) or meeting & own or node in ("localhost", hostname):
        return {}
    stands_for = ", ".join(sorted(own)) or "nothing"
    reason = f"this is {node}; torchrun asks for the addresses of {hostname} alone, which stands for {stands_for}"
    return {"MASTER_ADDR": ("localhost", reason)}


def choose_settings(interface: str, addresses: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Values with their reasons, where a default is wrong."""
    address, own = addresses[interface], resolve(socket.gethostname())
    settings = {"PET_LOCAL_ADDR": (address, "other nodes need not know this host by its name")}
    if own != {address}:
        stands_for = ", ".join(sorted(own)) or "nothing"
        settings["GLOO_SOCKET_IFNAME"] = (interface, f"gloo listens at this host's name, which stands for {stands_for}")
    virtual = [n for n in addresses if n != interface and not n.startswith(UNREACHED) and is_virtual(n)]
    if virtual:
        left_out = "^" + ",".join((*UNREACHED, *virtual))
        settings["NCCL_SOCKET_IFNAME"] = (left_out, f"NCCL would take {', '.join(virtual)} too: bridges and tunnels")
    return settings


def main() -> None:
    node, addresses = sys.argv[1], list_addresses()
    settings, interface = choose_meeting(node, addresses), find_interface(node, addresses)
    if interface is None:
        print(
            f"addresses.py: how other nodes reach this one is not clear ({node}; {addresses}): where they do not meet, "
            "set PET_LOCAL_ADDR, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME in .env",
            file=sys.stderr,
        )
    else:
        settings |= choose_settings(interface, addresses)
    for name, (value, reason) in settings.items():
        if name not in os.environ or name == "MASTER_ADDR":  # which is NODE
            print(f"export {name}={shlex.quote(value)} # {reason}")


if __name__ == "__main__":
    main()
