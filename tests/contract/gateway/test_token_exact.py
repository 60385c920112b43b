"""Token-exact sessions over the wire: what prompts are made of, what records say of it, what samples train."""

import gc
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, InternalServerError
from tests.contract.gateway.conftest import USER, client_of, until
from tests.contract.gateway.token_server import MODELS, VLLM_USAGE, serving, vllm, vllm_event
from tests.support.models import renderer

from orchard.core.errors import InvalidArgument
from orchard.gateway import (
    Budget,
    Ended,
    EngineUnavailable,
    Gateway,
    GatewayConfig,
    Prices,
    ScriptedTokens,
    TokenExact,
    TokenRequest,
    Tokens,
)
from orchard.gateway.engines.vllm import VllmEngine
from orchard.gateway.exact import Mode
from orchard.gateway.parity import parity
from orchard.trajectories import MaskedSpan, PolicySpan, Store, Trajectory, to_samples

QWEN3 = renderer("qwen3")
BASH: Any = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
LOOK = {
    "reasoning_content": "Two at once.", "content": "Look.",
    "calls": [{"name": "bash", "arguments": {"command": "ls"}}, {"name": "bash", "arguments": {"command": "pwd"}}],
}  # fmt: skip


def results(answer: Any, *outputs: str) -> list[Any]:
    pairs = zip(answer.tool_calls, outputs, strict=True)
    return [{"role": "tool", "tool_call_id": call.id, "content": output} for call, output in pairs]


async def play(store: Store, prompts: Any, steps: list[Any], mode: Mode = "splice", **params: Any) -> Trajectory:
    """Send what ``prompts`` yields; it is sent each answer."""
    engine = TokenExact(ScriptedTokens(QWEN3, steps), QWEN3, mode=mode)
    async with Gateway(store, {"t": engine}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            talk = prompts()
            messages = next(talk)
            while True:
                done = await client.chat.completions.create(model="m", messages=messages, tools=[BASH], **params)
                try:
                    messages = talk.send(done.choices[0].message)
                except StopIteration:
                    break
    return store.session(session.id)


async def test_recorded_ids_are_what_the_next_prompt_begins_with(store: Store) -> None:
    def talk() -> Any:
        first = yield USER
        messages = [*USER, first.model_dump(exclude_none=True), *results(first, "a", "b")]
        second = yield messages
        yield [*messages, {"role": "assistant", "content": [{"type": "text", "text": second.content}]}, *USER]

    trajectory = await play(store, talk, [LOOK, "Good.", "Done."])
    one, two, three = trajectory.calls
    assert [call.matched for call in trajectory.calls] == ["root", "extends", "extends"]
    assert [call.normalised for call in trajectory.calls] == [[], [], ["content_form"]]
    assert {(call.mode, call.template_hash) for call in trajectory.calls} == {("splice", QWEN3.template_hash)}
    assert one.prompt_ids == QWEN3.render(USER, [BASH])
    assert one.sampled_ids is not None
    assert (one.spliced_ids, one.kept_ids) == (0, 0)
    before = [*(one.prompt_ids or []), *one.sampled_ids]
    assert (two.spliced_ids, two.kept_ids) == (len(before), len(before))
    prompt = trajectory.prompt_ids(two.id)
    assert prompt is not None
    assert prompt[: len(before)] == before
    assert "Two at once." in QWEN3.text(prompt)  # reasoning stays as it was sampled
    assert QWEN3.text(two.prompt_ids or []).startswith("\n<|im_start|>user\n<tool_response>\na\n")
    (sample,) = to_samples(trajectory)
    assert sample.ids == [*(trajectory.prompt_ids(three.id) or []), *(three.sampled_ids or [])]
    assert sum(sample.mask) == sum(len(call.sampled_ids or []) for call in trajectory.calls)


async def test_results_that_come_in_another_order_are_the_same(store: Store) -> None:
    def talk() -> Any:
        first = yield USER
        answer = first.model_dump(exclude_none=True)
        a, b = results(first, "a", "b")
        second = yield [*USER, answer, b, a]  # as they were done
        yield [*USER, answer, a, b, second.model_dump(exclude_none=True), *USER]

    trajectory = await play(store, talk, [LOOK, "Good.", "Done."])
    _, two, three = trajectory.calls
    assert (two.matched, two.normalised) == ("extends", [])
    assert (three.matched, three.parent, three.normalised) == ("extends", two.id, ["result_order"])
    assert [message["content"] for message in trajectory.prompt(three.id)[2:4]] == ["a", "b"]
    text = QWEN3.text(trajectory.prompt_ids(three.id) or [])
    assert text.index("\nb\n") < text.index("\na\n")  # the ids are those of the order first served


@pytest.mark.parametrize("mode", ["splice", "template"])
async def test_reasoning_that_a_harness_leaves_out(store: Store, mode: Mode) -> None:
    def talk() -> Any:
        first = yield USER
        answer = first.model_dump(exclude_none=True)
        del answer["reasoning_content"]
        yield [*USER, answer, *results(first, "a", "b")]

    trajectory = await play(store, talk, [LOOK, "Done."], mode)
    _, two = trajectory.calls
    assert (two.matched, two.normalised, two.mode) == ("extends", ["reasoning_dropped"], mode)
    (_, beside) = parity(trajectory, QWEN3)
    if mode == "splice":
        assert beside.differing == beside.served - beside.stock > 10  # the ids of the thought, no others
        assert len(to_samples(trajectory)) == 1
    else:
        assert (beside.differing, two.spliced_ids) == (0, 0)
        assert trajectory.prompt_ids(two.id) == QWEN3.render(trajectory.prompt(two.id), [BASH])
        first, second = to_samples(trajectory)  # the ids are no prefix any more
        assert (sum(first.mask), second.calls) == (len(trajectory.calls[0].sampled_ids or []), [two.id])


async def test_a_fork_is_built_on_the_last_answer_that_it_keeps(store: Store) -> None:
    def talk() -> Any:
        first = yield USER
        one = [*USER, first.model_dump(exclude_none=True)]
        second = yield [*one, *results(first, "a", "b")]
        yield [*one, *results(first, "a", "b"), second.model_dump(exclude_none=True), *USER]
        yield [*one, *results(first, "a", "c")]  # another result
        yield [{"role": "system", "content": "s"}, *USER]

    trajectory = await play(store, talk, [LOOK, "two", "three", "four", "five"])
    one, _, _, four, five = trajectory.calls
    assert (four.matched, four.kept_messages) == ("forked", 3)
    assert four.spliced_ids == len(one.prompt_ids or []) + len(one.sampled_ids or [])
    assert four.kept_ids > four.spliced_ids  # stored once: the first result is the same
    assert (five.matched, five.spliced_ids, five.kept_ids, five.purpose) == ("root", 0, 0, "subagent")
    samples = to_samples(trajectory)
    assert [len(sample.calls) for sample in samples] == [3, 2, 1]
    assert sum(sum(sample.mask) for sample in samples) == sum(len(call.sampled_ids or []) for call in trajectory.calls)


async def test_other_tools_render_another_prompt(store: Store) -> None:
    """Recorded ids hold the tools that they were rendered with: with others they are no prefix."""
    async with Gateway(store, {"t": TokenExact(ScriptedTokens(QWEN3, ["a", "b"]), QWEN3)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            await client.chat.completions.create(model="m", messages=USER, tools=[BASH])
            more = [*USER, {"role": "assistant", "content": "a"}, *USER]
            await client.chat.completions.create(model="m", messages=more)
    trajectory = store.session(session.id)
    _, two = trajectory.calls
    assert (two.matched, two.kept_messages, two.spliced_ids) == ("forked", 2, 0)
    assert trajectory.prompt_ids(two.id) == QWEN3.render(more)


async def test_what_an_engine_sampled_before_it_went_away_is_in_no_record(store: Store) -> None:
    class Failing(ScriptedTokens):
        async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
            tries.append(request.session)
            async for part in super().generate(request):
                yield part
                if len(tries) % 3:
                    raise EngineUnavailable("away")

    tries: list[str] = []
    tokens = Failing(QWEN3, ["word " * 20], at_end="repeat", portion=4)
    async with Gateway(store, {"t": TokenExact(tokens, QWEN3)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            await client.chat.completions.create(model="m", messages=USER)
            session.hold_seconds = 0.1
            with pytest.raises(InternalServerError):
                await client.chat.completions.create(model="m", messages=USER)
    good, failed = store.session(session.id).calls
    assert session.state.engine_failures >= 3
    assert good.sampled_ids == QWEN3.answer({"content": "word " * 20})
    assert (failed.status, failed.sampled_ids, failed.prompt_ids) == ("error", None, None)


async def test_a_cut_answer_is_recorded_with_the_ids_that_had_come(store: Store) -> None:
    tokens = ScriptedTokens(QWEN3, ["word " * 500], portion=4, latency=0.02)
    async with Gateway(store, {"t": TokenExact(tokens, QWEN3)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            stream = await client.chat.completions.create(model="m", messages=USER, stream=True)
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()
        await until(lambda: session.state.aborted)
    (call,) = store.session(session.id).calls
    assert (call.status, call.error_code) == ("aborted", "engine_unavailable")
    assert call.prompt_ids == QWEN3.render(USER)
    assert call.sampled_ids is not None
    assert 4 <= len(call.sampled_ids) < 400
    assert call.logprobs == [0.0] * len(call.sampled_ids)
    assert call.usage.completion_tokens == session.state.completion_tokens == len(call.sampled_ids)
    assert call.times.first_token is not None
    assert call.answer is not None
    assert QWEN3.text(call.sampled_ids).startswith(call.answer["content"])
    assert to_samples(store.session(session.id)) == []


async def test_what_was_not_drawn_freely_has_no_weight(store: Store) -> None:
    def talk() -> Any:
        yield USER

    choice = {"type": "function", "function": {"name": "bash"}}
    steps = ['{"command": "ls"}}\n</tool_call>']
    trajectory = await play(store, talk, steps, tool_choice=choice)
    (call,) = trajectory.calls
    assert call.sampled_ids is not None
    assert call.answer is not None
    assert call.answer["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert QWEN3.text(call.sampled_ids).startswith('<tool_call>\n{"name": "bash", "arguments": {"command"')
    assert call.masked == [MaskedSpan(reason="tool_choice", start=0, end=len(call.sampled_ids))]
    assert to_samples(trajectory) == []
    assert [one.differing for one in parity(trajectory, QWEN3)] == [0]
    trajectory = await play(store, talk, ["{}"], response_format={"type": "json_object"})
    assert trajectory.calls[0].masked[0].reason == "response_format"
    assert trajectory.calls[0].sampling["grammar"] == {"json_object": True}


async def test_parameters_that_nobody_uses_are_named(store: Store) -> None:
    params = {"min_tokens": 5, "ignore_eos": True, "logprobs": True}
    async with Gateway(store, {"t": TokenExact(ScriptedTokens(QWEN3, ["a", "b"]), QWEN3)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            await client.chat.completions.create(model="m", messages=USER, extra_body=params)
            for refused in ("guided_json", "bad_words"):
                with pytest.raises(BadRequestError, match=refused):
                    await client.chat.completions.create(model="m", messages=USER, extra_body={refused: ["x"]})
            session.training = True
            await client.chat.completions.create(model="m", messages=USER, extra_body={**params, "guided_json": {}})
    first, *_, last = store.session(session.id).calls
    assert (sorted(first.dropped), first.overridden) == (["ignore_eos", "logprobs", "min_tokens"], {})
    assert first.masked == []  # they had no effect
    assert (last.dropped, last.overridden) == (["logprobs"], {"min_tokens": 5, "ignore_eos": True, "guided_json": {}})
    assert last.masked == []


async def test_in_training_nothing_changes_the_distribution(store: Store) -> None:
    class Seen(ScriptedTokens):
        async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
            asked.append(request.sampling)
            async for part in super().generate(request):
                yield part

    asked: list[Any] = []
    engine = TokenExact(Seen(QWEN3, ["a", "b"]), QWEN3)
    params: dict[str, Any] = {"top_p": 0.5, "temperature": 0.7, "presence_penalty": 0, "logit_bias": {"5": 1}}
    config = GatewayConfig(training=True)
    async with Gateway(store, {"t": engine}, config) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            await client.chat.completions.create(model="m", messages=USER, extra_body={"top_k": 9}, **params)
        session.training = False
        async with client_of(session) as client:
            await client.chat.completions.create(model="m", messages=USER, extra_body={"top_k": 9}, **params)
    trained, evaluated = store.session(session.id).calls
    assert trained.overridden == {"top_p": 0.5, "top_k": 9, "logit_bias": {"5": 1}}
    assert (asked[0].top_p, asked[0].top_k, asked[0].logit_bias, asked[0].temperature) == (1.0, 0, {}, 0.7)
    assert evaluated.overridden == {}
    assert (asked[1].top_p, asked[1].top_k, asked[1].logit_bias) == (0.5, 9, {5: 1.0})
    assert evaluated.sampling["top_p"] == 0.5


async def test_the_context_bounds_prompts_and_answers(store: Store) -> None:
    prompt = len(QWEN3.render(USER))
    tokens = ScriptedTokens(QWEN3, ["word " * 100], at_end="repeat", context=prompt + 5)
    async with Gateway(store, {"t": TokenExact(tokens, QWEN3)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            done = await client.chat.completions.create(model="m", messages=USER)
            assert (done.choices[0].finish_reason, done.usage and done.usage.completion_tokens) == ("length", 5)
            longer: Any = [{"role": "user", "content": "hi " * 20}]
            with pytest.raises(BadRequestError, match="maximum context length") as refused:
                await client.chat.completions.create(model="m", messages=longer)
            assert refused.value.code == "context_length_exceeded"
            with pytest.raises(BadRequestError, match="temperature"):
                await client.chat.completions.create(model="m", messages=USER, temperature=-1)
    cut, refused_call, _ = store.session(session.id).calls
    assert len(cut.sampled_ids or []) == 5
    assert (refused_call.status, refused_call.error_code) == ("error", "context_length_exceeded")


class Counting(ScriptedTokens):
    """Samples the n-th id of each answer with -n, from one id on under other weights."""

    changes_at = 3

    async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
        count = 0
        async for part in super().generate(request):
            if isinstance(part, Tokens):
                logprobs = [-1.0 - count - n for n in range(len(part.ids))]
                version = "v0" if count < self.changes_at else "v1"
                part, count = Tokens(part.ids, logprobs, version, 7), count + len(part.ids)
            yield part


async def stop_at(store: Store, portion: int, text: str, stop: list[str], stream: bool = False) -> Trajectory:
    engine = TokenExact(Counting(QWEN3, [text, "more"], portion=portion, policy_version="late"), QWEN3)
    async with Gateway(store, {"t": engine}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            done: Any = await client.chat.completions.create(model="m", messages=USER, stop=stop, stream=stream)
            if stream:
                said = "".join([chunk.choices[0].delta.content or "" async for chunk in done])
            else:
                said = done.choices[0].message.content
                assert done.choices[0].finish_reason == "stop"
            messages: list[Any] = [*USER, {"role": "assistant", "content": said}, *USER]
            await client.chat.completions.create(model="m", messages=messages)
    trajectory = store.session(session.id)
    assert (trajectory.calls[0].answer or {})["content"] == said == text[: text.index(stop[0])]
    return trajectory


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("portion", [1, 3, 500])
async def test_what_is_behind_a_string_to_stop_at_is_not_there(store: Store, portion: int, stream: bool) -> None:
    trajectory = await stop_at(store, portion, "one two END three that nobody saw", ["END"], stream)
    one, two = trajectory.calls
    kept = one.sampled_ids or []
    assert QWEN3.text(kept) == "one two END"
    assert one.logprobs == [-1.0 - n for n in range(len(kept))]
    assert (one.masked, one.usage.completion_tokens, one.usage.cached_tokens) == ([], len(kept), 7)
    if portion == 500:
        assert (one.policy_version, one.spans) == ("v0", [])
    else:
        ends = [PolicySpan(version="v0", start=0, end=3), PolicySpan(version="v1", start=3, end=len(kept))]
        assert (one.policy_version, one.spans) == ("v1", ends)
    before = [*(trajectory.prompt_ids(one.id) or []), *kept, QWEN3.stop_ids[0]]
    assert (trajectory.prompt_ids(two.id) or [])[: len(before)] == before
    (sample,) = to_samples(trajectory)
    text = QWEN3.text([number for number, on in zip(sample.ids, sample.mask, strict=True) if on])
    assert text == "one two ENDmore<|im_end|>"


@pytest.mark.parametrize("portion", [1, 500])
async def test_an_id_that_says_more_than_the_string_to_stop_at_is_not_trained(store: Store, portion: int) -> None:
    (split,) = QWEN3.encode(" tests")
    trajectory = await stop_at(store, portion, "Run the tests, then", [" te"])
    one, _ = trajectory.calls
    kept = one.sampled_ids or []
    assert kept[-1] == split
    assert one.masked == [MaskedSpan(reason="stop", start=len(kept) - 1, end=len(kept))]
    (sample,) = to_samples(trajectory)
    trained = [number for number, on in zip(sample.ids, sample.mask, strict=True) if on]
    assert QWEN3.text(trained) == "Run themore<|im_end|>"


async def test_an_answer_in_one_portion_is_cut_at_a_string_to_stop_at(store: Store) -> None:
    ids = QWEN3.encode("one END two<|im_end|>")
    logprobs = [-1.0 - n for n in range(len(ids))]
    whole: Any = vllm_event(ids, logprobs, finish_reason="stop", routed_experts="AAAA")
    whole["usage"] = VLLM_USAGE["usage"]
    server = vllm(completions=[whole])
    server.replies["/v1/models"] = [{"data": [MODELS["data"][0] | {"max_model_len": 999}]}]
    async with serving(server):
        engine = TokenExact(VllmEngine(server.url, routed_experts=True, policy_version="7"), QWEN3)
        async with Gateway(store, {"t": engine}) as gateway:
            session = await gateway.open_session()
            async with client_of(session) as client:
                await client.chat.completions.create(model="m", messages=USER, stop="END")
    (call,) = store.session(session.id).calls
    kept = call.sampled_ids or []
    assert QWEN3.text(kept) == "one END"
    assert (call.logprobs, call.routed_experts) == (logprobs[: len(kept)], None)  # experts of ids that are not there
    assert (call.policy_version, call.usage.cached_tokens) == ("7", 2)


@pytest.mark.parametrize("stop", [5, {"a": 1}, [1]])
async def test_what_is_no_string_to_stop_at_is_refused(store: Store, stop: Any) -> None:
    async with Gateway(store, {"t": TokenExact(ScriptedTokens(QWEN3, ["a"]), QWEN3)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            with pytest.raises(BadRequestError, match="stop must be"):
                await client.chat.completions.create(model="m", messages=USER, stop=stop)


async def test_each_id_tells_whose_weights_sampled_it(store: Store, tmp_path: Path) -> None:
    class Changing(ScriptedTokens):
        async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
            async for part in super().generate(request):
                if isinstance(part, Ended) and self.policy_version == "v1":
                    spans = (PolicySpan(version="v0", start=0, end=1), PolicySpan(version="v1", start=1, end=3))
                    part = Ended(part.finish_reason, "v1", spans)
                yield part

    engine = TokenExact(Changing(QWEN3, ["a", "b"], policy_version="v0"), QWEN3)
    async with Gateway(store, {"t": engine}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            await client.chat.completions.create(model="m", messages=USER)
            await engine.update_weights(tmp_path, "v1")
            await client.chat.completions.create(
                model="m", messages=[*USER, {"role": "assistant", "content": "a"}, *USER]
            )
    one, two = store.session(session.id).calls
    assert (one.policy_version, one.spans, two.policy_version, len(two.spans)) == ("v0", [], "v1", 2)
    (sample,) = to_samples(store.session(session.id))
    assert [span.version for span in sample.spans] == ["v0", "v0", "v1"]
    first, *rest = sample.spans
    assert sample.ids[first.start : first.end] == one.sampled_ids
    assert rest[0].start == len(sample.ids) - len(two.sampled_ids or [])


async def test_a_budget_of_cost(store: Store) -> None:
    with pytest.raises(InvalidArgument, match="prices"):
        Budget(cost=1.0)
    prompt = len(QWEN3.render(USER))
    budget = Budget(cost=2.0 * prompt / 1e6, prices=Prices(prompt=1.0, completion=10.0))
    async with Gateway(store, {"t": TokenExact(ScriptedTokens(QWEN3, ["", ""]), QWEN3)}) as gateway:
        session = await gateway.open_session(budget=budget)
        async with client_of(session) as client:
            await client.chat.completions.create(model="m", messages=USER)
            assert session.state.cost == pytest.approx((prompt + 10) / 1e6)
            await client.chat.completions.create(model="m", messages=USER)
            with pytest.raises(BadRequestError, match="cost is used up"):
                await client.chat.completions.create(model="m", messages=USER)
    assert (session.state.cut, session.state.turns) == ("cost", 2)


async def test_a_long_session_holds_no_prompt_twice(store: Store) -> None:
    """Thirty prompts of 8,000 ids each would be 2 MB and more, and their texts half a megabyte."""
    messages: list[Any] = [{"role": "system", "content": "a 1 b 2 " * 2000}, *USER]
    tokens = ScriptedTokens(QWEN3, ["ok"], at_end="repeat")
    async with Gateway(store, {"t": TokenExact(tokens, QWEN3)}) as gateway:
        session = await gateway.open_session()
        async with client_of(session) as client:
            for turn in range(32):
                if turn == 2:
                    tracemalloc.start()
                await client.chat.completions.create(model="m", messages=messages)
                messages += [{"role": "assistant", "content": "ok"}, *USER]
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
    last = store.session(session.id).calls[-1]
    assert last.kept_ids > 7_500
    assert held < 1_000_000
