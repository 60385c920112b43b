"""From a Pod to what is told of it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import cast

from orchard.sandbox.kubernetes import deaths, labels
from orchard.sandbox.kubernetes.identity import Identity
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.pod import CONTAINER, CREATED, FACTS, INSTALLER, SPEC, notes
from orchard.sandbox.kubernetes.pulls import FINAL, pull_reason
from orchard.sandbox.types import SandboxInfo, State


def created_at(pod: Json) -> datetime:
    """Return when it was asked for: our own note, which is finer than the server's second."""
    own = deaths.parse_time(notes(pod).get(CREATED))
    return own or deaths.parse_time(pod["metadata"].get("creationTimestamp")) or datetime.now(UTC)


def info_of(pod: Json, who: Identity) -> SandboxInfo:
    """Return what is known of the sandbox of a Pod that is proven to be ours."""
    spec = cast("Json", json.loads(notes(pod).get(SPEC) or "{}"))
    facts = cast("Json", json.loads(notes(pod).get(FACTS) or "{}"))
    created = created_at(pod)
    info = SandboxInfo(
        id=who.id,
        state=progress_of(pod).state,
        image=str(spec.get("image") or ""),
        image_digest=facts.get("digest") or _digest(pod),
        labels=labels.from_pod(part(pod, "metadata", "labels")),
        created_at=created,
        expires_at=created + timedelta(seconds=float(spec["ttl"])) if "ttl" in spec else None,
        backend="kubernetes",
        workdir=spec.get("workdir") or facts.get("workdir") or "/",
        user=facts.get("user", "") if spec.get("user") is None else str(spec["user"]),
        env=part(facts, "env") | part(spec, "env"),
    )
    death = deaths.classify(pod)
    if death is None:
        return info
    return replace(info, state=State.GONE, reason=death.reason, detail=death.detail, ended_at=death.at, expires_at=None)


@dataclass(frozen=True)
class Progress:
    """How far a Pod has come on its way to ready."""

    state: State
    """``PULLING`` while the sandbox's image may be on its way: the ready clock stands still."""
    address: str | None = None
    """Where sandboxd is, or will be in a moment."""
    failure: tuple[str, str] | None = None
    """Reason of ``CREATE_REASONS`` and the cluster's words: it will not become ready."""
    unschedulable: str | None = None
    """The scheduler's words, while no node can take it."""
    pull_trouble: str | None = None
    """The kubelet's words, while it tries a pull again that has failed and may succeed."""


_HOPELESS = {
    "InvalidImageName": "image_invalid", "ErrImageNeverPull": "image_not_found",
    "SignatureValidationFailed": "image_auth", "CreateContainerConfigError": "start_failed",
    "CreateContainerError": "start_failed", "RunContainerError": "start_failed",
    "PreCreateHookError": "start_failed", "PostStartHookError": "start_failed",
}  # fmt: skip
"""Reasons of the kubelet for a container that waits, from which it does not recover by itself."""
_PULL_FAILED = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")


def progress_of(pod: Json) -> Progress:
    """Return how far it is by its status, in the cluster's own words."""
    status = part(pod, "status")
    if status.get("phase") in ("Failed", "Succeeded"):
        return Progress(State.STARTING, failure=_failure(pod))
    if (unscheduled := _unscheduled(status)) is not None:
        return Progress(State.STARTING, unschedulable=unscheduled)
    installer = _state(status, "initContainerStatuses", INSTALLER)
    sandbox = _state(status, "containerStatuses", CONTAINER)
    for container in (installer, sandbox):
        trouble = _trouble(part(container, "waiting"))
        if trouble is not None:
            return trouble if container is sandbox else _not_prepared(trouble)
    if "terminated" in sandbox:
        return Progress(State.STARTING, failure=_failure(pod))
    address = _address(status)
    if "running" in sandbox:
        return Progress(State.READY, address)
    brought = any(each["name"] == INSTALLER for each in parts(pod, "spec", "initContainers"))
    if ("terminated" in installer or not brought) and _state_known(status):
        return Progress(State.PULLING, address)
    return Progress(State.STARTING)


def _trouble(waiting: Json) -> Progress | None:
    words = f"{waiting.get('reason')}: {waiting.get('message') or ''}".strip(": ")
    reason = _HOPELESS.get(str(waiting.get("reason")))
    if reason is None and waiting.get("reason") in _PULL_FAILED:
        reason = pull_reason(words)
        if reason not in FINAL:
            return Progress(State.PULLING, pull_trouble=words)
    return None if reason is None else Progress(State.STARTING, failure=(reason, words))


def _not_prepared(trouble: Progress) -> Progress:
    """The daemon's own image is no matter of the caller's."""
    if trouble.failure is None:
        return trouble
    return Progress(State.STARTING, failure=("start_failed", f"the image of the daemon: {trouble.failure[1]}"))


def _state(status: Json, kind: str, name: str) -> Json:
    """Return the state of our container: others may stand before it, which a webhook has put there."""
    return next((part(each, "state") for each in parts(status, kind) if each["name"] == name), Json())


def _state_known(status: Json) -> bool:
    return bool(status.get("containerStatuses"))


def _unscheduled(status: Json) -> str | None:
    for each in parts(status, "conditions"):
        if each["type"] == "PodScheduled" and each["status"] == "False" and each.get("reason") == "Unschedulable":
            return str(each.get("message") or "no node can take it")
    return None


def _failure(pod: Json) -> tuple[str, str]:
    death = deaths.classify(pod)
    if death is not None and death.reason == "not_sealed":
        return death.reason, f"{death.detail}; does the network of this cluster enforce NetworkPolicies?"
    return "start_failed", _end_words(part(pod, "status"))


def _end_words(status: Json) -> str:
    parts = [str(status.get("reason") or ""), str(status.get("message") or "")]
    for kind, name in (("initContainerStatuses", INSTALLER), ("containerStatuses", CONTAINER)):
        ended = part(_state(status, kind, name), "terminated")
        if ended and ended.get("exitCode") != 0:
            parts.append(f"{ended.get('reason')} (exit code {ended.get('exitCode')}): {ended.get('message') or ''}")
        elif ended and kind == "containerStatuses":
            parts.append(f"it ended: {ended.get('message') or ended.get('reason')}")
    return " ".join(part for part in parts if part).strip(": ") or "the Pod ended"


def _address(status: Json) -> str | None:
    address = status.get("podIP")
    if not address:
        return None
    return f"[{address}]" if ":" in address else str(address)


def _digest(pod: Json) -> str | None:
    for each in parts(pod, "status", "containerStatuses"):
        if each["name"] == CONTAINER and "@sha256:" in str(each.get("imageID")):
            return "sha256:" + str(each["imageID"]).rpartition("@sha256:")[2]
    return None
