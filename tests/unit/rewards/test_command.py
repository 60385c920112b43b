"""The grader `command` refuses what names no command; what it makes of one is seen in real sandboxes by the checks."""

import pytest

from orchard.core.errors import InvalidArgument
from orchard.rewards.protocol import Attempt
from orchard.rewards.registry import grader
from orchard.sandbox import Orchard
from orchard.tasks.model import GraderSpec, Task


@pytest.mark.parametrize("options", [{}, {"shell": ""}, {"shell": ["make"]}])
async def test_a_grader_without_a_command_is_refused_by_name(options: dict[str, object]) -> None:
    spec = GraderSpec(type="command", options=options)
    task = Task(id="t", kind="toml", instruction="x", image="host", graders=[spec])
    with pytest.raises(InvalidArgument, match="task t: the grader `command` takes `shell`"):
        await grader("command").grade(task, spec, Attempt(b""), Orchard())
