"""Replicas: who answers which session, who takes over, and which weights each has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.contract.gateway.conftest import USER, client_of
from tests.contract.gateway.token_server import VLLM_ANSWER, TokenServer, asks, sample, serving, vllm, vllm_event

from orchard.core.errors import InvalidArgument
from orchard.gateway import EngineRefused, EngineUnavailable, Gateway, OpenAIEngine, ScriptEngine
from orchard.gateway.engines.replicas import Replicas, TokenReplicas
from orchard.gateway.engines.vllm import VllmEngine
from orchard.trajectories import Store

SHORT = [vllm_event([5], [-0.25]), vllm_event([2], [-0.5], finish_reason="stop")]
DOWN = (503, {"error": "starting"})


class Farm:
    """Two vLLM servers and the replicas that stand for both."""

    def __init__(self, servers: list[TokenServer], engine: TokenReplicas) -> None:
        self.servers, self.engine = servers, engine

    @property
    def calls(self) -> list[int]:
        return [len(server.bodies("/v1/completions")) for server in self.servers]

    def later(self) -> None:
        """Let the time be over for which those that were away are left out."""
        for replica in self.engine._replicas:
            replica.away_until = 0.0


@pytest.fixture
async def farm() -> AsyncIterator[Farm]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(vllm())) for _ in range(2)]
        engine = TokenReplicas([VllmEngine(one.url, policy_version="0") for one in servers], away_seconds=3600)
        stack.push_async_callback(engine.close)
        yield Farm(servers, engine)


async def test_a_session_stays_with_its_replica_and_new_ones_are_spread(farm: Farm) -> None:
    for server in farm.servers:
        server.replies["/v1/completions"] = [SHORT]
    for turn in range(3):
        for session in "abcd":
            await sample(farm.engine, asks(session, ids=[ord(session), turn]))
    for server in farm.servers:
        prompts = [body["prompt"][0] for body in server.bodies("/v1/completions")]
        assert len(prompts) == 6
        assert {prompts.count(one) for one in set(prompts)} == {3}


async def test_a_new_session_goes_where_the_fewest_calls_run(farm: Farm) -> None:
    for session in "abcd":
        await sample(farm.engine, asks(session))
    for server in farm.servers:
        server.gate, server.replies["/v1/completions"] = asyncio.Event(), [SHORT]
    running = [asyncio.create_task(sample(farm.engine, asks(session))) for session in ("a", "a", "a", "b")]
    while sum(farm.calls) < 8:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    begun = farm.calls
    more = asyncio.create_task(sample(farm.engine, asks("new")))
    while sum(farm.calls) < 9:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    idle = begun.index(min(begun))
    assert farm.calls[idle] == begun[idle] + 1
    for server in farm.servers:
        assert server.gate is not None
        server.gate.set()
    await asyncio.gather(more, *running)


async def test_another_takes_over_what_has_given_nothing_yet(farm: Farm) -> None:
    await sample(farm.engine, asks("s"))
    own = farm.calls.index(1)
    farm.servers[own].replies["/v1/completions"] = [DOWN, VLLM_ANSWER]
    assert (await sample(farm.engine, asks("s")))[0] == [5, 6, 2]
    assert farm.calls == ([2, 1] if own == 0 else [1, 2])
    farm.later()
    await sample(farm.engine, asks("s"))  # it stays where it is now, though its first one is back
    assert farm.calls[1 - own] == 2


async def test_one_that_is_away_is_left_out_for_a_while(farm: Farm) -> None:
    farm.servers[0].replies["/v1/completions"] = [DOWN]
    for session in "abcdef":
        await sample(farm.engine, asks(session))
    assert farm.calls == [1, 6]


async def test_what_has_begun_is_not_begun_elsewhere(farm: Farm) -> None:
    for server in farm.servers:
        server.replies["/v1/completions"] = [[VLLM_ANSWER[0], None], VLLM_ANSWER]
    with pytest.raises(EngineUnavailable):
        await sample(farm.engine, asks("s"))
    assert sorted(farm.calls) == [0, 1]


async def test_where_all_are_away_the_call_may_be_tried_again(farm: Farm) -> None:
    for server in farm.servers:
        server.replies["/v1/completions"] = [DOWN, VLLM_ANSWER]
    with pytest.raises(EngineUnavailable):
        await sample(farm.engine, asks("s"))
    assert farm.calls == [1, 1]
    assert (await sample(farm.engine, asks("s")))[0] == [5, 6, 2]  # without waiting for the time to be over


async def test_a_refusal_is_nobodys_fault(farm: Farm) -> None:
    for server in farm.servers:
        server.replies["/v1/completions"] = [(400, {"error": {"message": "bad"}}), VLLM_ANSWER]
    with pytest.raises(EngineRefused):
        await sample(farm.engine, asks("s"))
    assert sum(farm.calls) == 1
    await sample(farm.engine, asks("s"))
    assert sorted(farm.calls) == [0, 2]


async def test_new_weights_go_to_all_and_to_the_one_that_was_away_before_it_samples(farm: Farm) -> None:
    away = farm.servers[0]
    away.replies["/pause"] = [DOWN, DOWN, {"status": "paused"}]
    await farm.engine.update_weights(Path("/weights/1"), "1")
    assert farm.engine.policy_version is None
    ends = [(await sample(farm.engine, asks(session)))[2] for session in "abc"]
    assert {end.policy_version for end in ends} == {"1"}
    assert farm.calls == [0, 3]
    farm.later()
    for session in "def":
        assert (await sample(farm.engine, asks(session)))[2].policy_version == "1"
    assert farm.calls[0] > 0
    assert away.paths.index("/collective_rpc") < away.paths.index("/v1/completions")
    assert farm.engine.policy_version == "1"


@pytest.mark.parametrize(("fault", "error"), [(DOWN, EngineUnavailable), ((400, {"detail": "?"}), EngineRefused)])
async def test_weights_that_nobody_takes_are_told(farm: Farm, fault: Any, error: type[Exception]) -> None:
    for server in farm.servers:
        server.replies["/collective_rpc"] = [fault]
    with pytest.raises(error):
        await farm.engine.update_weights(Path("/nowhere"), "1")


async def test_abort_reaches_the_replica(farm: Farm) -> None:
    for server in farm.servers:
        server.gate, server.replies["/v1/completions"] = asyncio.Event(), [SHORT]
    running = asyncio.create_task(sample(farm.engine, asks("s")))
    while not sum(farm.calls):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await farm.engine.abort("s")
    assert (await running)[2].finish_reason == "abort"


async def test_what_it_is_as_one(farm: Farm) -> None:
    assert (farm.engine.name, farm.engine.policy_version, farm.engine.context) == ("vllm", "0", None)
    await sample(farm.engine, asks("s"))
    assert farm.engine.context == 16
    with pytest.raises(InvalidArgument):
        TokenReplicas([])


async def test_engines_of_messages_have_replicas_too(store: Store) -> None:
    engine = Replicas([OpenAIEngine("http://127.0.0.1:9/v1"), ScriptEngine(["ok"], at_end="repeat")])
    async with Gateway(store, {"o": engine}) as gateway:
        session = await gateway.open_session(model="m")
        async with client_of(session) as client:
            for _ in range(2):
                got = await client.chat.completions.create(model="m", messages=USER)
                assert got.choices[0].message.content == "ok"
    assert session.state.engine_failures == 0
