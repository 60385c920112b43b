"""The embedded engine on a tiny random model: what it samples, keeps, swaps and refuses."""

import asyncio
import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.models import tiny_model
from tests.support.waiting import until
from tests.torch.conftest import MakeEngine
from tests.torch.reference import CLOSE, ask, ask_all, farthest, off_by, plain_logprobs, some_ids

from orchard.core.errors import InvalidArgument
from orchard.gateway.engines.transformers import TransformersEngine
from orchard.gateway.errors import ContextOverflow, EngineRefused, EngineUnavailable
from orchard.gateway.tokens import Ended, Sampling, TokenRequest, Tokens

ENDLESS = Sampling(max_tokens=1500)


async def test_logprobs_are_those_of_the_distribution_that_was_drawn_from(tiny: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny)
    warm = await ask(engine, some_ids(30), temperature=0.7, seed=1)
    assert off_by(tiny, warm, 0.7) < CLOSE
    assert off_by(tiny, warm) > 0.1
    assert off_by(tiny, await ask(engine, some_ids(30), temperature=0)) < CLOSE


async def test_a_prompt_that_goes_through_in_portions_is_the_same(tiny: Path, make_engine: MakeEngine) -> None:
    said = await ask(make_engine(tiny), some_ids(1300), seed=2)
    assert off_by(tiny, said) < CLOSE


async def test_sixteen_at_once_are_what_each_is_alone(tiny: Path, make_engine: MakeEngine) -> None:
    prompts = [some_ids(5 + 37 * at, seed=at) for at in range(16)]
    together = await ask_all(make_engine(tiny), prompts)
    for at, (prompt, said) in enumerate(zip(prompts, together, strict=True)):
        alone = await ask(make_engine(tiny), prompt, seed=at)
        assert alone.ids == said.ids
        assert farthest(alone.logprobs, said.logprobs) < CLOSE
    assert {said.end.cached_tokens for said in together} == {0}


async def test_the_next_turn_computes_only_what_is_new(tiny: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny)
    first = await ask(engine, some_ids(200), seed=1)
    prompt = first.whole + some_ids(20, seed=5)
    second = await ask(engine, prompt, seed=2)
    assert second.end.cached_tokens == len(first.whole) - 1, "the last id was drawn, and never went through the model"
    fresh = await ask(make_engine(tiny), prompt, seed=2)
    assert fresh.end.cached_tokens == 0
    assert second.ids == fresh.ids
    assert farthest(second.logprobs, fresh.logprobs) < CLOSE


async def test_a_conversation_that_forks_leaves_the_other_as_it_was(tiny: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny)
    head = some_ids(100)
    main = await ask(engine, head + some_ids(50, seed=1), "one", seed=1)
    side = await ask(engine, head + some_ids(30, seed=2), "one", seed=2)
    other = await ask(engine, head + some_ids(40, seed=3), "two", seed=3)
    assert (side.end.cached_tokens, other.end.cached_tokens) == (100, 100)
    again = await ask(engine, main.whole + some_ids(10, seed=4), "one", seed=4)
    assert again.end.cached_tokens == len(main.whole) - 1
    assert max(off_by(tiny, said) for said in (main, side, other, again)) < CLOSE


async def test_rollouts_of_a_group_share_their_prompt_from_the_start(tiny: Path, make_engine: MakeEngine) -> None:
    said = await ask_all(make_engine(tiny), [some_ids(1300)] * 4)
    assert [each.end.cached_tokens for each in said] == [0, 1299, 1299, 1299]
    assert max(off_by(tiny, each) for each in said) < CLOSE


async def test_the_longest_unused_conversation_is_forgotten_first(tiny: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, memory=room(1024))
    said = [await ask(engine, some_ids(300, seed=at), f"s{at}", seed=at) for at in range(3)]  # two fit
    for at, held in ((2, True), (1, True), (0, False)):
        more = await ask(engine, [*said[at].whole, 7], f"s{at}", max_tokens=4)
        assert more.end.cached_tokens == (len(said[at].whole) - 1 if held else 0)
        assert off_by(tiny, more) < CLOSE


async def test_answers_that_do_not_fit_together_come_to_their_ends_one_after_another(
    tiny: Path, make_engine: MakeEngine
) -> None:
    prompts = [some_ids(200, seed=at) for at in range(4)]
    engine = make_engine(tiny, memory=room(1024), context=1024)
    together = await ask_all(engine, prompts, max_tokens=400)
    assert engine._batch is not None
    assert engine._batch.result().computed < 3 * sum(len(said.whole) for said in together), "few were set back, seldom"
    for at, (prompt, said) in enumerate(zip(prompts, together, strict=True)):
        alone = await ask(make_engine(tiny), prompt, seed=at, max_tokens=400)
        assert alone.ids == said.ids
        assert farthest(alone.logprobs, said.logprobs) < CLOSE


async def test_the_longest_running_is_never_set_back(endless: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(endless, memory=room(1024), context=1024)
    ended: list[int] = []

    async def one(at: int) -> None:
        said = await ask(engine, some_ids(200, seed=at), f"s{at}", seed=at, max_tokens=400)
        assert len(said.ids) == 400
        ended.append(at)

    await asyncio.gather(*(one(at) for at in range(3)))
    assert ended == [0, 1, 2]


async def test_weights_are_replaced_in_mid_answer(endless: Path, tmp_path: Path, make_engine: MakeEngine) -> None:
    other = tiny_model(tmp_path, seed=1)
    engine = make_engine(endless, policy_version="1")
    ids: list[int] = []
    logprobs: list[float] = []
    prompt, end = some_ids(50), Ended("abort")
    sampled_by: list[str | None] = []
    async with aclosing(engine.generate(TokenRequest("s", prompt, Sampling(max_tokens=1900, seed=3)))) as parts:
        async for part in parts:
            if isinstance(part, Ended):
                end = part
                continue
            ids += part.ids
            logprobs += part.logprobs
            sampled_by.append(part.policy_version)
            if len(ids) == 1:
                await _updated_at_once(engine, other, "2")
            if sampled_by.count("2") == 20:
                await engine.abort("s")
    before, after = end.spans
    assert (before.version, before.start, after.version, after.end) == ("1", 0, "2", len(ids))
    assert before.end == after.start == sampled_by.count("1")
    assert end.policy_version == engine.policy_version == "2"
    old, new = (plain_logprobs(folder, prompt + ids)[len(prompt) - 1 :] for folder in (endless, other))
    assert farthest(logprobs[: before.end], old[: before.end]) < CLOSE
    assert farthest(logprobs[after.start :], new[after.start :]) < CLOSE
    later = await ask(engine, prompt + ids[:-1], "s", seed=3)
    assert later.end.spans == ()
    assert off_by(other, later) < CLOSE


async def _updated_at_once(engine: TransformersEngine, folder: Path, version: str) -> None:
    """Update the weights while the engine stands still: on a busy machine it might end its answer before."""
    reached, go_on = threading.Event(), threading.Event()

    def stand_still(_: object) -> None:
        reached.set()
        go_on.wait(60)

    engine._change(stand_still)
    await until(reached.is_set)
    updating = asyncio.create_task(engine.update_weights(folder, version))
    await until(lambda: engine._thread._work_queue.qsize() > 1)  # the next step, and behind it the update
    go_on.set()
    await updating


async def test_what_was_kept_under_old_weights_is_not_used(tiny: Path, tmp_path: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny)
    first = await ask(engine, some_ids(100), seed=1)
    other = tiny_model(tmp_path, seed=1)
    await engine.update_weights(other, "2")
    second = await ask(engine, first.whole, seed=1)
    assert second.end.cached_tokens == 0
    assert second.end.policy_version == "2"
    assert off_by(other, second) < CLOSE


async def test_weights_of_another_model_are_refused_and_the_old_ones_stay(
    tiny: Path, tmp_path: Path, make_engine: MakeEngine
) -> None:
    engine = make_engine(tiny)
    larger = tiny_model(tmp_path / "larger", layers=4)
    for folder in (larger, tmp_path / "missing"):
        with pytest.raises(EngineRefused, match="no weights of this model"):
            await engine.update_weights(folder, "2")
    assert engine.policy_version == "0"
    assert off_by(tiny, await ask(engine, some_ids(30))) < CLOSE


async def test_an_abort_frees_the_place_and_keeps_what_was_computed(endless: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(endless, most=1)
    prompt = some_ids(100)
    running = engine.generate(TokenRequest("one", prompt, ENDLESS))
    assert isinstance(await anext(running), Tokens)
    waiting = asyncio.create_task(ask(engine, some_ids(30, seed=1), "two"))
    await engine.abort("other")
    await engine.abort("one")
    *_, end = [part async for part in running]
    assert isinstance(end, Ended)
    assert end.finish_reason == "abort"
    assert (await asyncio.wait_for(waiting, 60)).end.finish_reason == "length"
    assert (await ask(engine, prompt, "one")).end.cached_tokens == 99


async def test_a_generator_that_is_closed_frees_its_place(endless: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(endless, most=1)
    async with aclosing(engine.generate(TokenRequest("one", some_ids(50), ENDLESS))) as running:
        await anext(running)
    for _ in range(2):  # the step under way has ended, then that which found nothing to do
        await engine.abort("nobody")
    said = await asyncio.wait_for(ask(engine, some_ids(50), "one"), 60)
    assert said.ids
    assert said.end.cached_tokens == 49


async def test_where_an_answer_ends(tiny: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, context=64)
    said = await ask(engine, some_ids(20), seed=1, max_tokens=10)
    assert (len(said.ids), said.end.finish_reason) == (10, "length")
    stop = said.ids[4]
    stopped = await ask(engine, some_ids(20), seed=1, max_tokens=10, stop_ids=(stop,))
    assert (stopped.ids, stopped.end.finish_reason) == (said.ids[: said.ids.index(stop) + 1], "stop")
    full = await ask(engine, some_ids(60), seed=1, max_tokens=None)
    assert (len(full.ids), full.end.finish_reason) == (4, "length")


async def test_a_seed_repeats_an_answer(endless: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(endless)
    one, same, other = [await ask(engine, some_ids(20), seed=seed) for seed in (1, 1, 2)]
    assert one.ids == same.ids != other.ids
    assert (await ask(engine, some_ids(20))).ids != (await ask(engine, some_ids(20))).ids, "no seed, no repetition"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"presence_penalty": 0.5, "logit_bias": {3: 1.0}}, "presence_penalty, logit_bias"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"grammar": {"json_object": True}}, "grammar"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_what_is_not_offered_is_refused_by_name(
    tiny: Path, make_engine: MakeEngine, how: dict[str, Any], says: str
) -> None:
    with pytest.raises(EngineRefused, match=says):
        await ask(make_engine(tiny), [1, 2, 3], **how)


async def test_a_prompt_that_is_none_is_refused_and_harms_nobody(tiny: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny, context=100)
    beside = asyncio.create_task(ask(engine, some_ids(20), "beside", max_tokens=60))
    for ids in ([], [-1], [260]):
        with pytest.raises(EngineRefused, match="from 0 to 259"):
            await ask(engine, ids)
    with pytest.raises(ContextOverflow) as overflow:
        await ask(engine, some_ids(100))
    assert (overflow.value.prompt_tokens, overflow.value.context) == (100, 100)
    assert (await beside).ids


async def test_a_model_that_breaks_is_told_and_mends(tiny: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(tiny)
    await engine.ready()
    net = engine._model._net  # type: ignore[union-attr]
    head, net.lm_head = net.lm_head, None
    with pytest.raises(EngineUnavailable, match="could not be run"):
        await ask(engine, some_ids(20))
    net.lm_head = head
    assert off_by(tiny, await ask(engine, some_ids(20))) < CLOSE


async def test_a_closed_engine_says_so(endless: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(endless)
    running = engine.generate(TokenRequest("one", some_ids(9), ENDLESS))
    await anext(running)
    await engine.close()
    *_, end = [part async for part in running]
    assert isinstance(end, Ended)
    assert end.finish_reason == "abort"
    with pytest.raises(EngineUnavailable, match="closed"):
        await ask(engine, some_ids(9))


async def test_a_folder_without_a_model_is_refused(tmp_path: Path, make_engine: MakeEngine) -> None:
    with pytest.raises(InvalidArgument, match="no model in"):
        make_engine(tmp_path)


def room(positions: int) -> int:
    """Bytes that so many ids of the tiny model take: 3 layers, keys and values, 2 heads of 16 numbers of 4 bytes."""
    return positions * 3 * 2 * 2 * 16 * 4
