"""Why a Pod ended: one of ``GONE_REASONS``, with the cluster's or sandboxd's own words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from orchard.core.errors import GONE_REASONS
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.pod import CONTAINER


@dataclass(frozen=True)
class Death:
    """The end of one sandbox."""

    reason: str
    detail: str | None
    at: datetime
    """Aware, UTC."""


UNDONE_GRACE = 2
"""Seconds of grace with which a Pod goes whose create failed. By it alone is such a one told from what somebody has
deleted, and it is written in the same request: neither ``kubectl delete`` (30, or the Pod's own) nor ``--now`` (1)
takes it, and the kubelet gives no container less."""
_TOLD_TO_END = 143
"""Exit code of sandboxd after SIGTERM in a Pod; with 0 the kubelet would forget why it evicted the Pod."""
_DISRUPTIONS = {
    "PreemptionByScheduler": "evicted",
    "EvictionByEvictionAPI": "evicted",  # kubectl drain, an autoscaler
    "TerminationByKubelet": "evicted",  # pressure on the node, or the node shuts down
    "DeletionByTaintManager": "node_lost",  # it has not answered for as long as the Pod tolerates
    "DeletionByPodGC": "node_lost",
}
"""Reasons of a Pod's condition DisruptionTarget."""
_STATUS_REASONS = {
    "Evicted": "evicted", "Preempting": "evicted", "Terminated": "evicted", "NodeShutdown": "evicted",
    "NodeLost": "node_lost", "DeadlineExceeded": "ttl",
}  # fmt: skip
"""The kubelet's reasons for a Pod that it has ended."""


def classify(pod: Json) -> Death | None:
    """Return why the Pod's sandbox has ended, or None while it has not.

    What sandboxd says of its own end comes before what befell the Pod afterwards. Its container alone decides: with
    another beside it, which a webhook has put there, a Pod is ``Running`` for as long as that one runs.
    """
    status = part(pod, "status")
    main = _main(status)
    ended = cast("Json | None", part(main, "state").get("terminated"))
    over = status.get("phase") in ("Failed", "Succeeded")
    if main.get("restartCount") and not over and ended is None:  # it also counts what the kubelet only did not find
        at = parse_time(part(main, "lastState", "terminated").get("finishedAt")) or datetime.now(UTC)
        return Death("restarted", "its container was started anew, so its state is lost", at)
    around = _around(pod)
    if ended is None and not over:
        return around if pod["metadata"].get("deletionTimestamp") else None
    at = parse_time((ended or {}).get("finishedAt")) or datetime.now(UTC)
    reason, words = _cause(status, ended or {}, around)
    if reason in ("signal", "unknown") and not over and not _outlived(status):
        return None  # the kubelet is about to say why it, or who, ended the container
    return Death(reason, words, at)


def undone(pod: Json) -> bool:
    """Return True if the Pod goes because its create failed: nobody was answered for it, so its key is free again."""
    metadata = pod["metadata"]
    return bool(metadata.get("deletionTimestamp")) and metadata.get("deletionGracePeriodSeconds") == UNDONE_GRACE


def _cause(status: Json, ended: Json, around: Death | None) -> tuple[str, str | None]:
    words = status.get("message") or ended.get("message")
    if (reason := _STATUS_REASONS.get(str(status.get("reason")))) is not None:
        return reason, words
    note = _last_words(ended)
    if note is not None and note[0] != "signal":
        return note
    if note is None and ended.get("reason") == "OOMKilled":  # with a note it was a command's, sometime before
        return "oom", words or "the memory of the sandbox was used up"
    if around is not None:  # the signal, if any, came from there
        return around.reason, around.detail
    if note is not None:
        return note
    if ended.get("reason") == "ContainerStatusUnknown":  # the kubelet came back and did not find it
        return "node_lost", words
    return "unknown", str(words or f"the main process ended with code {ended.get('exitCode')}")


def _main(status: Json) -> Json:
    return next((each for each in parts(status, "containerStatuses") if each["name"] == CONTAINER), Json())


def _outlived(status: Json) -> bool:
    """Return True if a container beside the sandbox's has not ended."""
    return any("terminated" not in part(each, "state") for each in parts(status, "containerStatuses"))


def _around(pod: Json) -> Death | None:
    """Return what befell the Pod from outside: a disruption that the cluster tells of, or a deletion."""
    conditions = {each["type"]: each for each in parts(pod, "status", "conditions")}
    asked = parse_time(pod["metadata"].get("deletionTimestamp"))
    disrupted = conditions.get("DisruptionTarget")
    if disrupted is not None and disrupted["status"] == "True":
        reason = _DISRUPTIONS.get(str(disrupted.get("reason")), "evicted")
        at = parse_time(disrupted.get("lastTransitionTime")) or asked or datetime.now(UTC)
        return Death(reason, f"{disrupted.get('reason')}: {disrupted.get('message') or ''}".strip(": "), at)
    if asked is None:
        return None
    asked -= timedelta(seconds=int(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
    return Death("deleted", "its Pod was deleted", asked)


def _last_words(ended: Json) -> tuple[str, str | None] | None:
    """Return what sandboxd wrote; only with its own exit codes, since a command may write there too."""
    if ended.get("exitCode") not in (0, _TOLD_TO_END):
        return None
    try:
        note = json.loads(ended.get("message") or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(note, dict):
        return None
    facts = cast("Json", note)
    reason, detail = facts.get("reason"), facts.get("detail")
    if reason not in GONE_REASONS or not isinstance(detail, str):
        return None
    return reason, detail.encode("utf-8", "replace").decode() or None  # a lone surrogate could not be written down


def parse_time(text: object) -> datetime | None:
    """Return an RFC 3339 time, aware; None of what is none."""
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None
