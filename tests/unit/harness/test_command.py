"""Any program in the image as a harness: what it is told, and how its end is read."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop
from orchard.harness.registry import create_harness

Make = Callable[..., HarnessRequest]


async def run(request: HarnessRequest, **config: Any) -> HarnessResult:
    return await create_harness("command").run(replace(request, config=config))


async def test_it_gets_instruction_endpoint_and_folder(request_for: Make) -> None:
    request = request_for("http://127.0.0.1:9")
    script = "cat; echo; echo $OPENAI_BASE_URL $OPENAI_API_KEY $OPENAI_MODEL $ANTHROPIC_BASE_URL $EXTRA; pwd"
    result = await run(request, shell=script, env={"EXTRA": "a b"})
    assert result.stop is Stop.SUBMITTED
    assert result.submission is not None
    assert result.submission.splitlines() == [
        "Mend the pad.", "http://127.0.0.1:9/v1 key m http://127.0.0.1:9 a b", request.workdir
    ]  # fmt: skip


async def test_its_end_is_an_outcome_or_trouble(request_for: Make) -> None:
    short = request_for("http://127.0.0.1:9", seconds=1.0)
    assert (await run(short, argv=["sleep", "60"])).stop is Stop.TIME
    failed = await run(request_for("http://127.0.0.1:9"), argv=["sh", "-c", "echo no such model; exit 3"])
    assert (failed.stop, failed.detail) == (
        Stop.FAILED, "the command ended with exit code 3: no such model\n"
    )  # fmt: skip


@pytest.mark.parametrize("config", [{}, {"argv": ["a"], "shell": "a"}, {"argv": ["a"], "shel": "a"}])
async def test_wrong_options_are_refused(request_for: Make, config: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="either `argv` or `shell`"):
        await run(request_for("http://127.0.0.1:9"), **config)
