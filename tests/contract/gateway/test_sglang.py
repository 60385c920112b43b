"""The SGLang engine against answers as SGLang's documents and source give them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.contract.gateway.token_server import (
    ENTRIES,
    PROMPT,
    SGLANG_ANSWER,
    STOP,
    asks,
    sample,
    serving,
    sglang,
    sglang_event,
)

from orchard.gateway import ContextOverflow, EngineRefused, EngineUnavailable
from orchard.gateway.engines.sglang import SglangEngine
from orchard.trajectories import PolicySpan

NEWS = [sglang_event(ENTRIES[n : n + 1], n + 1, finish=STOP if n == 2 else None) for n in range(3)]
"""The same answer of a server that tells only what is new (``--incremental-streaming-output``)."""


def probe(second: float) -> dict[str, Any]:
    event = sglang_event(ENTRIES[:1], 1, finish={"type": "length", "length": 1})
    event["meta_info"]["output_top_logprobs"] = [[[0.0, 5, None], [second, 6, None]]]
    return event


@pytest.mark.parametrize("answer", [SGLANG_ANSWER, NEWS], ids=["everything again", "only the news"])
async def test_ids_go_in_and_ids_come_out(answer: list[Any]) -> None:
    async with serving(sglang(generate=[probe(-18.0), probe(-9.0), answer])) as server:
        engine = SglangEngine(server.url, policy_version="0")
        ids, logprobs, end = await sample(engine, asks(max_tokens=3, seed=7, stop_ids=(2,), logit_bias={9: -100.0}))
        await engine.close()
    assert (ids, logprobs) == ([5, 6, 2], [-0.25, -0.75, -0.5])
    assert (end.finish_reason, end.policy_version, end.spans, end.cached_tokens) == ("stop", "0", (), 2)
    *_, body = server.bodies("/generate")
    assert body.pop("rid")
    assert body == {
        "input_ids": list(PROMPT), "return_logprob": True, "stream": True,
        "sampling_params": {
            "max_new_tokens": 3, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "repetition_penalty": 1.0, "stop_token_ids": [2], "sampling_seed": 7,
            "logit_bias": {"9": -100.0},
        },
    }  # fmt: skip


async def test_an_answer_fits_into_the_context() -> None:
    async with serving(sglang()) as server:
        engine = SglangEngine(server.url)
        await sample(engine, asks())
        with pytest.raises(ContextOverflow, match="16 tokens"):
            await sample(engine, asks(ids=range(16)))
        await engine.close()
    assert [body["sampling_params"]["max_new_tokens"] for body in server.bodies("/generate")] == [12]


BROKEN: dict[str, Any] = {
    "ids that are missing": [SGLANG_ANSWER[0], NEWS[2]],
    "an end too soon": SGLANG_ANSWER[:2],
    "an error event": [SGLANG_ANSWER[0], {"error": {"message": "died"}}],
    "another shape": [{"text": "hi"}],
    "a break": [SGLANG_ANSWER[0], None],
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_server_that_fails_may_be_asked_again(fault: str) -> None:
    async with serving(sglang(generate=[BROKEN[fault], SGLANG_ANSWER])) as server:
        engine = SglangEngine(server.url)
        with pytest.raises(EngineUnavailable):
            await sample(engine, asks())
        assert (await sample(engine, asks()))[0] == [5, 6, 2]
        await engine.close()


async def test_a_server_without_log_probabilities_is_refused() -> None:
    event = sglang_event(ENTRIES, 3, finish=STOP)
    del event["meta_info"]["output_token_logprobs"]
    async with serving(sglang(generate=[[event]])) as server:
        engine = SglangEngine(server.url)
        with pytest.raises(EngineRefused, match="no token ids"):
            await sample(engine, asks())
        await engine.close()


async def test_log_probabilities_from_before_the_temperature_are_refused() -> None:
    async with serving(
        sglang(generate=[probe(-18.0), probe(-18.0), probe(-18.0), probe(-9.0), SGLANG_ANSWER])
    ) as server:
        engine = SglangEngine(server.url)
        with pytest.raises(EngineRefused, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
            await sample(engine, asks(temperature=0.7))
        assert (await sample(engine, asks(temperature=0.7)))[0] == [5, 6, 2]
        await engine.close()


async def test_abort_ends_the_calls_of_a_session_by_their_ids() -> None:
    aborted = {"type": "abort", "message": "Abort in waiting queue"}
    server = sglang(generate=[[SGLANG_ANSWER[0], sglang_event(ENTRIES[:1], 1, finish=aborted)]])
    server.gate = asyncio.Event()
    async with serving(server):
        engine = SglangEngine(server.url)
        running = asyncio.create_task(sample(engine, asks("ours")))
        while not server.bodies("/generate"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await engine.abort("another")
        await engine.abort("ours")
        server.gate.set()
        ids, _, end = await running
        await engine.close()
    assert (ids, end.finish_reason) == ([5], "abort")
    assert server.bodies("/abort_request") == [{"rid": server.bodies("/generate")[0]["rid"], "abort_all": False}]


async def test_the_server_names_the_weights_of_each_id() -> None:
    answer = [
        sglang_event(ENTRIES[:1], 1),
        sglang_event(ENTRIES[:2], 2, version="1"),
        sglang_event(ENTRIES, 3, version="1", finish=STOP),
    ]
    async with serving(sglang(generate=[answer])) as server:
        engine = SglangEngine(server.url, policy_version="0")
        _, _, end = await sample(engine, asks())
        await engine.close()
    assert end.policy_version == "1"
    assert end.spans == (PolicySpan(version="0", start=0, end=1), PolicySpan(version="1", start=1, end=3))


async def test_new_weights_come_in_while_it_runs() -> None:
    async with serving(sglang()) as server:
        engine = SglangEngine(server.url, policy_version="0")
        await engine.update_weights(Path("/weights/1"), "1")
        await engine.close()
    assert server.asked == [
        ("/pause_generation", {"mode": "retract"}),
        ("/update_weights_from_disk", {
            "model_path": "/weights/1", "weight_version": "1", "flush_cache": True, "abort_all_requests": False,
        }),
        ("/continue_generation", {}),
    ]  # fmt: skip
    assert engine.policy_version == "1"


@pytest.mark.parametrize("said", [{"success": False, "message": "no such folder"}, (400, {"success": False})])
async def test_weights_that_were_not_taken_are_not_sampled_from(said: Any) -> None:
    async with serving(sglang(update=[said])) as server:
        engine = SglangEngine(server.url, policy_version="0")
        with pytest.raises(EngineRefused):
            await engine.update_weights(Path("/nowhere"), "1")
        with pytest.raises(EngineUnavailable, match="update them again"):
            await sample(engine, asks())
        await engine.close()
    assert "/continue_generation" not in server.paths
    assert engine.policy_version == "0"


async def test_a_server_that_was_started_anew_is_given_its_weights_again() -> None:
    server = sglang()
    async with serving(server):
        engine = SglangEngine(server.url)
        await engine.update_weights(Path("/weights/1"), "1")
    anew = sglang(info=[{"weight_version": "default"}, {"weight_version": "1"}])
    async with serving(anew, server.port):
        with pytest.raises(EngineUnavailable, match="given its weights again"):
            await sample(engine, asks())
        await engine.close()
    assert anew.paths.count("/update_weights_from_disk") == 1


async def test_a_grammar_is_sent() -> None:
    async with serving(sglang()) as server:
        engine = SglangEngine(server.url)
        await sample(engine, asks(grammar={"json": {"type": "array"}}))
        await engine.close()
    assert server.bodies("/generate")[0]["sampling_params"]["json_schema"] == '{"type": "array"}'
