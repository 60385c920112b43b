"""The vLLM engine against answers as vLLM gives them (the lane of ``tests/vllm`` runs the real server)."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.contract.gateway.token_server import (
    MODELS,
    PROMPT,
    VLLM_ANSWER,
    TokenServer,
    asks,
    sample,
    serving,
    vllm,
    vllm_event,
    vllm_probe,
)
from tests.support.waiting import until

from orchard.gateway import ContextOverflow, Ended, EngineRefused, EngineUnavailable
from orchard.gateway.engines.vllm import VllmEngine
from orchard.trajectories import PolicySpan


async def test_ids_go_in_and_ids_come_out() -> None:
    probes = [vllm_probe(-18.0), vllm_probe(-9.0)]  # with a bias, whether it is in the log-probabilities
    async with serving(vllm(completions=[*probes, VLLM_ANSWER])) as server:
        engine = VllmEngine(server.url + "/v1", policy_version="0")
        ids, logprobs, end = await sample(engine, asks(max_tokens=3, seed=7, stop_ids=(2,), logit_bias={9: -100.0}))
        await engine.close()
    assert (ids, logprobs) == ([5, 6, 2], [-0.25, -9999.0, -0.5])
    assert (end.finish_reason, end.policy_version, end.spans, end.cached_tokens) == ("stop", "0", (), 2)
    *_, body = server.bodies("/v1/completions")
    assert body == {
        "model": "smol", "prompt": list(PROMPT), "return_token_ids": True, "logprobs": 0, "max_tokens": 3,
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "repetition_penalty": 1.0, "stop_token_ids": [2], "seed": 7, "logit_bias": {"9": -100.0}, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert engine.context == 16


async def test_an_answer_fits_into_the_context() -> None:
    async with serving(vllm()) as server:
        engine = VllmEngine(server.url)
        await sample(engine, asks())
        await sample(engine, asks(max_tokens=100))
        with pytest.raises(ContextOverflow, match="16 tokens") as caught:
            await sample(engine, asks(ids=range(16)))
        await engine.close()
    assert [body["max_tokens"] for body in server.bodies("/v1/completions")] == [12, 12]
    assert (caught.value.code, caught.value.http_status) == ("context_length_exceeded", 400)


NO_IDS = [vllm_event([5], [-0.25], token_ids=None)]
CHANGED = [vllm_event([5], [-0.25], prompt_token_ids=[1, 2])]
SHORT = [vllm_event([5, 6], [-0.25])]


@pytest.mark.parametrize("answer", [NO_IDS, CHANGED, SHORT], ids=["no ids", "another prompt", "too few logprobs"])
async def test_a_server_that_is_not_token_exact_is_refused(answer: list[Any]) -> None:
    async with serving(vllm(completions=[answer])) as server:
        engine = VllmEngine(server.url)
        with pytest.raises(EngineRefused):
            await sample(engine, asks())
        await engine.close()


async def test_log_probabilities_from_before_the_temperature_are_refused() -> None:
    raw, processed = [vllm_probe(-18.0, -20.0), vllm_probe(-18.0)], [vllm_probe(-18.0), vllm_probe(-9.0)]
    async with serving(vllm(completions=[VLLM_ANSWER, *raw, *processed, VLLM_ANSWER])) as server:
        engine = VllmEngine(server.url)
        await sample(engine, asks())  # at temperature 1 it makes no difference
        with pytest.raises(EngineRefused, match="--logprobs-mode processed_logprobs"):
            await sample(engine, asks(temperature=0.7))
        for _ in range(2):  # the second does not look again
            assert (await sample(engine, asks(temperature=0.7)))[0] == [5, 6, 2]
        await engine.close()
    assert [body["temperature"] for body in server.bodies("/v1/completions")] == [1.0, 1.0, 2.0, 1.0, 2.0, 0.7, 0.7]


@pytest.mark.parametrize(
    "bent",
    [{"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.1}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0},
     {"repetition_penalty": 1.5}, {"logit_bias": {5: 1.0}}, {"temperature": 0.0, "top_k": 2}],
    ids=str,
)  # fmt: skip
async def test_log_probabilities_from_before_anything_else_are_refused(bent: dict[str, Any]) -> None:
    raw = [vllm_probe(-18.0, -20.0), vllm_probe(-18.0)]
    async with serving(vllm(completions=[VLLM_ANSWER, *raw])) as server:
        engine = VllmEngine(server.url)
        await sample(engine, asks(seed=3, max_tokens=2, stop_ids=(2,)))
        with pytest.raises(EngineRefused, match="--logprobs-mode processed_logprobs"):
            await sample(engine, asks(**bent))
        await engine.close()


@pytest.mark.parametrize(
    "models", [{"data": []}, {"data": [{"id": "gpt"}]}, {"data": [{"id": "o", "max_model_len": 9}]}]
)
async def test_another_server_or_model_is_refused(models: Any) -> None:
    server = vllm()
    server.replies["/v1/models"] = [models]
    async with serving(server):
        engine = VllmEngine(server.url, model="smol")
        with pytest.raises(EngineRefused, match="smol"):
            await sample(engine, asks())
        await engine.close()


BROKEN: dict[str, Any] = {
    "503": (503, {"error": "starting"}),
    "a break": [VLLM_ANSWER[0], None],
    "an end too soon": VLLM_ANSWER[:1],
    "an error event": [VLLM_ANSWER[0], {"error": {"message": "EngineCore died", "code": 500}}],
    "another shape": ["hi"],
}


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_server_that_fails_may_be_asked_again(fault: str) -> None:
    async with serving(vllm(completions=[BROKEN[fault], VLLM_ANSWER])) as server:
        engine = VllmEngine(server.url)
        with pytest.raises(EngineUnavailable):
            await sample(engine, asks())
        server.replies["/v1/models"] = [{"data": [MODELS["data"][0] | {"max_model_len": 8}]}]
        assert (await sample(engine, asks()))[0] == [5, 6, 2]
        assert engine.context == 8  # it looked who is there now
        await engine.close()


async def test_a_server_that_is_down_may_be_asked_again() -> None:
    engine = VllmEngine("http://127.0.0.1:9")
    with pytest.raises(EngineUnavailable):
        await sample(engine, asks())
    with pytest.raises(EngineUnavailable):
        await engine.health()
    await engine.close()


async def test_a_refusal_is_passed_on() -> None:
    body = {"error": {"message": "bad", "type": "BadRequestError", "code": 400}}
    async with serving(vllm(completions=[(400, body)])) as server:
        engine = VllmEngine(server.url)
        with pytest.raises(EngineRefused) as caught:
            await sample(engine, asks())
        await engine.close()
    assert (caught.value.http_status, caught.value.body) == (400, body)


async def test_a_server_is_looked_at_once() -> None:
    probes = [vllm_probe(-18.0), vllm_probe(-9.0)]
    async with serving(vllm(completions=[*probes, VLLM_ANSWER])) as server:
        engine = VllmEngine(server.url)
        await asyncio.gather(*(sample(engine, asks(f"{n}", temperature=0.7)) for n in range(16)))
        await engine.close()
    assert (server.paths.count("/v1/models"), server.paths.count("/v1/completions")) == (1, 18)


@pytest.mark.parametrize("begun", [False, True])
async def test_abort_ends_the_calls_of_a_session(begun: bool) -> None:
    server = vllm()
    server.gate = asyncio.Event()
    async with serving(server):
        engine, first = VllmEngine(server.url), list[int]()
        running = asyncio.create_task(sample(engine, asks("ours"), first))
        await until(lambda: bool(first if begun else server.bodies("/v1/completions")))
        await engine.abort("another")
        assert not running.done()
        await engine.abort("ours")
        ids, _, end = await running
        assert end.finish_reason == "abort"
        assert ids == [5] or not begun
        await asyncio.wait_for(server.left.wait(), 60)  # so it stops sampling
        await engine.close()


async def test_new_weights_come_in_while_it_runs() -> None:
    server = vllm()
    server.gate = asyncio.Event()
    async with serving(server):
        engine, first = VllmEngine(server.url, policy_version="0"), list[int]()
        running = asyncio.create_task(sample(engine, asks(), first))
        await until(lambda: bool(first))
        await engine.update_weights(Path("/weights/1"), "1")
        server.gate.set()
        _, _, end = await running
        await engine.close()
    update = ["/pause?mode=keep", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    assert server.paths[-5:] == update
    (load,) = server.bodies("/collective_rpc")
    assert load == {"method": "reload_weights", "kwargs": {"weights_path": "/weights/1"}}
    assert (engine.policy_version, end.policy_version) == ("1", "1")
    assert end.spans == (PolicySpan(version="0", start=0, end=1), PolicySpan(version="1", start=1, end=3))


async def test_nothing_is_sampled_from_weights_that_nobody_can_name() -> None:
    async with serving(vllm(rpc=[(500, {"detail": "no such folder"}), {"results": [None]}])) as server:
        engine = VllmEngine(server.url, policy_version="0")
        with pytest.raises(EngineUnavailable):
            await engine.update_weights(Path("/nowhere"), "1")
        assert "/resume" not in server.paths
        assert engine.policy_version == "0"
        with pytest.raises(EngineUnavailable, match="update them again"):
            await sample(engine, asks())
        await engine.update_weights(Path("/weights/1"), "1")
        assert (await sample(engine, asks()))[2].policy_version == "1"
        await engine.close()


@pytest.mark.parametrize("path", ["/pause", "/resume"])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_nothing_waits_for_a_server_that_may_have_been_left_held(path: str, cancelled: bool) -> None:
    async with serving(vllm(info=[{}, (404, {}), {"weight_version": "2"}])) as server:
        engine, fine = VllmEngine(server.url, policy_version="0"), server.replies[path]
        if cancelled:
            server.silent = path
            updating = asyncio.create_task(engine.update_weights(Path("/weights/1"), "1"))
            await server.heard.wait()
            updating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await updating
        else:
            server.replies[path] = [(500, {"detail": "no"})]
            with pytest.raises(EngineUnavailable):
                await engine.update_weights(Path("/weights/1"), "1")
        with pytest.raises(EngineUnavailable, match="update them again"):
            await sample(engine, asks())
        server.silent, server.replies[path] = "", fine
        with pytest.raises(EngineRefused):  # which leaves it as it was: held
            await engine.update_weights(Path("/weights/2"), "2")
        with pytest.raises(EngineUnavailable, match="update them again"):
            await sample(engine, asks())
        await engine.update_weights(Path("/weights/2"), "2")
        assert (await sample(engine, asks()))[2].policy_version == "2"
        await engine.close()


async def test_a_server_without_its_development_mode_takes_no_weights_and_goes_on() -> None:
    async with serving(vllm(info=[(404, {"detail": "Not Found"})])) as server:
        engine = VllmEngine(server.url, policy_version="0")
        with pytest.raises(EngineRefused, match="VLLM_SERVER_DEV_MODE=1"):
            await engine.update_weights(Path("/weights/1"), "1")
        assert (await sample(engine, asks()))[2].policy_version == "0"
        await engine.close()
    assert not any(path.startswith("/pause") for path in server.paths)


async def test_an_adapter_has_a_new_name_each_time_and_runs_to_its_end() -> None:
    server = vllm()
    server.gate = asyncio.Event()
    async with serving(server):
        engine = VllmEngine(server.url, lora=True, policy_version="0")
        running = asyncio.create_task(sample(engine, asks()))
        while not server.bodies("/v1/completions"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for version in ("1", "1"):
            await engine.update_weights(Path("/adapters/1"), version)
        server.gate.set()
        _, _, old = await running
        _, _, new = await sample(engine, asks())
        await engine.close()
    first, second = server.bodies("/v1/load_lora_adapter")
    assert (first["lora_path"], second["lora_path"]) == ("/adapters/1", "/adapters/1")
    assert len({"smol", first["lora_name"], second["lora_name"]}) == 3
    assert [body["model"] for body in server.bodies("/v1/completions")] == ["smol", second["lora_name"]]
    assert (old.policy_version, old.spans, new.policy_version) == ("0", (), "1")
    assert "/pause?mode=keep" not in server.paths


def unloaded(server: TokenServer) -> list[int]:
    """Which of the adapters that it was given it was told to forget, in that order."""
    given = [body["lora_name"] for body in server.bodies("/v1/load_lora_adapter")]
    return [given.index(body["lora_name"]) for body in server.bodies("/v1/unload_lora_adapter")]


async def test_an_adapter_goes_with_the_last_answer_that_needs_it() -> None:
    server = vllm()
    server.gate = asyncio.Event()
    async with serving(server):
        engine = VllmEngine(server.url, lora=True)
        await engine.update_weights(Path("/adapters/0"), "0")
        async with aclosing(engine.generate(asks())) as first, aclosing(engine.generate(asks("other"))) as second:
            await anext(first)
            await anext(second)
            for version in ("1", "2"):
                await engine.update_weights(Path("/adapters", version), version)
            await until(lambda: unloaded(server) == [1])  # which nobody was answered by
            await second.aclose()  # its reader is gone
            assert unloaded(server) == [1]
            server.gate.set()
            assert [part async for part in first][-1] == Ended("stop", "0", cached_tokens=2)
        await until(lambda: unloaded(server) == [1, 0])
        await sample(engine, asks())
        await engine.close()
    assert unloaded(server) == [1, 0]


async def test_an_adapter_that_could_not_be_unloaded_is_with_the_next_answer() -> None:
    gone = (404, {"error": {"message": "The lora adapter cannot be found.", "type": "NotFoundError", "code": 404}})
    async with serving(vllm(unload=[(503, {}), gone])) as server:
        engine = VllmEngine(server.url, lora=True)
        for version in ("0", "1"):
            await engine.update_weights(Path("/adapters", version), version)

        async def told_again() -> bool:
            await sample(engine, asks())
            return unloaded(server) == [0, 0]

        await until(told_again)
        await engine.close()
    assert unloaded(server) == [0, 0]


async def test_routed_experts_come_with_whole_answers() -> None:
    whole = vllm_event([5, 2], [-0.25, -0.5], finish_reason="stop", routed_experts="k05VTVBZ")
    async with serving(vllm(completions=[whole])) as server:
        engine = VllmEngine(server.url, routed_experts=True)
        ids, _, end = await sample(engine, asks())
        await engine.update_weights(Path("/weights/1"), "1")
        await engine.close()
    assert (ids, end.routed_experts) == ([5, 2], "k05VTVBZ")
    assert server.bodies("/v1/completions")[0]["stream"] is False
    assert "/pause?mode=wait" in server.paths  # an answer given whole has one version


async def test_a_grammar_is_sent() -> None:
    schema = {"type": "object"}
    async with serving(vllm()) as server:
        engine = VllmEngine(server.url)
        await sample(engine, asks(grammar={"json": schema}))
        await engine.close()
    assert server.bodies("/v1/completions")[0]["structured_outputs"] == {"json": schema}


@pytest.mark.parametrize("lora", [False, True])
async def test_a_server_that_was_started_anew_is_given_its_weights_again(lora: bool) -> None:
    server = vllm()
    async with serving(server):
        engine = VllmEngine(server.url, lora=lora)
        await engine.update_weights(Path("/weights/1"), "1")
        for _ in range(3):
            await sample(engine, asks())
    anew = vllm(info=[{"weight_version": "default"}, {"weight_version": "1"}])
    load = "/v1/load_lora_adapter" if lora else "/collective_rpc"
    async with serving(anew, server.port):
        with pytest.raises(EngineUnavailable, match="given its weights again"):
            await sample(engine, asks())  # neither a failure nor the pause told of it
        assert (await sample(engine, asks()))[2].policy_version == "1"
        await engine.close()
    assert (server.paths.count(load), anew.paths.count(load)) == (1, 1)


async def test_an_adapter_that_the_server_does_not_know_any_more_is_given_again() -> None:
    server = vllm()
    async with serving(server):
        engine = VllmEngine(server.url, lora=True)
        await engine.update_weights(Path("/adapters/1"), "1")
    unknown = (404, {"error": {"message": "The model does not exist.", "code": 404}})
    async with serving(vllm(completions=[unknown, VLLM_ANSWER]), server.port) as anew:
        with pytest.raises(EngineUnavailable, match="given its weights again"):
            await sample(engine, asks())
        assert (await sample(engine, asks()))[0] == [5, 6, 2]
        await engine.close()
    assert len(anew.bodies("/v1/load_lora_adapter")) == 1
