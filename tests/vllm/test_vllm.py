"""vLLM through the gateway: the record holds what the server saw and sampled, and a forward pass agrees with it.

The tests run in this order: the last ones change the server's weights and start it anew.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from tests.contract.gateway.conftest import client_of
from tests.contract.gateway.token_server import asks, sample
from tests.support.waiting import until
from tests.torch.reference import CLOSE, farthest, plain_logprobs
from tests.vllm.server import CONTEXT, VllmServer
from tests.vllm.weights import adapted, moved

from orchard.gateway import Gateway, ReplayEngine, ScriptEngine, Session, bash_step
from orchard.gateway.engines.vllm import VllmEngine
from orchard.gateway.exact import TokenExact
from orchard.gateway.tokens import Tokens
from orchard.harness.bash_loop import BashLoop
from orchard.harness.mini_swe_agent.driver import MiniSweAgent
from orchard.harness.protocol import Harness, HarnessLimits, HarnessRequest
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.trajectories import Store
from orchard.trajectories.samples import Sample, to_samples

pytestmark = pytest.mark.timeout(1500)  # a server that starts anew on a busy machine takes minutes
PROMPT = (1, 9690, 198, 2683, 359, 253, 5356)


def off_by(folder: Path, sample: Sample, temperature: float = 1.0) -> float:
    """How far the served log-probabilities of a sample are from a plain forward pass over it."""
    told = [0.0, *plain_logprobs(folder, sample.ids, temperature)]
    trained = [at for at, drawn in enumerate(sample.mask) if drawn]
    return farthest([sample.logprobs[at] for at in trained], [told[at] for at in trained])


async def converse(client: AsyncOpenAI, *, stream: bool, **params: Any) -> list[str]:
    """Three turns of a chat; the answers come back as a harness sends them."""
    messages: list[Any] = [{"role": "system", "content": "You are brief. " * 60}]
    said: list[str] = []
    done: Any
    for question in ("Name a river.", "Where does it end?", "And another one?"):
        messages.append({"role": "user", "content": question})
        done = await client.chat.completions.create(model="m", messages=messages, stream=stream, **params)
        if stream:
            answer = "".join([chunk.choices[0].delta.content or "" async for chunk in done])
        else:
            answer = done.choices[0].message.content or ""
        said.append(answer)
        messages.append({"role": "assistant", "content": answer})
    return said


def only_sample(store: Store, session: Session) -> Sample:
    calls = store.session(session.id).calls
    (merged,) = to_samples(store.session(session.id))
    assert merged.calls == [call.id for call in calls]
    assert sum(merged.mask) == sum(len(call.sampled_ids or ()) for call in calls) > 0
    return merged


@pytest.mark.parametrize(("stream", "temperature"), [(False, 1.0), (True, 0.7)])
async def test_a_conversation_is_one_sample_that_a_forward_pass_agrees_with(
    gateway: Gateway, store: Store, weights: Path, stream: bool, temperature: float
) -> None:
    session = await gateway.open_session(model="smol")
    async with client_of(session) as client:
        await converse(client, stream=stream, temperature=temperature, seed=7)
    merged = only_sample(store, session)
    assert off_by(weights, merged, temperature) < CLOSE
    calls = store.session(session.id).calls
    assert [call.policy_version for call in calls] == ["0"] * 3
    assert all(call.usage.cached_tokens > 0 for call in calls[1:])  # its prefix is known, byte for byte


async def test_a_stream_is_what_a_whole_answer_is(gateway: Gateway, store: Store) -> None:
    said: list[list[str]] = []
    samples: list[Sample] = []
    for stream in (False, True):
        session = await gateway.open_session(model="smol")
        async with client_of(session) as client:
            said.append(await converse(client, stream=stream, temperature=0))
        samples.append(only_sample(store, session))
    assert said[0] == said[1]
    assert samples[0].ids == samples[1].ids
    assert farthest(samples[0].logprobs, samples[1].logprobs) < CLOSE


SCRIPT = [bash_step("echo one > note"), bash_step("cat note"), bash_step("echo never"), bash_step("echo never")]


@pytest.mark.root
@pytest.mark.parametrize("harness", [BashLoop(), MiniSweAgent()], ids=lambda one: one.name)
async def test_harnesses_go_on_live_after_two_recorded_turns(
    harness: Harness, exact: TokenExact, store: Store, weights: Path, local_home: Path, tmp_path: Path
) -> None:
    """The model is too small to call tools, so the first turns, with their tools, are a script's."""
    await harness.install()
    async with Orchard(backend=LocalBackend(LocalSettings(home=local_home))) as door:

        async def run(session: Session, name: str) -> None:
            (tmp_path / name).mkdir()
            async with door.sandbox("host") as box:
                limits = HarnessLimits(turns=4, seconds=900.0, command_seconds=20.0)
                await harness.run(
                    HarnessRequest(
                        "Write a note.", box, "/srv", session.url, session.api_key, "m", tmp_path / name, limits
                    )
                )

        async with Gateway(store, {"s": ScriptEngine(SCRIPT)}) as gateway:
            recorded = await gateway.open_session()
            await run(recorded, "recorded")
        branched = ReplayEngine(store.session(recorded.id), calls=2, then=exact)
        async with Gateway(store, {"r": branched}) as gateway:
            session = await gateway.open_session()
            await run(session, "branched")
        await harness.close()
    trajectory = store.session(session.id)
    live = trajectory.calls[2:]
    assert [call.status for call in live] == ["ok", "ok"]
    assert "cat note" in str(trajectory.prompt(live[0].id))
    samples = to_samples(trajectory)
    # One of the two keeps an answer without a tool call in its history; the other takes it out, which forks.
    assert len(samples) == (1 if harness.name == "bash-loop" else 2)
    assert [call for sample in samples for call in sample.calls] == [call.id for call in live]
    assert max(off_by(weights, sample) for sample in samples) < CLOSE


async def test_abort_and_a_reader_that_leaves_end_the_sampling(engine: VllmEngine, server: VllmServer) -> None:
    async def idle() -> bool:
        return not await asyncio.to_thread(server.metric, "vllm:num_requests_running")

    endless = asks("s", PROMPT, max_tokens=2000, logit_bias={2: -100.0})
    ids: list[int] = []
    async with aclosing(engine.generate(endless)) as parts:
        async for part in parts:
            if not isinstance(part, Tokens):
                assert part.finish_reason == "abort"
                break
            if not ids:
                await engine.abort("s")
            ids += part.ids
    assert 0 < len(ids) < 2000
    await until(idle)
    async with aclosing(engine.generate(endless)) as parts:
        await anext(parts)
    await until(idle)


async def test_a_prompt_that_is_too_long_is_told_as_such(gateway: Gateway) -> None:
    session = await gateway.open_session(model="smol")
    async with client_of(session) as client:
        long: Any = [{"role": "user", "content": "river " * CONTEXT}]
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(model="m", messages=long)
    assert caught.value.code == "context_length_exceeded"


def off(folder: Path, ids: Sequence[int], logprobs: Sequence[float]) -> float:
    return farthest(logprobs, plain_logprobs(folder, [*PROMPT, *ids])[len(PROMPT) - 1 :])


async def test_adapters_come_in_while_it_runs(server: VllmServer, weights: Path, tmp_path: Path) -> None:
    adapter, merged = await asyncio.to_thread(adapted, weights, tmp_path)
    engine = VllmEngine(server.url, lora=True, policy_version="0")
    for version in ("0", "1", "2"):
        if version != "0":
            await engine.update_weights(adapter, version)
        ids, logprobs, end = await sample(engine, asks("s", PROMPT, max_tokens=12))
        assert end.policy_version == version
        right, wrong = (weights, merged) if version == "0" else (merged, weights)
        assert off(right, ids, logprobs) < CLOSE < off(wrong, ids, logprobs)
    await engine.close()
    model, newest = server.models()
    assert (model, newest.partition("-")[0]) == ("smol", "2")


async def test_new_weights_by_path_in_mid_answer_and_again_after_a_restart(
    engine: VllmEngine, server: VllmServer, gateway: Gateway, store: Store, weights: Path, tmp_path: Path
) -> None:
    other = await asyncio.to_thread(moved, weights, tmp_path / "other")
    ids, logprobs, end = [], [], None
    sampled_by: list[str | None] = []
    updating: asyncio.Task[None] | None = None
    async with aclosing(engine.generate(asks("s", PROMPT, max_tokens=2000, logit_bias={2: -100.0}))) as parts:
        async for part in parts:
            if not isinstance(part, Tokens):
                end = part
                break
            if updating is None:
                updating = asyncio.create_task(engine.update_weights(other, "1"))
            ids, logprobs = ids + part.ids, logprobs + part.logprobs
            sampled_by += [part.policy_version] * len(part.ids)
            if sampled_by.count("1") >= 8:
                await engine.abort("s")
    assert end is not None
    assert updating is not None
    await updating
    assert [span.version for span in end.spans] == ["0", "1"]
    old = sampled_by.count("0")
    assert [(span.start, span.end) for span in end.spans] == [(0, old), (old, len(ids))]
    assert off(weights, ids[:old], logprobs[:old]) < CLOSE
    assert off(weights, ids[: old + 1], logprobs[: old + 1]) > CLOSE  # the very next one is of other weights

    after = await sample(engine, asks("s", PROMPT, max_tokens=12))
    assert after[2].policy_version == "1"
    assert off(other, after[0], after[1]) < CLOSE < off(weights, after[0], after[1])

    server.kill()
    server.start()
    session = await gateway.open_session(model="smol")
    async with client_of(session) as client:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Name a river."}])
    assert session.state.engine_failures > 0  # it was held as long as the server took
    (call,) = store.session(session.id).calls
    assert (call.status, call.policy_version) == ("ok", "1")
    assert off_by(other, only_sample(store, session)) < CLOSE
