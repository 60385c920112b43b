"""The daemon's image in the registry of the cluster, and backends on it."""

import asyncio
import hashlib
import socket
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import PATIENCE, kubectl, run

from orchard.sandbox.conformance import roots
from orchard.sandbox.kubernetes import Ingress, KubernetesSettings
from orchard.sandbox.kubernetes.daemon_image import write_daemon_image
from orchard.sandbox.local.settings import packaged_sandboxd


@cache
def daemon_image(registry: str, plain: bool) -> str:
    """Push sandboxd as it is built now, under a tag of its content; return the reference."""
    binary = packaged_sandboxd()
    reference = f"{registry}/sandboxd:{hashlib.sha256(binary.read_bytes()).hexdigest()[:16]}"
    with tempfile.TemporaryDirectory(prefix="orchard-") as folder:
        layout = write_daemon_image(binary, Path(folder) / "layout")
        copy = ("skopeo", "--insecure-policy", "copy", "--quiet", "--dest-compress")
        run(*copy, f"--dest-tls-verify={str(not plain).lower()}", layout, f"docker://{reference}")
    return reference


def our_address(cluster: Cluster) -> str:
    """Return the address from which this machine speaks with the cluster."""
    return _address_towards(cluster.programs, cluster.kubeconfig)


@cache
def _address_towards(programs: Path, kubeconfig: Path) -> str:
    server = urlsplit(
        kubectl(programs, kubeconfig, "config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server.hostname, server.port or 443))  # nothing is sent
        return str(probe.getsockname()[0])


def settings_for(cluster: Cluster, namespace: str, **given: Any) -> KubernetesSettings:
    """Return settings for sandboxes in ``namespace``, as small as tests need them."""
    ingress = Ingress(cidrs=[f"{our_address(cluster)}/32"])
    plain = [cluster.registry, cluster.private_registry] if cluster.plain else []
    small = {"cpu": "10m", "memory": "16Mi"}
    given = {"requests": small, "ingress": ingress, "insecure_registries": plain, **given}
    image = daemon_image(cluster.registry, cluster.plain)
    return KubernetesSettings(namespace=namespace, kubeconfig=cluster.kubeconfig, daemon_image=image, **given)


@cache
def special_images(registry: str, plain: bool) -> Mapping[str, str]:
    """Push the special images of the conformance suite; return kind -> reference."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="orchard-") as folder:
        for kind, layout in roots.special_images(Path(folder)).items():
            found[kind] = f"{registry}/conformance-{kind}:1"
            copy = ("skopeo", "--insecure-policy", "copy", "--quiet", "--dest-compress")
            run(*copy, f"--dest-tls-verify={str(not plain).lower()}", layout, f"docker://{found[kind]}")
    return found


def pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Return the Pods of a namespace."""
    return cluster.get("-n", namespace, "pods")["items"]


async def gone(cluster: Cluster, namespace: str) -> None:
    """Wait until a namespace has no Pods."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(pods, cluster, namespace):  # noqa: ASYNC110 - the cluster rings no bell here
            await asyncio.sleep(1)
