"""Nodes of kwok: the API server sees nodes and pods, nothing runs. For the control path at sizes no machine holds."""

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster.place import CONTROL
from tests.kubernetes.cluster.processes import Part

LABEL = "orchard.test/simulated"
"""Label and taint of simulated nodes: pods that are to go there select and tolerate it."""
ROOM = 5000
"""Most pods of one of them."""
ADDRESSES = "10.200.0.0/16"
"""Of simulated pods; they lead nowhere."""


@contextlib.contextmanager
def running(kubeconfig: Path, programs: Path, addresses: str = ADDRESSES) -> Generator[None]:
    """Kwok plays every node with our label, for a while; pods get their IPs from the range ``addresses``."""
    options = (
        f"--manage-nodes-with-label-selector={LABEL}=true",
        "--manage-all-nodes=false",
        f"--kubeconfig={kubeconfig}",
    )
    part = Part("kwok", ["kwok", *options, "--node-lease-duration-seconds=40", f"--cidr={addresses}"], CONTROL)
    part.start(programs)
    try:
        yield
    finally:
        part.stop(grace=0)


def node(name: str) -> dict[str, Any]:
    """Return a simulated node with room for ``ROOM`` pods."""
    size = {"cpu": "10000", "memory": "100Ti", "ephemeral-storage": "100Ti", "pods": str(ROOM)}
    labels = {LABEL: "true", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": LABEL, "value": "true", "effect": "NoSchedule"}]},
        "status": {"allocatable": size, "capacity": size},
    }
