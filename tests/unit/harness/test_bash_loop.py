"""The built-in loop over a real sandboxd and a real HTTP server: what the model reads, and how each run ends."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.daemon import DaemonBackend
from tests.support.model_server import SUBMIT, ModelServer, refuse, say
from tests.support.waiting import PATIENT, until

from orchard.core.errors import InvalidArgument, SandboxGone
from orchard.harness.endpoint import EndpointFailed
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop
from orchard.harness.registry import HARNESSES, create_harness
from orchard.sandbox import Sandbox

Make = Callable[..., HarnessRequest]


async def run(request: HarnessRequest) -> HarnessResult:
    return await create_harness("bash-loop").run(request)


async def test_it_runs_commands_until_one_submits(request_for: Make) -> None:
    answers = [say("I look.", "pwd; echo $0", "echo two >&2; exit 3"), say("Done.", f"{SUBMIT}; echo rest")]
    async with ModelServer(answers) as server:
        request = request_for(server.url)
        result = await run(request)
    assert (result.stop, result.submission, result.turns) == (Stop.SUBMITTED, "rest\n", 2)
    assert [(event.exit_code, event.output) for event in result.events[:2]] == [
        (0, f"{request.workdir}\nbash\n"), (3, "two\n")
    ]  # fmt: skip
    assert [event.call_id for event in result.events] == ["chatcmpl-1", "chatcmpl-1", "chatcmpl-2"]
    assert [message["role"] for message in server.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert server.messages[4] == {"role": "tool", "tool_call_id": "call_1", "content": "[exit code 3]\ntwo\n"}
    assert "Mend the pad." in server.messages[1]["content"]


async def test_the_history_is_append_only(request_for: Make) -> None:
    answers = [say("a", "true"), say("no call"), say("b", "false"), say("", SUBMIT)]
    async with ModelServer(answers) as server:
        await run(request_for(server.url))
    for before, after in zip(server.bodies, server.bodies[1:], strict=False):
        assert after["messages"][: len(before["messages"])] == before["messages"]


async def test_long_output_keeps_head_and_tail_and_says_what_is_left_out(request_for: Make) -> None:
    command = "printf 'é%.0s' $(seq 1 60000); echo END"
    async with ModelServer([say("", command), say("", SUBMIT)]) as server:
        await run(request_for(server.url))
    text = server.messages[-1]["content"]
    assert text.startswith("[exit code 0]\néé")
    assert text.endswith("ééEND\n")
    assert "\ufffd" not in text
    left_out = 60000 * 2 + 4 - sum(len(part.encode()) for part in (text.count("é") * "é", "END\n"))
    assert f"[… {left_out} of 120004 bytes left out here" in text
    assert len(text.encode()) < 10_200


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (say("I think."), "your answer called no tool"),
        (say("I th", finish="length"), "cut at the token limit"),
        (say("", raw=[{"name": "python", "arguments": "{}"}]), "there is no tool 'python'"),
        (say("", raw=[{"name": "bash", "arguments": "{oops"}]), "the arguments are not JSON text"),
        (say("", raw=[{"name": "bash", "arguments": {"command": "ls"}}]), "the arguments are not JSON text"),
        (say("", raw=[{"name": "bash", "arguments": '{"cmd": "ls"}'}]), "the argument `command` (text) is missing"),
    ],
)
async def test_an_unusable_answer_is_answered_and_three_in_a_row_end_it(
    request_for: Make, answer: object, words: str
) -> None:
    answers = [answer, answer, say("", "true"), answer, answer, answer]
    async with ModelServer(answers) as server:  # pyright: ignore[reportArgumentType]
        result = await run(request_for(server.url))
    assert (result.stop, result.turns, len(result.events)) == (Stop.FORMAT, 6, 1)
    assert words in server.bodies[1]["messages"][-1]["content"]


async def test_the_limits_on_turns_and_time(request_for: Make) -> None:
    async with ModelServer([say("", "true")] * 9) as server:
        assert (await run(request_for(server.url, turns=2))).stop is Stop.TURNS
        slow = await run(request_for(server.url, turns=3, command_seconds=0.3))
        assert slow.stop is Stop.TURNS
    for seconds in PATIENT:
        async with ModelServer([say("", "sleep 1000")] * 3) as server:
            result = await run(request_for(server.url, seconds=seconds))
        assert result.stop is Stop.TIME
        if result.events:  # the model had answered by then
            break
    else:
        pytest.fail("no command was begun")
    assert result.events[0].exit_code is None


async def test_a_command_beyond_its_time_is_ended_and_the_model_told(request_for: Make) -> None:
    for seconds in PATIENT:
        async with ModelServer([say("", "echo first; sleep 1000 & sleep 1000"), say("", SUBMIT)]) as server:
            result = await run(request_for(server.url, command_seconds=seconds))
        note = f"stopped with all it had started after {seconds:g} s, the time limit of one command"
        assert (result.stop, result.events[0].error) == (Stop.SUBMITTED, note)
        if server.messages[-1]["content"] == f"[{note}]\nfirst\n":  # it had begun by then
            break
    else:
        pytest.fail("what it said before is not kept")


@pytest.mark.parametrize(
    ("code", "stop"), [("budget_exceeded", Stop.BUDGET), ("context_length_exceeded", Stop.CONTEXT)]
)
async def test_a_spent_budget_and_a_full_context_are_outcomes(request_for: Make, code: str, stop: Stop) -> None:
    async with ModelServer([say("", "true"), refuse(400, code)]) as server:
        result = await run(request_for(server.url))
    assert (result.stop, result.turns) == (stop, 1)


async def test_trouble_of_the_endpoint_is_retried_under_the_retry_header_then_raised(request_for: Make) -> None:
    async with ModelServer([refuse(503, None), say("", SUBMIT)]) as server:
        assert (await run(request_for(server.url))).stop is Stop.SUBMITTED
        assert [head["x-stainless-retry-count"] for head in server.headers] == ["0", "1"]
        assert server.bodies[0] == server.bodies[1]
    async with ModelServer([refuse(400, "odd")]) as server:
        with pytest.raises(EndpointFailed, match="answered 400"):
            await run(request_for(server.url))


async def test_the_sandboxs_end_is_an_error_and_never_shown_to_the_model(
    request_for: Make, backend: DaemonBackend, box: Sandbox
) -> None:
    async with ModelServer([say("", "true"), say("", "sleep 30"), say("", SUBMIT)]) as server:
        running = asyncio.create_task(run(request_for(server.url)))
        await until(lambda: len(server.bodies) == 2)
        backend.kill(box.id)
        with pytest.raises(SandboxGone):
            await running
    assert len(server.bodies) == 2


async def test_what_the_model_did_wrong_is_shown_to_it(request_for: Make) -> None:
    async with ModelServer([say("", "echo a\0b"), say("", "rm -r $PWD"), say("", "true"), say("", SUBMIT)]) as server:
        result = await run(request_for(server.url, turns=3))
    assert (
        result.events[0].error == "not started: command holds a NUL or a lone surrogate, which cannot reach a program"
    )
    assert "not started" in (result.events[2].error or "")
    assert "not started" in server.messages[3]["content"]


async def test_an_unknown_option_is_refused(request_for: Make) -> None:
    with pytest.raises(InvalidArgument, match="temprature"):
        await run(replace(request_for("http://127.0.0.1:1"), config={"temprature": 1}))


def test_an_unknown_harness_names_those_there_are() -> None:
    with pytest.raises(InvalidArgument, match=", ".join(sorted(HARNESSES))):
        create_harness("mini")


async def test_half_a_character_in_a_command_is_the_models_and_breaks_nothing(request_for: Make) -> None:
    async with ModelServer([say("", "echo '\ud800'"), say("", SUBMIT)]) as server:
        result = await run(request_for(server.url))
    assert (result.stop, result.events[0].output) == (Stop.SUBMITTED, "\ufffd\n")
    assert result.events[0].arguments == {"command": "echo '\ufffd'"}
