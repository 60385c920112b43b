"""Where the cluster's parts are: names, addresses and folders. One cluster at most lives on a machine."""

from dataclasses import dataclass
from pathlib import Path

RUN = Path("/var/lib/orchard-cluster")
"""All that a running cluster keeps on disk; ``cluster-down`` removes it."""
LOGS = RUN / "log"
PIDS = RUN / "pids"
PKI = RUN / "pki"
KUBECONFIG = RUN / "admin.kubeconfig"

BRIDGE = "orchard-br"
HOST = "10.245.255.254"
"""The machine's own address on the cluster's bridge: the registries listen here, pods reach it."""
SERVICES = "10.96.0.0/16"
PODS = "10.244.0.0/16"
KUBERNETES = "10.96.0.1"
DNS = "10.96.0.10"

REGISTRY = f"{HOST}:5000"
PRIVATE_REGISTRY = f"{HOST}:5001"
"""Holds the same images, wants a password and hands blobs out slowly."""
PRIVATE_USER, PRIVATE_PASSWORD = "puller", "let-me-pull"
PRIVATE_SPEED = 256 * 1024
"""Bytes a second of one connection to the private registry."""


@dataclass(frozen=True)
class Node:
    """A node: a network namespace on the bridge, with a kubelet and a containerd of its own."""

    name: str
    address: str
    pods: str
    """The addresses of its pods, 1,021 of them."""

    @property
    def folder(self) -> Path:
        """Its state."""
        return RUN / self.name

    @property
    def namespace(self) -> str:
        """Its network namespace's name."""
        return f"orchard-{self.name}"

    @property
    def link(self) -> str:
        """The bridge's end of its cable."""
        return f"oc-{self.name}"

    @property
    def cgroup(self) -> str:
        """The cgroup of all its pods, below each hierarchy."""
        return f"orchard-{self.name}"

    @property
    def socket(self) -> Path:
        """Where its containerd listens."""
        return self.folder / "containerd.sock"


NODES = (Node("node1", "10.245.0.1", "10.244.4.0/22"), Node("node2", "10.245.0.2", "10.244.8.0/22"))
OUTSIDE = Node("outside", "10.245.0.9", "")
"""No node but the world: a network of its own on the bridge, where the addresses below answer HTTP on port 80."""
INTERNET = "203.0.113.1"
METADATA = "169.254.169.254"
CONTROL = NODES[0]
"""The node whose network the control plane lives in."""
API = f"https://{CONTROL.address}:6443"
