"""metrics-server beside the control plane, for a while: it tells what each pod uses, and scalers read that."""

import contextlib
from collections.abc import Generator
from typing import Any

from tests.kubernetes.cluster.build import metrics_server
from tests.kubernetes.cluster.place import CONTROL, KUBECONFIG, PKI
from tests.kubernetes.cluster.processes import Part

NAMESPACE = "kube-system"
API = "v1beta1.metrics.k8s.io"
PODS = "/apis/metrics.k8s.io/v1beta1/pods"
_PORT = 4443
URL = f"https://{CONTROL.address}:{_PORT}"
"""Its own address; the cluster's authority signed its certificate."""


@contextlib.contextmanager
def running() -> Generator[None]:
    """It asks the kubelets every 10 s. Whether it is ready its ``/readyz`` says."""
    own = dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), KUBECONFIG)
    options = {
        **own,
        "secure-port": _PORT,
        "tls-cert-file": PKI / f"{CONTROL.name}.crt",
        "tls-private-key-file": PKI / f"{CONTROL.name}.key",
        "kubelet-certificate-authority": PKI / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "kubelet-request-timeout": "5s",
        "metric-resolution": "10s",
    }
    part = Part(
        "metrics-server", ["metrics-server", *(f"--{name}={value}" for name, value in options.items())], CONTROL
    )
    part.start(metrics_server())
    try:
        yield
    finally:
        part.stop(grace=0)


def objects() -> list[dict[str, Any]]:
    """Return the Service that leads to it, and the word to the API server that it answers for ``metrics.k8s.io``."""
    about = {"name": "metrics-server", "namespace": NAMESPACE}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": about,
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": _PORT}]},
    }
    slice_ = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**about, "labels": {"kubernetes.io/service-name": about["name"]}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": _PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [CONTROL.address]}],
    }
    answers = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": API},
        "spec": {
            "group": "metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": about,
        },
    }
    return [service, slice_, answers]
