"""What every measurement shares: the row, contestants taking turns, percentiles, peak memory."""

import contextlib
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Batch = Callable[[int], Awaitable[list[float]]]
"""Does the thing n times and returns the seconds that each took."""
MB = 1_000_000.0
FLAT = 16.0
"""MB by which memory may grow, whatever is streamed, to count as flat."""


@dataclass(frozen=True)
class Target:
    """A bound of ours; ``text`` as people read it."""

    bound: float
    at_most: bool = True

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    def text(self, unit: str) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:g} {unit}"


@dataclass(frozen=True)
class Row:
    """One figure. A floor or peer that cannot be had here is None."""

    name: str
    value: float | None
    unit: str
    n: int
    target: Target | None = None
    floor: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    peers: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    note: str = ""

    def plain(self, measurement: str, machine: Mapping[str, Any]) -> dict[str, Any]:
        """Return it as results.json holds it."""
        known = self.value is not None and self.target is not None
        return {
            "name": self.name,
            "measurement": measurement,
            "value": _short(self.value),
            "unit": self.unit,
            "floor": {name: _short(value) for name, value in self.floor.items()},
            "peers": {name: _short(value) for name, value in self.peers.items()},
            "target": self.target.text(self.unit) if self.target else None,
            "met": self.target.met(self.value) if known and self.target and self.value is not None else None,
            "n": self.n,
            "note": self.note,
            "machine": dict(machine),
        }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


async def interleave(contestants: Mapping[str, Batch], rounds: int, each: int = 1) -> dict[str, list[float]]:
    """Let the contestants take turns, the first one another in each round; a round before the first warms up.

    Returns:
        The seconds of each, ``rounds * each`` of them.
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            got = await contestants[name](each)
            if turn:
                seconds[name] += got
    return seconds


def p50(values: Sequence[float]) -> float:
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


class Peak:
    """How far the resident memory of a process grew above what it was, in MB; None where that cannot be seen."""

    def __init__(self, pid: int | None) -> None:
        self._folder = Path(f"/proc/{pid}") if pid else None
        self._before: int | None = None
        self.highest: float | None = None

    def begin(self) -> None:
        with contextlib.suppress(OSError):
            if self._folder:
                (self._folder / "clear_refs").write_text("5")  # VmHWM begins anew
                self._before = status_kb(self._folder, "VmRSS")

    def end(self) -> None:
        if self._folder and self._before is not None:
            grown = (status_kb(self._folder, "VmHWM") - self._before) * 1024 / MB
            self.highest = max(self.highest or 0.0, grown)


def status_kb(folder: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in (folder / "status").read_text().splitlines() if line.startswith(name))
