"""``orchard gateway`` as a program: whoever is pointed at it by its one line is recorded; a signal ends it clean."""

import asyncio
import json
import os
import signal
import termios
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.contract.gateway.token_server import TokenServer, serving, sglang, vllm, vllm_event
from tests.support.cli import orchard
from tests.support.gateway_program import ASK, ask, gateway
from tests.support.model_server import ModelServer, say

from orchard.rollout.toy_model import small_tokenizer
from orchard.trajectories import Store

pytestmark = pytest.mark.slow


def test_one_line_points_an_agent_at_it_and_a_signal_ends_it_clean(tmp_path: Path) -> None:
    with gateway(tmp_path, "--label", "harness=mine") as running:
        assert ask(running.url, running.key)["tool_calls"]
        assert ask(running.url, running.key)["content"] == "I am done."
        with pytest.raises(HTTPError, match="401"):
            ask(running.url.rpartition("/")[0] + "/se-guessed", "any")
        assert running.end() == 0
    assert "call" not in running.errors.splitlines()[0]
    assert running.errors.splitlines()[-1].startswith("recorded 2 calls in 1 session")
    assert sum("tool_calls" in line or "stop" in line for line in running.errors.splitlines()) == 2
    with Store(tmp_path / "store") as store:
        [session] = store.aborted()
        assert [call.status for call in store.session(session.session).calls] == ["ok", "ok"]
        assert session.labels == {"harness": "mine"}


def test_on_a_terminal_it_draws_a_table_of_the_newest_calls(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (30, 120))
    with gateway(tmp_path, "--session", "mine", stderr=theirs) as running:
        ask(running.url, "any")
        assert running.end() == 0
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of a terminal that nobody else has open
        while piece := os.read(ours, 4096):
            shown += piece
    os.close(ours)
    assert b"SESSION" in shown
    assert b"tool_calls" in shown
    assert b"recorded 1 call in 1 session" in shown


def test_a_session_by_name_takes_any_key_and_has_its_budget(tmp_path: Path) -> None:
    with gateway(tmp_path, "--session", "mine", "--turns", "1") as running:
        assert running.url.endswith("/s/mine")
        assert running.key == "any"
        ask(running.url, "whatever")
        with pytest.raises(HTTPError) as refused:
            ask(running.url, "whatever")
        assert json.load(refused.value)["error"]["code"] == "budget_exceeded"
        assert running.end(signal.SIGTERM) == 0
    assert "budget_exceeded" in running.errors


def test_a_session_may_cost_so_much(tmp_path: Path) -> None:
    with gateway(tmp_path, "--session", "mine", "--cost", "0.000001", "--price", "1,2") as running:
        ask(running.url, "any")
        with pytest.raises(HTTPError, match="400"):
            ask(running.url, "any")
        running.end()
    assert "budget_exceeded" in running.errors


async def test_calls_to_train_on_are_drawn_from_the_models_own_distribution_and_have_ids(tmp_path: Path) -> None:
    exact: Any = say("Hello.", finish="stop")
    exact["choices"][0] |= {"token_ids": [5], "logprobs": {"content": [{"token": "Hello.", "logprob": -0.5}]}}
    exact["prompt_token_ids"] = [1, 2]
    async with ModelServer([exact, say("Hello.", finish="stop")]) as server:
        options = ("--engine", "openai", "--base-url", f"{server.url}/v1", "--session", "mine", "--training")
        with gateway(tmp_path, *options) as running:
            await asyncio.to_thread(ask, running.url, "any", {**ASK, "top_p": 0.5, "temperature": 0.7})
            with pytest.raises(HTTPError, match="400"):
                await asyncio.to_thread(ask, running.url, "any", ASK)
            running.end()
        assert server.bodies[0]["return_token_ids"] is True
    with Store(tmp_path / "store") as store:
        call, refused = store.session(store.aborted()[0].session).calls
    assert (call.overridden, call.sampling["temperature"], call.sampled_ids) == ({"top_p": 0.5}, 0.7, [5])
    assert (refused.status, refused.error_code) == ("aborted", "engine_refused")


def test_sessions_are_opened_at_their_first_use_one_for_each_name_or_key(tmp_path: Path) -> None:
    with gateway(tmp_path, "--open-sessions") as running:
        root = running.url.removesuffix("/s/NAME")
        asking = [
            threading.Thread(target=ask, args=(f"{root}/s/one", "any")),
            threading.Thread(target=ask, args=(f"{root}/s/one", "any")),
            threading.Thread(target=ask, args=(f"{root}/s/two", "any")),
            threading.Thread(target=ask, args=(root, "key-of-a-third")),
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(120)
        assert running.end() == 0
    with Store(tmp_path / "store") as store:
        found = {row.labels.get("name"): len(store.session(row.session).calls) for row in store.aborted()}
    assert found == {"one": 2, "two": 1, None: 1}


def test_a_name_at_its_first_use_is_not_taken_by_who_came_with_the_printed_key(tmp_path: Path) -> None:
    with gateway(tmp_path, "--open-sessions") as running:
        root, key = running.url.removesuffix("/s/NAME"), running.key
        assert key == "any"
        for path in ("/s/x/favicon.ico", "/s/x", "/favicon.ico", "/s/a%20b/v1/chat/completions"):
            with pytest.raises(HTTPError, match=r"401|404"):
                urlopen(Request(root + path, headers={"Authorization": f"Bearer {key}"}), timeout=30)
        ask(root, key)  # a stray request, without a name
        ask(root, "another")
        for name in ("Task_1", "v1.2-x", "lower"):
            ask(f"{root}/s/{name}", key)
            ask(f"{root}/s/{name}", "another")
        with urlopen(Request(f"{root}/s/Models/v1/models"), timeout=30) as listed:
            assert json.load(listed)["data"]
        assert running.end() == 0
    with Store(tmp_path / "store") as store:
        found = [(row.labels.get("name"), len(store.session(row.session).calls)) for row in store.aborted()]
    assert found == [(None, 1), (None, 1), ("Task_1", 2), ("v1.2-x", 2), ("lower", 2), ("Models", 0)]


def test_a_recording_answers_again(tmp_path: Path) -> None:
    with gateway(tmp_path) as first:
        message = ask(first.url, first.key)
        assert first.end() == 0
    with Store(tmp_path / "store") as store:
        [row] = store.aborted()
    replay = ["--replay", row.session, "--store", str(tmp_path / "store"), "--session", "again"]
    with gateway(tmp_path, *replay) as second:
        assert ask(second.url, "any") == message
        with pytest.raises(HTTPError, match="400"):
            ask(second.url, "any")
        second.end()


@pytest.mark.parametrize("words", [(), ("--exact",)])
def test_a_replay_takes_another_day_unless_it_is_to_be_exact(tmp_path: Path, words: tuple[str, ...]) -> None:
    def on(day: str) -> dict[str, Any]:
        return {"model": "m", "messages": [{"role": "user", "content": f"Today is {day}. Go on."}]}

    with gateway(tmp_path) as first:
        message = ask(first.url, first.key, on("2026-01-02"))
        assert first.end() == 0
    with Store(tmp_path / "store") as store:
        [row] = store.aborted()
    replay = ["--replay", row.session, "--store", str(tmp_path / "store"), "--session", "again"]
    with gateway(tmp_path, *replay, *words) as second:
        if words:
            with pytest.raises(HTTPError, match="400"):
                ask(second.url, "any", on("2026-03-04"))
            assert ask(second.url, "any", on("2026-01-02")) == message
        else:
            assert ask(second.url, "any", on("2026-03-04")) == message
        assert second.end() == 0


VLLM_NEWS = [vllm_event([5, 6], [-0.25, -0.75]), vllm_event([2], [-0.5], finish_reason="stop")]


@pytest.mark.parametrize(
    ("engine", "server"),
    [("vllm", vllm(completions=[VLLM_NEWS])), ("sglang", sglang())],
    ids=["vllm", "sglang"],
)
@pytest.mark.parametrize("replicas", [1, 2])
async def test_servers_of_tokens_are_asked_in_ids(
    tmp_path: Path, engine: str, server: TokenServer, replicas: int
) -> None:
    small_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    server.replies["/v1/models"] = [{"data": [{"id": "smol", "max_model_len": 4096}]}]
    async with serving(server):
        words = ["--engine", engine, *["--base-url", server.url] * replicas, "--model", "smol"]
        with gateway(tmp_path, *words, "--tokenizer", str(tmp_path), "--training") as running:
            await asyncio.to_thread(ask, running.url, running.key)
            assert running.end() == 0
    with Store(tmp_path / "store") as store:
        trajectory = store.session(store.aborted()[0].session)
    (call,) = trajectory.calls
    assert (call.engine, call.model, call.mode, call.sampled_ids) == (engine, "smol", "splice", [5, 6, 2])
    sent = server.asked[-1][1]
    assert sent.get("prompt", sent.get("input_ids")) == trajectory.prompt_ids(call.id)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "what answers"),
        (["--script", "x.json", "--engine", "openai"], "what answers"),
        (["--engine", "nope"], "engine must be one of"),
        (["--engine", "openai"], "needs --base-url"),
        (["--engine", "openai", "--base-url", "nowhere"], "no URL"),
        (["--engine", "transformers", "--model", "/nope"], "--model FOLDER"),
        (["--engine", "vllm", "--base-url", "http://127.0.0.1:1"], "--tokenizer FOLDER"),
        (["--engine", "openai", "--base-url", "http://127.0.0.1:1", "--device", "cuda"], "--device is for"),
        (["--script", "x.json", "--dtype", "bfloat16"], "--dtype is for"),
        (["--script", "x.json", "--training"], "--training needs a model"),
        (["--host", "0.0.0.0", "--session", "mine"], "loopback"),
        (["--script", "x.json", "--mode", "other"], "splice or template"),
        (["--script", "x.json", "--calls", "2"], "--replay ID"),
        (["--script", "x.json", "--store", "old"], "--replay ID"),
        (["--script", "x.json", "--exact"], "--exact is for a replay"),
        (["--script", "x.json", "--price", "1"], "PROMPT,COMPLETION"),
        (["--script", "x.json", "--price", "nan,1"], "PROMPT,COMPLETION"),
        (["--script", "x.json", "--cost", "1"], "prices"),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_to_say_instead(
    tmp_path: Path, words: list[str], named: str
) -> None:
    done = orchard("gateway", "--record", str(tmp_path / "store"), *words, env={"ORCHARD_HOME": str(tmp_path)})
    assert done.returncode == 2, done.stderr.decode()
    assert named in done.stderr.decode()
    assert not (tmp_path / "store").exists()
