"""The outcome of a run as values: metrics per harness and policy, the verdict on each task, what was unexpected."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchard.core.scratch import publish
from orchard.evals.metrics import SUCCESS, Metrics, summarize
from orchard.evals.validate import Verdict, verdicts
from orchard.rollout.policies import GOLD
from orchard.trajectories import RolloutRecord


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    harness: str
    policy: str
    metrics: Metrics
    """Over the tasks that may be believed."""
    expect: str | None = None


@dataclass(frozen=True)
class Cell:
    """One rollout in brief."""

    id: str
    task: str
    harness: str
    policy: str
    attempt: int
    reward: float | None
    stop: str | None
    turns: int
    tries: int
    seconds: float
    """Of all stages but ``prepare``, which all rollouts of the task share."""
    failure: str | None
    """``seam: reason`` of what kept it from being judged."""
    expect: str | None

    @property
    def passed(self) -> bool | None:
        """None where there is no reward."""
        return None if self.reward is None else self.reward >= SUCCESS

    @property
    def surprising(self) -> bool:
        """True where a script did not do what its author says of it."""
        return self.expect is not None and self.passed is not (self.expect == "pass")


@dataclass(frozen=True)
class Report:
    """What is shown, in each form."""

    run: str
    title: str
    created: datetime
    rows: Sequence[Row]
    cells: Sequence[Cell]
    verdicts: Sequence[Verdict]
    seconds: float = 0.0
    """Wall time of all processes that came to their end, resumed ones added up."""
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    validated: bool = True
    """False where nobody asked for the gold and the empty run: then every task is counted, unproven."""

    @property
    def refused(self) -> list[Verdict]:
        """The tasks that are in no metric."""
        return [one for one in self.verdicts if self.validated and not one.ok]

    @property
    def surprises(self) -> list[Cell]:
        """Scripted rollouts that ended otherwise than their authors say."""
        return [cell for cell in self.cells if cell.surprising]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-serialisable values."""
        facts = dataclasses.asdict(self)
        return facts | {"created": self.created.isoformat(), "surprises": [cell.id for cell in self.surprises]}

    def write_json(self, path: Path) -> None:
        """Write ``to_json`` to a file, which is there whole or as it was."""
        publish(path, (json.dumps(self.to_json(), indent=2) + "\n").encode())


def build_report(
    run: str, title: str, records: Iterable[RolloutRecord], *, seconds: float = 0.0, validated: bool = True
) -> Report:
    """Return the report of a run's closing records; refused tasks are shown, and are in no metric."""
    brief: list[RolloutRecord] = [_lean(row) for row in records]
    judged = verdicts(brief)
    counted: dict[tuple[str, str], list[RolloutRecord]] = {}
    for row in brief:
        group = counted.setdefault((row.harness, row.policy), [])
        if judged[row.task].ok or not validated:
            group.append(row)
    expect = {row.policy: row.labels.get("expect") for row in brief}
    return Report(
        run=run, title=title, created=datetime.now(UTC), seconds=round(seconds, 1),
        rows=[Row(*key, summarize(rows), expect[key[1]]) for key, rows in counted.items()],
        cells=[_cell(row) for row in brief], verdicts=sorted(judged.values(), key=lambda one: one.task),
        environment=dict(brief[0].environment) if brief else {}, validated=validated,
    )  # fmt: skip


def _lean(row: RolloutRecord) -> RolloutRecord:
    """Leave out what no metric and no verdict reads: a hundred thousand of them fit into memory."""
    telling = row.policy == GOLD and row.reward is not None and row.reward < SUCCESS
    rewards = row.rewards if telling else []
    return row.model_copy(update={"tools": [], "patch": "", "rewards": rewards, "instruction": "", "submission": None})


def _cell(row: RolloutRecord) -> Cell:
    seconds = sum(spent for stage, spent in row.seconds.items() if stage != "prepare")
    return Cell(
        id=row.id, task=row.task, harness=row.harness, policy=row.policy, attempt=row.attempt, reward=row.reward,
        stop=row.stop, turns=row.turns, tries=row.tries, seconds=round(seconds, 2),
        failure=f"{row.failure.seam}: {row.failure.reason}" if row.failure else None, expect=row.labels.get("expect"),
    )  # fmt: skip
