"""The command line of each part, in the order they start."""

import sys
from pathlib import Path

from tests.kubernetes.cluster.pki import kubeconfig
from tests.kubernetes.cluster.place import (
    CONTROL,
    HOST,
    KUBECONFIG,
    NODES,
    OUTSIDE,
    PKI,
    PODS,
    PRIVATE_REGISTRY,
    PRIVATE_SPEED,
    RUN,
    SERVICES,
    Node,
)
from tests.kubernetes.cluster.processes import Part

_ETCD = "http://127.0.0.1:2379"
_BEHIND = f"{HOST}:5002"
"""Where the private registry listens without its brake."""
_FIREWALL = 0.2
"""Of a processor for each kube-router, which writes all rules anew at each change of any pod: unbounded, that was a
fifth of all that the machine did. A hundred creates at once must still be sealed within 45 s, else they are refused."""
_CHECKOUT = Path(__file__).parents[3]


def etcd() -> Part:
    """The store; without fsync, as the cluster does not outlive the machine."""
    peers = "http://127.0.0.1:2380"
    flags: dict[str, str | Path] = {
        "data-dir": RUN / "etcd",
        "listen-client-urls": _ETCD,
        "advertise-client-urls": _ETCD,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"default={peers}",
        "log-level": "warn",
    }
    return Part("etcd", ["etcd", "--unsafe-no-fsync", *_flags(flags)], CONTROL)


def apiserver() -> Part:
    """The API server: RBAC and node authorisation, priority and fairness and pod security as by default.

    To servers that answer for a part of its API it says who asks, and shows a certificate of its own.
    """
    flags = {
        "etcd-servers": _ETCD,
        "advertise-address": CONTROL.address,
        "cert-dir": RUN / "apiserver",
        "tls-cert-file": PKI / "apiserver.crt",
        "tls-private-key-file": PKI / "apiserver.key",
        "client-ca-file": PKI / "ca.crt",
        "requestheader-client-ca-file": PKI / "ca.crt",
        "requestheader-allowed-names": "kube-apiserver",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": PKI / "apiserver.crt",
        "proxy-client-key-file": PKI / "apiserver.key",
        "service-account-key-file": PKI / "sa.pub",
        "service-account-signing-key-file": PKI / "sa.key",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-cluster-ip-range": SERVICES,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "feature-gates": "ImageVolume=true",
        "kubelet-preferred-address-types": "InternalIP",
        "kubelet-client-certificate": PKI / "admin.crt",
        "kubelet-client-key": PKI / "admin.key",
        "kubelet-certificate-authority": PKI / "ca.crt",
    }
    return Part("apiserver", ["kube-apiserver", *_flags(flags)], CONTROL)


def controller_manager() -> Part:
    """The controllers; a silent node counts as lost after 20 s instead of 50, scalers look every 5 s instead of 15."""
    flags = {
        "service-account-private-key-file": PKI / "sa.key",
        "root-ca-file": PKI / "ca.crt",
        "flex-volume-plugin-dir": RUN / "volume-plugins",
        "use-service-account-credentials": "true",
        "node-monitor-grace-period": "20s",
        "horizontal-pod-autoscaler-sync-period": "5s",
    }
    return _manager("controller-manager", flags)


def scheduler() -> Part:
    """The scheduler."""
    return _manager("scheduler", {})


def node_parts(node: Node) -> list[Part]:
    """What makes a node: containerd, kubelet, kube-proxy for Services, kube-router as firewall for NetworkPolicies."""
    kubelet = {
        "config": node.folder / "kubelet.json",
        "kubeconfig": kubeconfig(node.name),
        "hostname-override": node.name,
        "node-ip": node.address,
        "root-dir": node.folder / "kubelet",
        "cert-dir": node.folder,
    }
    proxy = {
        "kubeconfig": KUBECONFIG,
        "hostname-override": node.name,
        "cluster-cidr": PODS,
        "proxy-mode": "iptables",
        "conntrack-max-per-core": 0,
        "conntrack-tcp-timeout-established": 0,
        "conntrack-tcp-timeout-close-wait": 0,
    }
    router = {
        "kubeconfig": KUBECONFIG,
        "hostname-override": node.name,
        "run-firewall": "true",
        "run-router": "false",
        "run-service-proxy": "false",
        "run-loadbalancer": "false",
        "service-cluster-ip-range": SERVICES,
    }
    return [
        Part(f"{node.name}-containerd", ["containerd", "-c", node.folder / "containerd.toml"], node),
        Part(f"{node.name}-kubelet", ["kubelet", *_flags(kubelet)], node),
        Part(f"{node.name}-kube-proxy", ["kube-proxy", *_flags(proxy)], node),
        Part(f"{node.name}-kube-router", ["kube-router", *_flags(router)], node, {"NODE_NAME": node.name}, _FIREWALL),
    ]


def registries() -> list[Part]:
    """The registry of all images; the same store behind a password; and the brake before that one."""
    brake = [sys.executable, "-m", "tests.kubernetes.cluster.brake", PRIVATE_REGISTRY, _BEHIND, str(PRIVATE_SPEED)]
    return [
        Part("registry", ["docker-registry", "serve", RUN / "registry.yaml"]),
        Part("private-registry", ["docker-registry", "serve", RUN / "private-registry.yaml"]),
        Part("private-registry-brake", brake, env={"PYTHONPATH": str(_CHECKOUT)}),
    ]


def outside() -> Part:
    """A server at the world's addresses, which says ``outside`` to who asks for ``/passwd``."""
    serve = [sys.executable, "-m", "http.server", "80", "--directory", RUN / "outside"]
    return Part("outside", serve, OUTSIDE)


def all_parts() -> dict[str, Part]:
    """Return every part by its name, in the order they start."""
    control = [etcd(), apiserver(), controller_manager(), scheduler()]
    parts = [outside(), *registries(), *control, *(part for node in NODES for part in node_parts(node))]
    return {part.name: part for part in parts}


def _manager(name: str, flags: dict[str, str | Path]) -> Part:
    own = dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), kubeconfig(name))
    rates = {"leader-elect": "false", "kube-api-qps": 1000, "kube-api-burst": 2000}
    return Part(name, [f"kube-{name}", *_flags({**own, **flags, **rates})], CONTROL)


def _flags(flags: dict[str, str | Path | int] | dict[str, str | Path]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]
