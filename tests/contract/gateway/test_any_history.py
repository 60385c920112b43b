"""Whatever interleaving of extensions, forks, edits, retries and concurrent calls: the record is what was served."""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator
from copy import deepcopy
from pathlib import Path
from typing import Any

import aiohttp
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard.gateway import Delta, EngineRequest, Final, Gateway
from orchard.trajectories import Store, Usage

Message = dict[str, Any]


class Witness:
    """An engine that keeps what it was asked, under the number in its answer."""

    name = "witness"
    policy_version = None

    def __init__(self) -> None:
        self.served: dict[str, str] = {}

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
        number = f"answer {len(self.served)}"
        self.served[number] = json.dumps(list(request.messages))
        await asyncio.sleep(0.001 * (len(number) + len(request.messages)) % 0.004)
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
        message = {"role": "assistant", "content": number, "tool_calls": [call], "reasoning_content": "why"}
        yield Delta({"content": number})
        yield Final(message, "tool_calls", Usage(prompt_tokens=1, completion_tokens=1))

    async def close(self) -> None: ...


ASK = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["extend", "extend", "fork", "edit", "same"]),
        "which": st.integers(0, 7),
        "at": st.integers(0, 7),
        "form": st.sampled_from(["raw", "parts", "bare"]),
        "retry": st.booleans(),
    }
)
ROUNDS = st.lists(st.lists(ASK, min_size=1, max_size=3), min_size=1, max_size=5)


def prompt_of(ask: dict[str, Any], histories: list[list[Message]]) -> list[Message]:
    prompt = deepcopy(histories[ask["which"] % len(histories)])
    if ask["op"] == "fork":
        prompt = [*prompt[: 1 + ask["at"] % len(prompt)], {"role": "user", "content": f"fork {ask['at']}"}]
    elif ask["op"] == "edit":
        prompt[ask["at"] % len(prompt)] = {"role": "user", "content": "edited"}
    elif ask["op"] == "same":
        prompt = deepcopy(histories[0])
    return prompt


def echo(answer: Message, form: str) -> Message:
    answer = {key: value for key, value in answer.items() if form != "bare" or key != "reasoning_content"}
    if form == "parts":
        answer["content"] = [{"type": "text", "text": answer["content"]}]
        call = answer["tool_calls"][0]
        answer["tool_calls"] = [{**call, "function": {**call["function"], "arguments": '{"a": 1}'}}]
    return answer


async def play(rounds: list[list[dict[str, Any]]], folder: Path) -> None:
    witness = Witness()
    histories: list[list[Message]] = [[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]]
    answers = 0
    with Store(folder) as store:
        async with Gateway(store, {"w": witness}) as gateway, aiohttp.ClientSession() as http:
            session = await gateway.open_session()

            async def post(ask: dict[str, Any], prompt: list[Message]) -> None:
                headers = {"x-stainless-retry-count": "1"} if ask["retry"] else {}
                async with http.post(
                    session.url + "/v1/chat/completions", json={"messages": prompt}, headers=headers
                ) as r:
                    answer = (await r.json())["choices"][0]["message"]
                result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": f"out {ask['at']}"}
                histories.append([*prompt, echo(answer, ask["form"]), result])

            for asks in rounds:
                await asyncio.gather(*(post(ask, prompt_of(ask, histories)) for ask in asks))
                answers += len(asks)
        trajectory = store.session(session.id)
        assert len(trajectory.calls) == len(witness.served)
        assert len(trajectory.calls) + len(trajectory.retries) == answers
        for call in trajectory.calls:
            assert call.answer is not None
            assert json.dumps(trajectory.prompt(call.id)) == witness.served[call.answer["content"]]
            assert trajectory.messages(call.id)[-1] == call.answer
        covered = {call.id for branch in trajectory.branches() for call in branch.calls}
        assert covered == {call.id for call in trajectory.calls}


@settings(max_examples=40, deadline=None)
@given(ROUNDS)
def test_any_interleaving(rounds: list[list[dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(rounds, Path(folder)))
