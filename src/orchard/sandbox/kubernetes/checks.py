"""What a cluster lacks for sandboxes, each with what to do; the most important first."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from orchard.core.config import env
from orchard.core.errors import CreateFailed, NotFound, OrchardError, Unauthorized
from orchard.core.tasks import cancel
from orchard.sandbox.kubernetes.backend import KubernetesBackend
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.credentials import find_access
from orchard.sandbox.kubernetes.identity import Identity, new_sandbox_id, pod_name
from orchard.sandbox.kubernetes.images import Images
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.pod import ImageFacts, Plan, manifest
from orchard.sandbox.kubernetes.record import progress_of
from orchard.sandbox.kubernetes.rights import lacking, rights
from orchard.sandbox.kubernetes.settings import KubernetesSettings, load_settings
from orchard.sandbox.orchard import Orchard
from orchard.sandbox.types import DEFAULT_CREATE_TIMEOUT, SandboxInfo, SandboxSpec
from orchard.sandbox.types import State as Stage

State: TypeAlias = Literal["ok", "missing", "absent", "unknown"]
"""``missing``: without it sandboxes cannot be made, or are not shut. ``absent``: only what ``meaning`` names is lost.
``unknown``: it cannot be told from here."""

_OLDEST = 28
_WINDOW = 5.0  # seconds of unbroken failure until the API server counts as out of reach
_ANSWER_SECONDS = 60.0  # that a container runs, until Pods count as not reached; 45 and its daemon gives up the seal
_LOOK_SECONDS = 1.0
_SERVICE_ACCOUNT = "run it in the cluster: kubectl -n NAMESPACE exec deploy/orchard -- orchard deploy check"
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
    reason: str | None = None
    """The reason of the error that told it, if it has one."""


def fitness(findings: Sequence[Finding]) -> bool | None:
    """Return whether sandboxes can be made and are shut; None: nothing is against it, but it was not seen."""
    if any(each.state == "missing" for each in findings):
        return False
    seen = {each.name for each in findings if each.state == "ok"}
    return True if {"sandbox", "network-policy"} <= seen else None


def how_to_try(findings: Sequence[Finding]) -> str:
    """Return what makes a ``fitness`` of None known."""
    untried = [each.mend for each in findings if each.name == "sandbox" and each.state == "unknown" and each.mend]
    return untried[0] if untried else f"{_SERVICE_ACCOUNT} (without --no-probe)"


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
            mend = error.hint or "is the cluster up, and its address right?"
            yield Finding("api", "missing", error.message, mend, error.reason)
            return
        for check in (_rights, _admission, _pod_security):
            yield await _tried(check, cluster, settings)
        if settings.daemon_image:
            yield await _tried(_registry, cluster, settings)
        if settings.daemon_image and probe:
            for finding in await _probe(cluster, settings):
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
        return Finding(check.__name__.strip("_").replace("_", "-"), "unknown", error.message, error.hint, error.reason)


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
        mend = f"kubectl create namespace {cluster.namespace}"
        return Finding("admission", "missing", error.message, mend, error.reason)
    except OrchardError as error:
        mend = (
            "the words name what stands against it: level of PodSecurity, quota, RuntimeClass, PriorityClass, webhook"
        )
        return Finding("admission", "missing", f"a sandbox's Pod is refused: {error.message}", mend, error.reason)
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
        return unread(error)
    if facts is None:
        words = "there is no skopeo here: what images say of themselves is not known (ENTRYPOINT, USER, architecture)"
        return Finding("registry", "absent", words, "install skopeo beside the service")
    return Finding("registry", "ok", f"the daemon's image is there: {facts.digest}")


def unread(error: CreateFailed) -> Finding:
    """Return what a registry says that did not show us the daemon's image; creates leave some of it to the nodes."""
    words = f"the daemon's image: {error.message}"
    theirs = {
        "registry_unreachable": "the nodes may reach it all the same",
        "image_auth": "nodes may have credentials of their own; pull_secrets names further ones",
    }.get(error.reason or "")
    if theirs is not None:
        return Finding("registry", "unknown", words, theirs, error.reason)
    return Finding("registry", "missing", words, "make images REGISTRY=… pushes it", error.reason)


class _Seen(KubernetesBackend):
    """One that tells which Pod it makes."""

    pod = ""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        self.pod = pod_name("", key)
        return await super().create(spec, key)


async def _probe(cluster: Cluster, settings: KubernetesSettings) -> list[Finding]:
    """Return what a real sandbox without network tells: policies, the data path, how commands are limited."""
    backend = _Seen(replace(settings, pull_timeout=min(settings.pull_timeout, DEFAULT_CREATE_TIMEOUT)))
    outside, ran = env("KUBERNETES_SERVICE_HOST") is None, False
    trying = asyncio.ensure_future(_try(backend))
    try:
        if outside:
            ran = await _seen_to_run(cluster, backend, trying)
            if not trying.done():
                return [_not_reached(f"a sandbox's container runs, and is not ready in {_ANSWER_SECONDS:g} s")]
        return await trying
    except OrchardError as error:
        return [unmade(error, outside=outside, ran=ran)]
    finally:
        await cancel(trying)
        await backend.close()


async def _try(backend: KubernetesBackend) -> list[Finding]:
    settings = backend.settings
    options = {"network": "none", "ttl": 120.0, "cpu": 0.05, "memory": 64 << 20}
    if settings.profile == "restricted" and settings.run_as is None:
        options["user"] = "65532"
    orchard = Orchard(backend=backend)
    async with orchard.sandbox(settings.daemon_image, **options) as box:  # type: ignore[arg-type]
        (await box.run(["/.orchard/bin/sandboxd", "version"])).check()
        v2 = await box.files.exists(_CGROUP_V2)
    words = "cgroup v2" if v2 else "cgroup v1, which Kubernetes 1.35 no longer starts on by itself"
    return [
        Finding("sandbox", "ok", "a sandbox was made, and a command ran in it"),
        Finding("network-policy", "ok", "policies bite: its network was seen to be shut before it was ready"),
        Finding("cgroup", "ok" if v2 else "absent", f"nodes run {words}", None if v2 else "nodes with cgroup v2"),
    ]


async def _seen_to_run(cluster: Cluster, backend: _Seen, trying: asyncio.Future[list[Finding]]) -> bool:
    """Return once ``trying`` is done, or the container of its Pod has run for a while: whether it was seen to run."""
    since: float | None = None
    while not trying.done():
        await asyncio.wait([trying], timeout=_LOOK_SECONDS)
        if since is None and backend.pod:
            with suppress(OrchardError):  # it is not there yet, or no more; what else there is, ``trying`` tells
                pod = await cluster.get(cluster.path("pods", backend.pod))
                since = time.monotonic() if progress_of(pod).state is Stage.READY else None
        elif since is not None and time.monotonic() - since > _ANSWER_SECONDS:
            break
    return since is not None


def _not_reached(words: str, reason: str | None = None) -> Finding:
    words = f"Pods, or what they reach, are not reached from here, so neither they nor policies were tried: {words}"
    return Finding("sandbox", "unknown", words, _SERVICE_ACCOUNT, reason)


def unmade(error: OrchardError, *, outside: bool, ran: bool) -> Finding:
    """Return what is learnt from a sandbox that could not be made.

    Args:
        error: why.
        outside: this is no Pod of the cluster, so that what is not reached from here may be reached there.
        ran: its container was seen to run.
    """
    if error.reason == "not_sealed":
        return Finding(
            "network-policy", "missing", f"no policy bites: {error.message}",
            "install a network that enforces NetworkPolicies on every Pod (Calico, Cilium, kube-router; on AKS and GKE"
            " it is switched on; those of the VPC CNI of EKS do not hold for Pods without a controller), or make"
            ' sandboxes with network="open" only, which keeps nothing in', error.reason,
        )  # fmt: skip
    if outside and (error.reason == "no_witness" or (ran and error.reason == "start_timeout")):
        return _not_reached(error.message, error.reason)
    if error.reason == "unschedulable":  # whether there is an autoscaler, and what it may add, nobody tells us
        mend = "an autoscaler may add a node: try again later; else the words name what keeps it from every node"
        return Finding("sandbox", "unknown", f"no node takes one now: {error.message}", mend, error.reason)
    return Finding("sandbox", "missing", f"none could be made: {error.message}", error.hint, error.reason)


async def _image_volume(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    chosen = settings.injection == "image-volume" or bool(settings.tools_repository)
    try:
        pod = await _dry_run(cluster, _sample(cluster, replace(settings, injection="image-volume")))
        kept, told = any("image" in each for each in parts(pod, "spec", "volumes")), "the API server drops them"
    except OrchardError as error:
        kept, told = False, error.message
    if not kept:
        words = f"no image volumes, so the daemon must be copied into each Pod, and none gets tools: {told}"
        mend = (
            "Kubernetes 1.35, or 1.33 with the feature gate ImageVolume on API server and nodes; or injection = init"
            " and no tools_repository"
        )
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
