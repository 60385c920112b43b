"""What a cluster lacks for sandboxes, each with what to do; the most important first."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from orchard.core.config import env
from orchard.core.errors import CreateFailed, NotFound, OrchardError, Unauthorized
from orchard.sandbox.kubernetes.backend import KubernetesBackend
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.credentials import find_access
from orchard.sandbox.kubernetes.identity import Identity, new_sandbox_id, pod_name
from orchard.sandbox.kubernetes.images import Images
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.pod import ImageFacts, Plan, manifest
from orchard.sandbox.kubernetes.rights import lacking, rights
from orchard.sandbox.kubernetes.settings import KubernetesSettings, load_settings
from orchard.sandbox.orchard import Orchard
from orchard.sandbox.types import SandboxSpec

State: TypeAlias = Literal["ok", "missing", "absent", "unknown"]
"""``missing``: without it sandboxes cannot be made, or are not shut. ``absent``: only what ``meaning`` names is lost.
``unknown``: it cannot be told from here."""

_OLDEST = 28
_WINDOW = 5.0  # seconds of unbroken failure until the API server counts as out of reach
_PROBE_SECONDS = 90.0
_SERVICE_ACCOUNT = "kubectl -n NAMESPACE exec deploy/orchard -- orchard deploy check"
_CGROUP_V2 = "/sys/fs/cgroup/cgroup.controllers"


@dataclass(frozen=True)
class Finding:
    """One finding about a cluster."""

    name: str
    state: State
    meaning: str
    """What was found, and what it is for."""
    mend: str | None = None
    """What to do about it."""


async def examine(settings: KubernetesSettings | None = None, *, probe: bool = True) -> AsyncIterator[Finding]:
    """Yield every finding as it is made, in order of importance; nothing is left behind.

    Args:
        settings: None: as for ``KubernetesBackend``.
        probe: also make a sandbox without network, of the daemon's own image, and run a command in it.
    """
    settings = settings or load_settings()
    cluster = Cluster(settings, await find_access(settings), window=_WINDOW)
    try:
        try:
            yield await _version(cluster)
        except OrchardError as error:
            yield Finding("api", "missing", error.message, error.hint or "is the cluster up, and its address right?")
            return
        for check in (_rights, _admission, _pod_security):
            yield await _tried(check, cluster, settings)
        if settings.daemon_image:
            yield await _tried(_registry, cluster, settings)
        if settings.daemon_image and probe:
            async for finding in _probe(settings):
                yield finding
        for check in (_image_volume, _storage, _metrics, _monitor):
            yield await _tried(check, cluster, settings)
    finally:
        await cluster.close()


async def _tried(
    check: Callable[[Cluster, KubernetesSettings], Awaitable[Finding]], cluster: Cluster, settings: KubernetesSettings
) -> Finding:
    try:
        return await check(cluster, settings)
    except OrchardError as error:
        return Finding(check.__name__.strip("_").replace("_", "-"), "unknown", error.message, error.hint)


async def _version(cluster: Cluster) -> Finding:
    told = await cluster.get("/version")
    minor = int("".join(filter(str.isdigit, str(told["minor"]))))
    words = f"Kubernetes {told['gitVersion']}, sandboxes in namespace {cluster.namespace}"
    if (int(told["major"]), minor) < (1, _OLDEST):
        return Finding("version", "missing", words, f"1.{_OLDEST} or newer is needed")
    return Finding("version", "ok", words)


async def _rights(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    refused = await lacking(cluster, rights(cluster.namespace, settings))
    if not refused:
        return Finding("rights", "ok", "all that the service asks of the API server is granted to you")
    words = "not granted: " + "; ".join(map(str, refused))
    mend = "grant it: the Role is in deploy/chart/templates/rbac.yaml"
    if any(right.required for right in refused):
        return Finding("rights", "missing", words, mend)
    return Finding("rights", "absent", f"{words}: what it tells is then found out late, or not at all", mend)


def _sample(cluster: Cluster, settings: KubernetesSettings) -> Json:
    name = pod_name("", secrets.token_hex())
    who = Identity(cluster.namespace, name, new_sandbox_id(name), "")
    image = settings.daemon_image or "registry.invalid/sandboxd"
    user = str(settings.run_as or (65532 if settings.profile == "restricted" else ""))
    facts = ImageFacts(reference=image, digest="", user=user)
    return manifest(Plan(SandboxSpec(image), who, "", "", datetime.now(UTC), facts), settings)


async def _dry_run(cluster: Cluster, pod: Json) -> Json:
    return await cluster.request("POST", cluster.path("pods"), params={"dryRun": "All"}, body=pod)


async def _admission(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    if not settings.daemon_image:
        return Finding(
            "admission", "missing", "the image of the daemon is not named",
            "make images REGISTRY=…, then name daemon_image in the file that ORCHARD_KUBERNETES names",
        )  # fmt: skip
    try:
        await _dry_run(cluster, _sample(cluster, settings))
    except NotFound as error:
        return Finding("admission", "missing", error.message, f"kubectl create namespace {cluster.namespace}")
    except OrchardError as error:
        mend = (
            "the words name what stands against it: level of PodSecurity, quota, RuntimeClass, PriorityClass, webhook"
        )
        return Finding("admission", "missing", f"a sandbox's Pod is refused: {error.message}", mend)
    return Finding("admission", "ok", f"Pods of sandboxes are admitted (profile {settings.profile})")


async def _pod_security(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    pod = _sample(cluster, settings)
    await _dry_run(cluster, pod)  # else whatever refuses this one would be taken for what refuses the other
    pod["spec"]["hostNetwork"] = True
    try:
        await _dry_run(cluster, pod)
    except Unauthorized:
        return Finding("pod-security", "ok", "Pods with power over their node are refused in this namespace")
    label = f"pod-security.kubernetes.io/enforce={settings.profile}"
    return Finding(
        "pod-security", "absent", "nothing keeps Pods with power over their node out of this namespace",
        f"kubectl label namespace {cluster.namespace} {label}",
    )  # fmt: skip


async def _registry(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    try:
        facts = await Images(settings, cluster).facts(settings.daemon_image)
    except CreateFailed as error:
        silent = error.reason == "registry_unreachable"
        return Finding(
            "registry", "unknown" if silent else "missing", f"the daemon's image: {error.message}",
            "the nodes may reach it all the same" if silent else "make images REGISTRY=… pushes it",
        )  # fmt: skip
    if facts is None:
        words = "there is no skopeo here: what images say of themselves is not known (ENTRYPOINT, USER, architecture)"
        return Finding("registry", "absent", words, "install skopeo beside the service")
    return Finding("registry", "ok", f"the daemon's image is there: {facts.digest}")


async def _probe(settings: KubernetesSettings) -> AsyncIterator[Finding]:
    """Yield what a real sandbox without network tells: policies, the data path, how commands are limited."""
    backend = KubernetesBackend(replace(settings, pull_timeout=_PROBE_SECONDS))
    try:
        options = {"network": "none", "ttl": 120.0, "create_timeout": 60.0, "cpu": 0.05, "memory": 64 << 20}
        if settings.profile == "restricted" and settings.run_as is None:
            options["user"] = "65532"
        orchard = Orchard(backend=backend)
        async with orchard.sandbox(settings.daemon_image, **options) as box:  # type: ignore[arg-type]
            (await box.run(["/.orchard/bin/sandboxd", "version"])).check()
            yield Finding("sandbox", "ok", "a sandbox was made, and a command ran in it")
            yield Finding("network-policy", "ok", "policies bite: its network was seen to be shut before it was ready")
            v2 = await box.files.exists(_CGROUP_V2)
            words = "cgroup v2" if v2 else "cgroup v1, which Kubernetes 1.35 no longer starts on by itself"
            yield Finding(
                "cgroup", "ok" if v2 else "absent", f"nodes run {words}", None if v2 else "nodes with cgroup v2"
            )
    except OrchardError as error:
        yield _unmade(error)
    finally:
        await backend.close()


def _unmade(error: OrchardError) -> Finding:
    if error.reason == "not_sealed":
        return Finding(
            "network-policy", "missing", f"no policy bites: {error.message}",
            "install a network that enforces NetworkPolicies (Calico, Cilium, kube-router; on AKS, EKS and GKE it is"
            ' switched on), or make sandboxes with network="open" only, which keeps nothing in',
        )  # fmt: skip
    outside = env("KUBERNETES_SERVICE_HOST") is None
    if outside and error.reason in ("start_timeout", "no_witness"):
        words = f"Pods are not reached from here, so neither they nor policies were tried: {error.message}"
        return Finding("sandbox", "unknown", words, f"run it in the cluster: {_SERVICE_ACCOUNT}")
    return Finding("sandbox", "missing", f"none could be made: {error.message}", error.hint)


async def _image_volume(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    chosen = settings.injection == "image-volume" or bool(settings.tools_repository)
    try:
        pod = await _dry_run(cluster, _sample(cluster, replace(settings, injection="image-volume")))
        kept, told = any("image" in each for each in parts(pod, "spec", "volumes")), "the API server drops them"
    except OrchardError as error:
        kept, told = False, error.message
    if not kept:
        words = f"no image volumes, so the daemon must be copied into each Pod, and none gets tools: {told}"
        mend = "Kubernetes 1.33, or injection = init and no tools_repository"
        return Finding("image-volume", "missing" if chosen else "absent", words, mend)
    words = "the API server takes image volumes"
    return Finding("image-volume", "ok", words + ("" if chosen else ': injection = "image-volume" starts faster'))


async def _storage(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    nodes = (await cluster.get("/api/v1/nodes", limit="500"))["items"]
    without = [
        each["metadata"]["name"] for each in nodes if not part(each, "status", "allocatable").get("ephemeral-storage")
    ]
    if without:
        words = f"disk limits have no effect on {', '.join(without[:5])}: no ephemeral-storage is told of"
        return Finding("storage", "absent", words, "let the kubelet account for it (localStorageCapacityIsolation)")
    return Finding("storage", "ok", f"{len(nodes)} nodes account for ephemeral-storage")


async def _metrics(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    if await _group(cluster, "metrics.k8s.io"):
        return Finding("metrics", "ok", "metrics.k8s.io is served")
    return Finding(
        "metrics", "absent", "no metrics.k8s.io: the service cannot be scaled by load", "install metrics-server"
    )


async def _monitor(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    if await _group(cluster, "monitoring.coreos.com"):
        return Finding("monitor", "ok", "ServiceMonitor is known")
    return Finding("monitor", "absent", "no Prometheus operator: scrape /v1/metrics by other means", None)


async def _group(cluster: Cluster, name: str) -> bool:
    return any(each["name"] == name for each in parts(await cluster.get("/apis"), "groups"))
