"""Asking many sandboxes at once, whatever they are made of."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchard.core.errors import OrchardError
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.types import SandboxSpec

_PATIENCE = 900.0


@dataclass
class Crowd:
    """Sandboxes that were asked for at once."""

    asked: int
    boxes: list[Sandbox] = field(default_factory=list[Sandbox])
    creates: list[float] = field(default_factory=list[float])
    """Seconds of each create that succeeded."""
    seconds: float = 0.0
    """Until all had answered a first command, or failed."""
    failures: list[str] = field(default_factory=list[str])

    @classmethod
    async def make(cls, orchard: Orchard, spec: SandboxSpec, count: int) -> "Crowd":
        """Ask for ``count`` sandboxes at once; each runs ``true`` once it is there."""
        made, start = cls(count), time.perf_counter()
        await asyncio.gather(*(made._one(orchard, spec) for _ in range(count)))
        made.seconds = time.perf_counter() - start
        return made

    async def _one(self, orchard: Orchard, spec: SandboxSpec) -> None:
        start = time.perf_counter()
        try:
            box = await orchard.create_from(spec)
        except OrchardError as error:
            self.failures.append(str(error))
            return
        self.creates.append(time.perf_counter() - start)
        self.boxes.append(box)
        await self._ask(box)

    async def at_once(self, most: int | None = None) -> tuple[list[float], float]:
        """Run ``true`` in all of them, ``most`` or all at a time; return the seconds of each that answered, and of all.

        The clock of a command starts when it is sent.
        """
        turns, start = asyncio.Semaphore(most or len(self.boxes)), time.perf_counter()

        async def one(box: Sandbox) -> float | None:
            async with turns:
                return await self._ask(box)

        answers = await asyncio.gather(*map(one, self.boxes))
        return [answer for answer in answers if answer is not None], time.perf_counter() - start

    async def in_turn(self, most: int) -> list[float]:
        """Run ``true`` in up to ``most`` of them, one after another."""
        answers = [await self._ask(box) for box in self.boxes[:most]]
        return [answer for answer in answers if answer is not None]

    async def delete(self) -> float:
        """Delete all; return the seconds until the last was gone."""
        start = time.perf_counter()
        await asyncio.gather(*(box.delete() for box in self.boxes))
        return time.perf_counter() - start

    def share(self, answers: Sequence[float]) -> float:
        """Return how many percent of what was asked for have answered."""
        return len(answers) / self.asked * 100

    async def _ask(self, box: Sandbox) -> float | None:
        start = time.perf_counter()
        try:
            (await box.run(["true"])).check()
        except OrchardError as error:
            self.failures.append(f"{box.id}: {error}")
            return None
        return time.perf_counter() - start


def spec(image: str, network: str = "none") -> SandboxSpec:
    """Return a specification of plain sandboxes that are patient when there are many."""
    return SandboxSpec(image, network="open" if network == "open" else "none", create_timeout=_PATIENCE)
