"""An engine that is any OpenAI-compatible server: a provider, vLLM, SGLang, llama.cpp ….

Token ids and log-probabilities are recorded where the server gives them, as vLLM does for ``return_token_ids``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from orchard.gateway.engine import Assembly, Delta, EngineRequest, Final, as_delta, as_text
from orchard.gateway.engines.http import ModelServer, events, logprob
from orchard.gateway.errors import EngineRefused, EngineUnavailable
from orchard.trajectories import Usage
from orchard.trajectories.messages import Message

_TOKEN_PARAMS: dict[str, Any] = {"return_token_ids": True, "logprobs": True}


class OpenAIEngine:
    """Asks ``BASE_URL/chat/completions``.

    Args:
        base_url: up to and with ``/v1``.
        api_key: sent as bearer; never recorded.
        token_ids: ask for token ids and log-probabilities (vLLM).
        stream: ``True`` streams from the server even for whole answers; ``None`` as the harness does.
        read_seconds: longest silence of the server before it counts as away.
        policy_version: as recorded; set it anew when the server's weights change.
        extra: fields added to each request.
    """

    name = "openai"

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str = "",
        token_ids: bool = False,
        stream: bool | None = None,
        read_seconds: float = 900.0,
        policy_version: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.policy_version = policy_version
        self._server = ModelServer(base_url, answers="a chat completion", api_key=api_key, read_seconds=read_seconds)
        self._token_ids = token_ids
        self._extra = {**(_TOKEN_PARAMS if token_ids else {}), **(extra or {})}
        self._stream = stream

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
        """Yield the server's deltas and its answer.

        Raises:
            EngineRefused: it was to give token ids, and gives other numbers of them than of log-probabilities.
            EngineUnavailable: it is away, or broke off.
        """
        stream = request.stream if self._stream is None else self._stream
        version = self.policy_version
        sampling = {**request.params, **self._extra}
        body = {"model": request.model, "messages": list(request.messages), **sampling, "stream": stream}
        if request.tools:
            body["tools"] = list(request.tools)
        if stream:
            body["stream_options"] = {"include_usage": True}
        reading = _Reading(request.model, sampling, version)
        async with self._server.ask("/chat/completions", body) as response:
            if response.content_type != "text/event-stream":
                answer = reading.take_whole(await response.json())
                reading.final()  # raises, while nothing has gone out yet, if it is none
                yield Delta(as_delta(answer))
            else:
                async for event in events(response):
                    for delta in reading.take_chunk(event):
                        yield delta
            final = reading.final()
        if final.sampled_ids is None and self._token_ids and reading.told_ids:
            raise EngineRefused(
                "the server gives not one log-probability for each token id, so the answer makes no sample; for text "
                "alone leave token_ids out"
            )
        yield final

    async def close(self) -> None:
        """Close the connections."""
        await self._server.close()


class _Reading:
    """What has been read of one answer."""

    def __init__(self, model: str, sampling: dict[str, Any], policy_version: str | None) -> None:
        self._assembly, self._whole = Assembly(), None
        self._model, self._sampling, self._version = model, sampling, policy_version
        self._finish: str | None = None
        self._stopped_by: Any = None
        self._usage: Message | None = None
        self._prompt_ids: list[int] | None = None
        self._sampled_ids: list[int] | None = None
        self._content_logprobs: list[Message] = []
        self._saw_logprobs = False

    def take_whole(self, facts: Message) -> Message:
        """Take a whole answer and return its message."""
        choice = _first_choice(facts) or {}
        message = cast("Message", choice.get("message") or {})
        self._take(facts, choice)
        self._whole: Message | None = as_text({**message, "role": "assistant"})
        return self._whole

    def take_chunk(self, facts: Message) -> list[Delta]:
        """Take one event of a stream and return what it adds to the message."""
        choice = _first_choice(facts)
        self._take(facts, choice or {})
        if choice is None:
            return []
        delta = {key: value for key, value in cast("Message", choice.get("delta") or {}).items() if value is not None}
        if not delta:
            return []
        self._assembly.add(delta)
        return [Delta(delta, choice.get("logprobs"))]

    def _take(self, facts: Message, choice: Message) -> None:
        self._usage = facts.get("usage") or self._usage
        self._finish = choice.get("finish_reason") or self._finish
        told = choice.get("stop_reason") or choice.get("matched_stop")  # vLLM, SGLang: a string, or an id
        self._stopped_by = told or self._stopped_by
        self._prompt_ids = facts.get("prompt_token_ids") or choice.get("prompt_token_ids") or self._prompt_ids
        if choice.get("token_ids") is not None:
            self._sampled_ids = (self._sampled_ids or []) + cast("list[int]", choice["token_ids"])
        logprobs = cast("Message", choice.get("logprobs") or {}).get("content")
        if logprobs is not None:
            self._saw_logprobs = True
            self._content_logprobs += cast("list[Message]", logprobs)

    @property
    def told_ids(self) -> bool:
        """Whether the server told ids of the answer."""
        return self._sampled_ids is not None

    def final(self) -> Final:
        """Return the answer, without ids where not each has its log-probability.

        Raises:
            EngineUnavailable: it did not come to its end.
        """
        if self._finish is None:
            raise EngineUnavailable("the model server's answer ended before its finish_reason")
        ids, prompt_ids = self._sampled_ids, self._prompt_ids
        if ids is not None and len(ids) != len(self._content_logprobs):  # nobody could tell which belong together
            ids = prompt_ids = None
        logprobs = [logprob(entry.get("logprob")) for entry in self._content_logprobs]
        return Final(
            message=self._whole or self._assembly.message, finish_reason=self._finish, usage=_usage(self._usage),
            model=self._model, sampling=self._sampling, policy_version=self._version,
            prompt_ids=prompt_ids, sampled_ids=ids,
            stop_string=self._stopped_by if isinstance(self._stopped_by, str) and self._finish == "stop" else None,
            logprobs=logprobs if self._saw_logprobs else None,
            raw_logprobs={"content": self._content_logprobs} if self._saw_logprobs else None,
        )  # fmt: skip


def _first_choice(facts: Message) -> Message | None:
    choices = cast("list[Message]", facts.get("choices") or [])
    return choices[0] if choices else None


def _usage(facts: Message | None) -> Usage:
    if facts is None:
        return Usage(estimated=True)
    details = cast("Message", facts.get("prompt_tokens_details") or {})
    return Usage(
        prompt_tokens=int(facts.get("prompt_tokens") or 0),
        completion_tokens=int(facts.get("completion_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
    )
