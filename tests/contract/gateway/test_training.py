"""Sessions whose calls are to be trained on: without token ids there is nothing to train."""

import pytest
from openai import BadRequestError
from tests.contract.gateway.conftest import USER, ModelServer, client_of, whole

from orchard.gateway import Gateway, GatewayConfig, OpenAIEngine, ReplayEngine, ScriptEngine
from orchard.trajectories import Store


async def test_in_training_an_answer_without_ids_is_refused(store: Store, model_server: ModelServer) -> None:
    choice = {"token_ids": [5], "logprobs": {"content": [{"token": "ok", "logprob": -0.5}]}}
    told = whole("ok", choice=choice, prompt_token_ids=[1, 2])
    model_server.replies = [whole("ok"), whole("ok"), told]
    async with Gateway(store, {"text": OpenAIEngine(model_server.url)}) as gateway:
        trained, evaluated = await gateway.open_session(training=True), await gateway.open_session()
        async with client_of(trained) as client, client_of(evaluated) as other:
            with pytest.raises(BadRequestError, match=r"gave no token ids .* use an engine of tokens"):
                await client.chat.completions.create(model="m", messages=USER)
            await other.chat.completions.create(model="m", messages=USER)
            await client.chat.completions.create(model="m", messages=USER)
        again = await gateway.open_session(engine=ReplayEngine(store.session(evaluated.id)), training=True)
        async with client_of(again) as client:  # what is replayed is context
            await client.chat.completions.create(model="m", messages=USER)
    refused, exact = store.session(trained.id).calls
    assert (refused.status, refused.error_code, exact.sampled_ids) == ("aborted", "engine_refused", [5])
    assert [call.status for call in store.session(again.id).calls] == ["ok"]


async def test_a_session_says_for_itself_whether_it_is_for_training(store: Store) -> None:
    for usually in (False, True):
        async with Gateway(store, {"e": ScriptEngine([])}, GatewayConfig(training=usually)) as gateway:
            opened = {await gateway.open_session(training=given): given for given in (None, False, True)}
        for session, given in opened.items():
            (record,) = store.session(session.id).sessions
            assert record.training is (usually if given is None else given)
