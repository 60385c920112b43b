"""The ``command`` grader: a command of the task's own on the attempt's patch, in a fresh sandbox; 1 if it exits with 0.

Options: ``shell`` (text), run in the task's work tree. It guards nothing: what the command reads of the tree may be the
attempt's, so it should rest on as little of it as it can.
"""

from __future__ import annotations

from orchard.core.errors import InvalidArgument, OrchardError, PatchFailed
from orchard.rewards.protocol import Attempt, Reward
from orchard.rewards.tests import lay
from orchard.sandbox import Orchard
from orchard.tasks.boxes import bounds
from orchard.tasks.model import GraderSpec, Task

NAME = "command"
_SLACK = 300.0  # seconds a grading sandbox lives beyond the command's own time-out


class CommandGrader:
    """See the module."""

    async def grade(self, task: Task, spec: GraderSpec, attempt: Attempt, orchard: Orchard) -> Reward:
        """Return score 0 or 1 with the command's end, or *missing* where infrastructure left it open.

        Raises:
            InvalidArgument: ``spec`` names no command.
        """
        command = spec.options.get("shell")
        if not isinstance(command, str) or not command:
            raise InvalidArgument(
                f"task {task.id}: the grader `command` takes `shell`, a text", field="graders.options"
            )
        seconds = task.limits.grade_seconds
        limits = await bounds(orchard, task.limits)
        try:
            async with orchard.sandbox(task.image, network="none", ttl=seconds + _SLACK, **limits) as box:
                await lay(box, attempt.patch, task.workdir)
                result = await box.run(command, cwd=task.workdir, timeout=seconds, merge=True)
        except PatchFailed as error:
            return Reward(NAME, 0.0, evidence={"reason": "patch_failed", "detail": error.detail or str(error)})
        except OrchardError as error:
            return Reward(NAME, None, missing=f"{error.code}: {error}")
        facts = {"exit_code": result.exit_code, "signal": result.signal, "timed_out": result.timed_out}
        return Reward(NAME, float(result.ok), evidence={**facts, "log": result.text[-4000:]})
