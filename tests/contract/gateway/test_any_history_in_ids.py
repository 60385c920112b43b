"""Whatever sub-agents, compactions, forks, edits, retries and cuts interleave: records and samples are what was served.

The model here spells its answers letter by letter, as no tokenizer would: ids that were rendered anew show at once.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.models import renderer

from orchard.gateway import Ended, Gateway, TokenExact, TokenRequest, Tokens
from orchard.gateway.parity import parity
from orchard.gateway.rendering import Renderer
from orchard.trajectories import CallRecord, Store, Trajectory, to_samples

Message = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("bash", "agent")]
SUMMARY = "Summarize the conversation so far."


def logprob(seed: int, at: int) -> float:
    """Of each id another one, so that no shift is overlooked."""
    return -1.0 - 10_000 * seed - at


class Witness:
    """Samples answers of its own, and keeps what it was given and gave, by the request's seed."""

    name, policy_version, context = "witness", "v0", None

    def __init__(self, own: Renderer) -> None:
        self._renderer = own
        self.prompts: dict[int, list[int]] = {}
        self.sampled: dict[int, list[int]] = {}

    async def generate(self, request: TokenRequest) -> AsyncGenerator[Tokens | Ended]:
        seed = request.sampling.seed
        assert seed is not None
        self.prompts[seed] = list(request.ids)
        calls = [
            {"id": f"c{n}", "function": {"name": "bash", "arguments": json.dumps({"command": f"echo {seed}.{n}"})}}
            for n in range(seed % 3)
        ]
        said = {"content": f"answer {seed}", "reasoning_content": "why not", "tool_calls": calls}
        ids = self._spelled(self._renderer.answer(said))
        cut = seed % 7 == 0
        self.sampled[seed] = ids[:-1] if cut else ids
        for at in range(0, len(self.sampled[seed]), 16):
            await asyncio.sleep(0.001 * (seed % 3))
            part = self.sampled[seed][at : at + 16]
            yield Tokens(part, [logprob(seed, at + n) for n in range(len(part))])
        yield Ended("length" if cut else "stop", "v0")

    def _spelled(self, ids: list[int]) -> list[int]:
        added = set(self._renderer.encode("<|im_end|><think></think><tool_call></tool_call>"))
        texts = [[number] if number in added else self._letters(number) for number in ids]
        return [number for text in texts for number in text]

    def _letters(self, number: int) -> list[int]:
        return [one for letter in self._renderer.text([number]) for one in self._renderer.encode(letter)]

    async def abort(self, session: str) -> None: ...

    async def update_weights(self, path: Path, version: str) -> None: ...

    async def close(self) -> None: ...


ASK = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["extend", "extend", "extend", "fork", "edit", "same", "compact", "child"]),
        "which": st.integers(0, 7),
        "at": st.integers(0, 7),
        "form": st.sampled_from(["raw", "parts", "bare", "turned"]),
        "end": st.sampled_from(["", "", "", "retry", "cut"]),
        "stop": st.sampled_from(["", "", "", "why", "swer", "echo"]),
    }
)
ROUNDS = st.lists(st.lists(ASK, min_size=1, max_size=3), min_size=1, max_size=5)


def prompt_of(ask: dict[str, Any], histories: list[list[Message]]) -> list[Message]:
    prompt = deepcopy(histories[ask["which"] % len(histories)])
    match ask["op"]:
        case "fork":
            return [*prompt[: 1 + ask["at"] % len(prompt)], {"role": "user", "content": f"fork {ask['at']}"}]
        case "edit":
            prompt[ask["at"] % len(prompt)] = {"role": "user", "content": "edited"}
        case "same":
            return deepcopy(histories[0])
        case "compact":
            return [*prompt, {"role": "user", "content": SUMMARY}]
        case "child":
            return [{"role": "system", "content": "You are a child."}, {"role": "user", "content": f"do {ask['at']}"}]
    return prompt


def echo(answer: Message, form: str) -> Message:
    answer = {key: value for key, value in answer.items() if form != "bare" or key != "reasoning_content"}
    if form == "parts":
        answer["content"] = [{"type": "text", "text": answer["content"]}]
        for call in answer.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
    return answer


class Play:
    """One session under a gateway, and the histories of its agents."""

    def __init__(self, mode: Literal["splice", "template"]) -> None:
        self.renderer = renderer("qwen3")
        self.witness = Witness(self.renderer)
        self.engine = TokenExact(self.witness, self.renderer, mode=mode)
        self.histories: list[list[Message]] = [[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]]
        self.messages: dict[int, list[Message]] = {}
        self.stops: dict[int, str] = {}
        self.asked = 0

    def kept(self, seed: int) -> list[int]:
        """Return what of an answer may be known: up to the id in which a string to stop at ends."""
        sampled, stop = self.witness.sampled[seed], self.stops[seed]
        if not stop or stop not in self.renderer.text(sampled):
            return sampled
        return next(sampled[:n] for n in range(len(sampled) + 1) if stop in self.renderer.text(sampled[:n]))

    async def post(self, http: aiohttp.ClientSession, url: str, ask: dict[str, Any], prompt: list[Message]) -> None:
        self.asked += 1
        body = {"messages": prompt, "tools": TOOLS, "seed": self.asked, "stream": ask["end"] == "cut"}
        if ask["stop"]:
            body["stop"] = [ask["stop"]]
        self.stops[self.asked] = ask["stop"]
        self.messages[self.asked] = deepcopy(prompt)
        async with http.post(url, json=body) as response:
            if ask["end"] == "cut":
                await response.content.readline()
                return
            answer = (await response.json())["choices"][0]["message"]
        if ask["end"] == "retry":
            async with http.post(url, json=body, headers={"x-stainless-retry-count": "1"}) as response:
                assert (await response.json())["choices"][0]["message"] == answer
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": f"out {ask['at']} {call['id']}"}
            for call in answer.get("tool_calls", [])
        ]
        follow = results[:: -1 if ask["form"] == "turned" else 1] or [{"role": "user", "content": f"go {ask['at']}"}]
        self.histories.append([*prompt, echo(answer, ask["form"]), *follow])
        if ask["op"] == "compact":
            self.histories.append([prompt[0], {"role": "user", "content": f"So far: {answer['content']}"}])

    async def run(self, rounds: list[list[dict[str, Any]]], folder: Path) -> Trajectory:
        with Store(folder) as store:
            async with Gateway(store, {"w": self.engine}) as gateway, aiohttp.ClientSession() as http:
                session = await gateway.open_session()
                url = session.url + "/v1/chat/completions"
                for asks in rounds:
                    await asyncio.gather(*(self.post(http, url, ask, prompt_of(ask, self.histories)) for ask in asks))
            return store.session(session.id)


def conversation(trajectory: Trajectory, call: CallRecord) -> list[int]:
    return [*(trajectory.prompt_ids(call.id) or []), *(call.sampled_ids or [])]


def check_records(play: Play, trajectory: Trajectory) -> None:
    assert len(trajectory.calls) == play.asked
    for call in trajectory.calls:
        seed = call.sampling["seed"]
        assert trajectory.prompt(call.id) == play.messages[seed]
        if seed not in play.witness.prompts:
            assert call.status == "aborted"  # cut before the engine began
            continue
        sampled = play.kept(seed)
        prompt = trajectory.prompt_ids(call.id)
        assert prompt == (play.witness.prompts[seed] if call.prompt_ids is not None else None)
        assert (call.sampled_ids or []) == sampled[: len(call.sampled_ids or [])]
        assert call.status == "aborted" or call.sampled_ids == sampled
        assert (call.logprobs or []) == [logprob(seed, at) for at in range(len(call.sampled_ids or []))]
        if call.matched == "extends" and call.mode == "splice":
            assert call.parent is not None
            before = conversation(trajectory, trajectory.call(call.parent))
            assert (prompt or [])[: len(before)] == before
            assert call.spliced_ids == call.kept_ids == len(before)


def check_samples(trajectory: Trajectory) -> None:
    """Every id that a call sampled is trained once, behind exactly the prompt that the call had."""
    trained: dict[str, int] = {}
    for sample in to_samples(trajectory, purposes=None):
        assert len(sample.ids) == len(sample.mask) == len(sample.logprobs)
        for name in sample.calls:
            call = trajectory.call(name)
            whole = conversation(trajectory, call)
            assert sample.ids[: len(whole)] == whole
            own = range(len(whole) - len(call.sampled_ids or []), len(whole))
            trained[name] = trained.get(name, 0) + sum(sample.mask[at] for at in own)
            assert [sample.logprobs[at] for at in own] == call.logprobs
        assert sum(sample.mask) <= sum(len(trajectory.call(name).sampled_ids or []) for name in sample.calls)
    ok = {call.id: len(call.sampled_ids or []) for call in trajectory.calls if call.status == "ok"}
    assert trained == ok


@pytest.mark.parametrize("mode", ["splice", "template"])
@settings(max_examples=30, deadline=None)
@given(rounds=ROUNDS)
def test_any_interleaving(mode: Literal["splice", "template"], rounds: list[list[dict[str, Any]]]) -> None:
    play = Play(mode)
    with tempfile.TemporaryDirectory() as folder:
        trajectory = asyncio.run(play.run(rounds, Path(folder)))
    check_records(play, trajectory)
    check_samples(trajectory)
    for one in parity(trajectory, play.renderer):
        assert one.template
        if mode == "template" or one.call.spliced_ids == 0:
            assert (one.differing, one.served) == (0, one.stock)
        if one.call.spliced_ids:
            assert one.differing > 0  # at least the spelling
