"""Golden samples of the wire, recorded from real runs of the toy repair.

``python -m tests.harness.record NAME …``; ``NAME:DIALECT`` for a harness that is told which dialect to speak,
``NAME@subagents`` and ``NAME@compaction`` for what befalls it (``tests.support.scenes``).
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.support.overheard import GOLDEN, Overheard, sample
from tests.support.scenes import COMPACTIONS, GATEWAY, KEPT, SUBAGENTS, Scene

from orchard.harness import check as toy
from orchard.harness.registry import HARNESSES, create_harness
from orchard.rollout.check import toy_job
from orchard.rollout.engine import RolloutEngine
from orchard.rollout.folder import open_run
from orchard.rollout.jobs import Bounds
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings

SCENES = {"subagents": {**SUBAGENTS, "openclaw": GATEWAY}, "compaction": COMPACTIONS}


async def record(name: str, folder: Path) -> Path:
    """Run a harness once, and write what it said; a run that did not mend the toy is none."""
    spoken, _, scene = name.partition("@")
    harness, _, dialect = spoken.partition(":")
    if name == "openclaw@subagents":
        HARNESSES[harness] = "tests.support.openclaw_gateway:WithGateway"
    plain = Scene(lambda messages, tools: _thinking(toy.answer(messages, tools)), toy.CONFIG.get(harness, {}))
    found = SCENES[scene][harness] if scene else plain
    config = {**found.config, **({"dialect": dialect} if dialect else {})}
    job = toy_job(harness, found.engine(), config=config)
    async with Orchard(backend=LocalBackend(LocalSettings(home=folder / "home"))) as orchard:
        with open_run(folder / "run") as run:
            gateway = Overheard(run.store)
            async with gateway:
                await RolloutEngine(run, orchard, gateway, Bounds(tries=1)).run([job])
            trajectory = run.store.trajectory(job.rollout_id(run.id))
    assert trajectory.rollout is not None
    assert trajectory.rollout.reward == 1.0, trajectory.rollout
    path = GOLDEN / f"{name.replace(':', '-').replace('@', '-')}.json"
    facts = sample(harness, await create_harness(harness).version(), gateway.heard, trajectory, KEPT)
    path.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    return path


def _thinking(step: dict[str, object]) -> dict[str, object]:
    return {**step, "reasoning_content": f"So: {step['content']}"}


def main() -> None:
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            sys.stdout.write(f"{asyncio.run(record(name, Path(folder)))}\n")


if __name__ == "__main__":
    main()
