"""The cluster's network: one bridge, each node a network namespace on it. The machine's own firewall stays as it is."""

import contextlib
from pathlib import Path

from tests.kubernetes.cluster.place import BRIDGE, HOST, INTERNET, METADATA, NODES, OUTSIDE, Node
from tests.kubernetes.cluster.processes import run

from orchard.core.errors import MachineUnfit

_BY_HOST = f"{HOST}/16"
_ALL = (*NODES, OUTSIDE)


def make() -> None:
    """Make the bridge, a namespace for each node and one for the world outside, and the routes between them."""
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("addr", "add", _BY_HOST, "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    for node in _ALL:
        _ip("netns", "add", node.namespace)
        _ip("link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
        _ip("link", "set", node.link, "master", BRIDGE, "up")
        inside = ("-n", node.namespace)
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "addr", "add", f"{node.address}/16", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "route", "add", "default", "via", HOST)
        for other in NODES:
            if other != node:
                _ip(*inside, "route", "add", other.pods, "via", other.address)
    for node in NODES:
        for address in (INTERNET, METADATA):
            _ip("-n", node.namespace, "route", "add", address, "via", OUTSIDE.address)
        run("nsenter", f"--net=/run/netns/{node.namespace}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        _ip("route", "add", node.pods, "via", node.address)
    for address in (INTERNET, METADATA):
        _ip("-n", OUTSIDE.namespace, "addr", "add", f"{address}/32", "dev", "lo")


def remove() -> None:
    """Remove all of it; what is not there is no error."""
    for node in _ALL:
        if Path(f"/run/netns/{node.namespace}").exists():
            _ip("netns", "del", node.namespace)
    for link in (*(node.link for node in _ALL), BRIDGE):
        if Path(f"/sys/class/net/{link}").exists():
            with contextlib.suppress(MachineUnfit):  # a cable goes by itself with its namespace, a moment later
                _ip("link", "del", link)
    folder = Path("/run/netns")
    if folder.exists() and not any(folder.iterdir()):  # `ip netns` mounts it over itself and leaves it
        with contextlib.suppress(MachineUnfit):
            run("umount", folder)
        folder.rmdir()


def left() -> list[str]:
    """Return what of it there is."""
    spaces = [Path("/run/netns") / node.namespace for node in _ALL]
    links = [Path("/sys/class/net") / name for name in (BRIDGE, *(node.link for node in _ALL))]
    return [str(path) for path in (*spaces, *links) if path.exists()]


def plug(node: Node, *, into: bool) -> None:
    """Plug the node's cable into the bridge, or pull it out."""
    _ip("link", "set", node.link, "up" if into else "down")


def _ip(*words: str) -> None:
    run("ip", *words)
