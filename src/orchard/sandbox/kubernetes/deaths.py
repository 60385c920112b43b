"""Why a Pod ended: one of ``GONE_REASONS``, with the cluster's or sandboxd's own words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
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


def classify(pod: Json) -> Death | None:
    """Return why the Pod's sandbox has ended, or None while it has not."""
    status = part(pod, "status")
    ended = _terminated(status)
    if ended is None and status.get("phase") not in ("Failed", "Succeeded"):
        asked = parse_time(pod["metadata"].get("deletionTimestamp"))
        return None if asked is None else Death("deleted", None, asked)
    at = parse_time((ended or {}).get("finishedAt")) or datetime.now(UTC)
    words = status.get("message") or (ended or {}).get("message")
    if status.get("reason") == "Evicted":
        return Death("evicted", words, at)
    if ended is not None and ended.get("reason") == "OOMKilled":
        return Death("oom", words, at)
    if status.get("reason") == "DeadlineExceeded":
        return Death("ttl", words, at)
    note = _last_words(ended)
    if note is not None:
        return Death(note[0], note[1], at)
    code = (ended or {}).get("exitCode")
    return Death("unknown", str(words or f"the main process ended with code {code}"), at)


def _terminated(status: Json) -> Json | None:
    for each in parts(status, "containerStatuses"):
        if each["name"] == CONTAINER:
            return cast("Json | None", each["state"].get("terminated"))
    return None


def _last_words(ended: Json | None) -> tuple[str, str | None] | None:
    """Return what sandboxd wrote; only with its own exit code, since a command may write there too."""
    if ended is None or ended.get("exitCode") != 0:
        return None
    try:
        note = json.loads(ended.get("message") or "")
    except ValueError:
        return None
    if not isinstance(note, dict):
        return None
    facts = cast("Json", note)
    reason = str(facts.get("reason"))
    return (reason, str(facts.get("detail") or "") or None) if reason in GONE_REASONS else None


def parse_time(text: object) -> datetime | None:
    """Return an RFC 3339 time, aware; None of what is none."""
    return datetime.fromisoformat(text) if isinstance(text, str) and text else None
