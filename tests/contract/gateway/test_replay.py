"""A recorded trajectory answers again, in ids too, and a live engine goes on from them; how far a run again comes."""

from dataclasses import replace
from typing import Any

import aiohttp
import openai
import pytest
from tests.contract.gateway.conftest import USER, client_of
from tests.support.models import renderer

from orchard.gateway import Engine, Gateway, ReplayEngine, ScriptedTokens, Session, TokenExact
from orchard.gateway.engines.replay import reproduced
from orchard.trajectories import Store, Trajectory, to_samples

QWEN3 = renderer("qwen3")
STEPS: list[Any] = [{"reasoning_content": f"Thought {n}.", "content": f"Answer {n}."} for n in range(3)]


def exact(steps: list[Any], version: str) -> TokenExact:
    return TokenExact(ScriptedTokens(QWEN3, steps, policy_version=version, at_end="repeat"), QWEN3)


async def talk(store: Store, engine: Engine, turns: int = 4, *, changed: int = -1) -> Session:
    """A tiny harness that leaves reasoning out; its question of turn ``changed`` is another one, which ends it."""
    async with Gateway(store, {"e": engine}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            messages: list[Any] = []
            for turn in range(turns):
                said = "Something else." if turn == changed else f"Question {turn}."
                messages.append({"role": "user", "content": said})
                if turn == changed:
                    with pytest.raises(openai.BadRequestError, match="not the recorded request"):
                        await client.chat.completions.create(model="m", messages=messages)
                    break
                answer = (await client.chat.completions.create(model="m", messages=messages)).choices[0].message
                messages.append({"role": "assistant", "content": answer.content})
    return session


async def test_a_live_engine_goes_on_from_the_recorded_ids(store: Store) -> None:
    recorded = store.session((await talk(store, exact(STEPS, "0"), 3)).id)
    engine = ReplayEngine(recorded, calls=2, then=exact([STEPS[2] | {"content": "Live."}], "1"))
    branched = store.session((await talk(store, engine)).id)
    for one, again in zip(recorded.calls[:2], branched.calls[:2], strict=True):
        kept = ("prompt_ids", "kept_ids", "sampled_ids", "logprobs", "mode", "template_hash", "spliced_ids", "usage")
        assert {name: getattr(one, name) for name in kept} == {name: getattr(again, name) for name in kept}
        assert one.sampled_ids
    live = branched.calls[2]
    assert live.answer is not None
    assert (live.answer["content"], live.policy_version) == ("Live.", "1")
    prompt, before = branched.prompt_ids(live.id), recorded.prompt_ids(recorded.calls[1].id)
    assert prompt is not None
    assert before is not None
    before += recorded.calls[1].sampled_ids or []
    assert prompt[: len(before)] == before
    assert live.spliced_ids == len(before)
    assert "Thought 1." in QWEN3.text(prompt)  # which the harness never sent
    (sample,) = to_samples(branched)
    assert sample.calls == [call.id for call in branched.calls]
    own = len(live.sampled_ids or []) + len(branched.calls[3].sampled_ids or [])
    assert sum(sample.mask) == own  # what was replayed is context
    assert not any(sample.mask[: len(prompt)])
    (again,) = to_samples(branched, replayed=True)
    assert sum(again.mask) == sum(len(call.sampled_ids or []) for call in branched.calls)
    assert [(call.engine, call.replayed) for call in branched.calls] == [
        ("replay", recorded.calls[0].id), ("replay", recorded.calls[1].id), ("script", None), ("script", None),
    ]  # fmt: skip
    assert [call.policy_version for call in branched.calls] == ["0", "0", "1", "1"]


async def test_a_recorded_answer_that_is_asked_for_twice_is_trained_once(store: Store) -> None:
    recorded = store.session((await talk(store, exact(STEPS, "0"), 2)).id)
    async with Gateway(store, {"e": ReplayEngine(recorded)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            for _ in range(2):
                prompt: Any = recorded.prompt(recorded.calls[0].id)
                await client.chat.completions.create(model="m", messages=prompt)
    rerun = store.session(session.id)
    assert [call.replayed for call in rerun.calls] == [recorded.calls[0].id] * 2
    assert to_samples(rerun) == []
    (sample,) = to_samples(rerun, replayed=True)
    assert sum(sample.mask) == len(recorded.calls[0].sampled_ids or [])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("path", "stop", "said"),
    [
        ("/v1/chat/completions", "stop", '"finish_reason": "stop", "stop_reason": "END"'),
        ("/v1/messages", "stop_sequences", '"stop_reason": "stop_sequence", "stop_sequence": "END"'),
    ],
    ids=["chat", "messages"],
)
async def test_a_replay_says_which_string_ended_an_answer(
    store: Store, path: str, stop: str, said: str, stream: bool
) -> None:
    body = {"model": "m", "max_tokens": 99, "messages": USER, stop: ["two", "END"], "stream": stream}

    async def asked(engine: Engine) -> Session:
        async with Gateway(store, {"e": engine}) as gateway:
            session = await gateway.open_session()
            async with aiohttp.ClientSession() as http, http.post(session.url + path, json=body) as got:
                assert said in await got.text()
        return session

    recorded = store.session((await asked(exact(["one END two"], "0"))).id)
    again = store.session((await asked(ReplayEngine(recorded))).id)
    assert [trajectory.calls[0].stop_string for trajectory in (recorded, again)] == ["END", "END"]


async def test_a_live_call_that_fails_is_recorded_as_the_live_engines(store: Store) -> None:
    recorded = store.session((await talk(store, exact(STEPS, "0"), 1)).id)
    then = TokenExact(ScriptedTokens(QWEN3, []), QWEN3)
    async with Gateway(store, {"e": ReplayEngine(recorded, then=then)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            prompt: Any = recorded.prompt(recorded.calls[0].id)
            await client.chat.completions.create(model="m", messages=prompt)
            with pytest.raises(openai.BadRequestError, match="steps"):
                await client.chat.completions.create(model="m", messages=prompt)
    assert [(call.engine, call.status) for call in store.session(session.id).calls] == [
        ("replay", "ok"),
        ("script", "error"),
    ]


async def test_how_far_a_harness_that_is_run_again_comes(store: Store) -> None:
    recorded = store.session((await talk(store, exact(STEPS, "0"))).id)
    same = store.session((await talk(store, ReplayEngine(recorded))).id)
    assert reproduced(recorded, same).share == 1.0
    assert reproduced(recorded, same).difference is None
    found = reproduced(recorded, store.session((await talk(store, ReplayEngine(recorded), changed=3)).id))
    assert (found.calls, found.same, found.share) == (4, 3, 0.75)
    assert found.difference is not None
    assert "'Question 3.'" in found.difference
    assert "'Something else.'" in found.difference
    shorter = store.session((await talk(store, ReplayEngine(recorded), 2)).id)
    assert reproduced(recorded, shorter).difference == "there was no further request"
    assert reproduced(replace(recorded, calls=[]), shorter).share == 1.0


async def ask(store: Store, engine: Engine, said: list[str], *, refused: str = "") -> Trajectory:
    """A tiny harness that says ``said``, one a turn; the last is refused with the words ``refused``, if any."""
    async with Gateway(store, {"e": engine}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            messages: list[Any] = []
            for turn, text in enumerate(said):
                messages.append({"role": "user", "content": text})
                asking = client.chat.completions.create(model="m", messages=messages)
                if refused and turn == len(said) - 1:
                    with pytest.raises(openai.BadRequestError, match=refused):
                        await asking
                    break
                messages.append({"role": "assistant", "content": (await asking).choices[0].message.content})
    return store.session(session.id)


TODAY = ["It is 2026-11-30.", "Chunk ID: 472733\nWall time: 0.01 seconds", "Chunk ID: 472734"]
TOMORROW = ["It is 2026-12-01.", "Chunk ID: f3177c\nWall time: 0.02 seconds", "Chunk ID: 12345f"]


async def test_the_clock_and_chance_are_as_they_were_recorded(store: Store) -> None:
    recorded = await ask(store, exact(STEPS, "0"), TODAY)
    engine = ReplayEngine(recorded, calls=2, then=exact([STEPS[2] | {"content": "Live."}], "1"))
    branched = await ask(store, engine, TOMORROW)
    assert [call.replayed for call in branched.calls] == [*[call.id for call in recorded.calls[:2]], None]
    assert [call.replayed_but_for for call in branched.calls] == [["clock"], ["clock", "chance"], []]
    prompt = branched.prompt_ids(branched.calls[2].id)
    assert prompt is not None
    text = QWEN3.text(prompt)  # what the model saw: the recorded words, then the new ones
    assert [word in text for word in ("2026-11-30", "472733", "12345f")] == [True] * 3
    assert [word in text for word in ("2026-12-01", "f3177c", "472734")] == [False] * 3
    again = await ask(store, ReplayEngine(recorded), TOMORROW)
    assert (reproduced(recorded, again).same, reproduced(recorded, again, exact=True).same) == (3, 0)
    same = await ask(store, ReplayEngine(recorded, exact=True), TODAY)
    assert reproduced(recorded, same, exact=True).share == 1.0
    assert [call.replayed_but_for for call in same.calls] == [[], [], []]


async def test_a_replay_may_be_held_to_every_word(store: Store) -> None:
    recorded = await ask(store, exact(STEPS, "0"), TODAY)
    await ask(store, ReplayEngine(recorded, exact=True), TOMORROW[:1], refused="recorded .It is 2026-11-30.*2026-12-01")
    await ask(store, ReplayEngine(recorded), [TOMORROW[0], "Something else."], refused="given .Something else")


async def test_words_that_are_the_same_come_before_words_that_may_be(store: Store) -> None:
    """Two sub-agents, told apart by chance alone: each gets its own answer again, in whatever order they come."""
    both = [[{"role": "user", "content": f"Chunk ID: {name}"}] for name in ("aaaaaa", "bbbbbb")]

    async def answers(engine: Engine, asked: list[Any]) -> tuple[str, list[str | None]]:
        async with Gateway(store, {"e": engine}) as gateway:
            session = await gateway.open_session()
            async with client_of(session) as client:
                told = [await client.chat.completions.create(model="m", messages=messages) for messages in asked]
        return session.id, [one.choices[0].message.content for one in told]

    session, first = await answers(exact(STEPS, "0"), both)
    assert first == ["Answer 0.", "Answer 1."]
    _, again = await answers(ReplayEngine(store.session(session)), both[::-1])
    assert again == ["Answer 1.", "Answer 0."]
