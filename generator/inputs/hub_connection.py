"""Whether the hub can be reached at all: seen before it is asked, for its library has no deadline to connect."""

from __future__ import annotations

import socket
import threading
from queue import Empty, Queue

CONNECT_SECONDS = 2.0
"""How long a name may take to be looked up and a connection to be made: what takes longer, a few requests would not finish in."""
PORTS = {"http": 80, "https": 443}
reached: set[tuple[str, int]] = set()
"""addresses that answered in this process"""


def find_hub_address(endpoint: str) -> tuple[str, int] | None:
    """Host and port that a request to ``endpoint`` connects to: its own, or those of the proxy that the environment names."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass  # brings HTTP and TLS: only those who ask the hub pay

    hub = urlsplit(endpoint)
    proxies = {} if proxy_bypass(hub.hostname or "") else getproxies()
    proxy = proxies.get(hub.scheme) or proxies.get("all")
    try:
        target = urlsplit(proxy if proxy is None or "://" in proxy else f"http://{proxy}") if proxy else hub
        port = target.port or PORTS.get(target.scheme)
    except ValueError:  # a port that is no number: the library says so
        return None
    return (target.hostname, port) if target.hostname and port else None


def explain_no_connection(endpoint: str) -> str | None:
    """Why nothing answers at ``endpoint``, seen within ``CONNECT_SECONDS``; ``None`` where something does, or nobody can tell."""
    address = find_hub_address(endpoint)
    if address is None or address in reached:
        return None
    outcomes: Queue[str | None] = Queue()

    def connect() -> None:
        try:
            socket.create_connection(address, CONNECT_SECONDS).close()
            outcomes.put(None)
        except (OSError, UnicodeError) as error:
            outcomes.put(str(error) or type(error).__name__)

    # a thread, for nothing ends the look-up of a name
    threading.Thread(target=connect, name="perfgen-connect", daemon=True).start()
    try:
        reason = outcomes.get(timeout=CONNECT_SECONDS)
    except Empty:
        reason = f"no connection to {address[0]} in {CONNECT_SECONDS:g} s"
    if reason is None:
        reached.add(address)
    return reason
