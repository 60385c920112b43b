"""Prometheus metrics of one service. No label ever holds an id, a tenant or a key."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from orchard.sandbox.protocol import Backend, Shared

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAST = (0.001, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
_SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_COUNT_AFTER = 5.0  # seconds for which a count of living sandboxes is shown again


class Metrics:
    """What a scrape shows."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._registry = CollectorRegistry()
        self.started = time.time()
        names = ("room", "method", "status")
        self._requests = Counter("orchard_requests", "Requests answered", names, registry=self._registry)
        self._seconds = Histogram(
            "orchard_request_seconds", "Time to the answer's end", ["room"], buckets=_FAST, registry=self._registry
        )
        self.create_seconds = Histogram(
            "orchard_create_seconds", "Time from a create to ready", buckets=_SLOW, registry=self._registry
        )
        self.create_failures = Counter(
            "orchard_create_failures", "Creates that failed", ["reason"], registry=self._registry
        )
        self.open = Gauge("orchard_open_requests", "Requests under way", registry=self._registry)
        self._alive = Gauge("orchard_sandboxes", "Sandboxes alive", registry=self._registry)
        self._count, self._counted_at = 0, -_COUNT_AFTER

    def answered(self, room: str, method: str, status: int, seconds: float) -> None:
        """Count one request; ``room`` is a first path segment of the API, never a free text."""
        self._requests.labels(room, method, f"{status // 100}xx").inc()
        self._seconds.labels(room).observe(seconds)

    async def alive(self) -> int:
        """Return how many sandboxes live, counted at most every five seconds."""
        if time.monotonic() - self._counted_at > _COUNT_AFTER:
            self._count, self._counted_at = await self._living(), time.monotonic()
        return self._count

    async def _living(self) -> int:
        if isinstance(self._backend, Shared):
            return await self._backend.living()
        count, cursor = 0, None
        while True:
            page = await self._backend.list(limit=1000, cursor=cursor)
            count, cursor = count + len(page.items), page.next
            if cursor is None:
                return count

    async def scrape(self) -> bytes:
        """Return the text form."""
        self._alive.set(await self.alive())
        return generate_latest(self._registry)
