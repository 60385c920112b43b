"""The suite's own words: a check, its context, and how a check fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from orchard.core.errors import OrchardError
from orchard.sandbox.box import Sandbox
from orchard.sandbox.conformance.context import Context, NotApplicable, NotHeld

__all__ = ["CHECKS", "Check", "Context", "NotApplicable", "NotHeld", "check", "eventually", "expect", "expect_error"]

Run = Callable[[Context], Awaitable[None]]
E = TypeVar("E", bound=OrchardError)


@dataclass(frozen=True)
class Check:
    """One probe of one line of the behaviours."""

    line: int
    claim: str
    """What holds, in one sentence; also the check's name."""
    run: Run
    feature: str | None = None
    """Name under which a backend may except it (``Capabilities.exceptions``)."""
    also: tuple[str, ...] = ()
    """Further names under which one may."""
    tools: tuple[str, ...] = ()
    """Programs that the image must have for the probe."""
    alone: bool = False
    """Whether it runs by itself, since it measures time or fills the machine."""

    @property
    def seconds(self) -> float:
        """Most time that the probe may take here, where it only ends one that hangs; elsewhere see ``patience``."""
        return 900.0 if self.alone else 120.0

    @property
    def name(self) -> str:
        """Line number and claim."""
        return f"{self.line:02d} {self.claim}"


CHECKS: list[Check] = []
patience: ContextVar[float] = ContextVar("patience", default=1.0)
"""``Context.patience`` of the backend under test."""


def check(
    line: int,
    claim: str,
    *,
    feature: str | None = None,
    also: tuple[str, ...] = (),
    tools: tuple[str, ...] = (),
    alone: bool = False,
) -> Callable[[Run], Run]:
    """Register a coroutine function of a ``Context`` as a check of ``line``."""

    def register(run: Run) -> Run:
        CHECKS.append(Check(line, claim, run, feature, also, tools, alone))
        return run

    return register


def expect(holds: object, seen: object) -> None:
    """Raise ``NotHeld`` with what was ``seen`` unless ``holds``."""
    if not holds:
        raise NotHeld(f"{seen}"[:2000])


async def expect_error(kind: type[E], awaitable: Awaitable[Any], **facts: object) -> E:
    """Return the error of ``kind`` that ``awaitable`` raises, with these attributes; anything else is ``NotHeld``."""
    try:
        value = await awaitable
    except kind as error:
        for name, fact in facts.items():
            expect(
                getattr(error, name, None) == fact, f"{name} is {getattr(error, name, None)!r}, not {fact!r}: {error}"
            )
        return error
    except Exception as error:  # whatever else came instead is what the check reports
        raise NotHeld(f"{type(error).__name__} instead of {kind.__name__}: {error}") from error
    raise NotHeld(f"no {kind.__name__}, but {value!r}"[:2000])


async def lives(box: Sandbox, command_line: str) -> int:
    """Return how many processes in the sandbox have exactly this command line. A zombie has none."""
    script = 'n=0; for p in /proc/[0-9]*; do [ "$(tr "\\0" " " <$p/cmdline)" = "$1 " ] && n=$((n+1)); done; echo $n'
    result = await box.run(["sh", "-c", f"{{ {script}; }} 2>/dev/null", "count", command_line], timeout=60)
    expect(result.ok, f"cannot count processes: {result}")
    return int(result.text)


async def eventually(probe: Callable[[], Awaitable[object]], seconds: float, what: object) -> None:
    """Wait until ``probe`` is true, asking every 50 ms; ``NotHeld`` with ``what`` after ``seconds`` of ``patience``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds * patience.get()
    while not await probe():
        expect(loop.time() < deadline, what)
        await asyncio.sleep(0.05)
