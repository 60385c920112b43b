"""An engine that is any OpenAI-compatible server: a provider, vLLM, SGLang, llama.cpp ….

Token ids and log-probabilities are recorded where the server gives them, as vLLM does for ``return_token_ids``.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, cast

import aiohttp

from orchard.gateway.engine import Assembly, Delta, EngineRequest, Final, as_delta, as_text
from orchard.gateway.errors import EngineRefused, EngineUnavailable
from orchard.trajectories import Usage
from orchard.trajectories.messages import Message

_TOKEN_PARAMS: dict[str, Any] = {"return_token_ids": True, "logprobs": True}
_LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say; the same value as vLLM's."""
_LINE_BYTES = 64 << 20


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
        self._url = base_url.rstrip("/") + "/chat/completions"
        key = api_key.strip()  # files of secrets end in a new line
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._extra = {**(_TOKEN_PARAMS if token_ids else {}), **(extra or {})}
        self._stream = stream
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=read_seconds)
        self._http: aiohttp.ClientSession | None = None

    async def complete(self, request: EngineRequest) -> AsyncGenerator[Delta | Final]:
        """Yield the server's deltas and its answer."""
        stream = request.stream if self._stream is None else self._stream
        version = self.policy_version
        sampling = {**request.params, **self._extra}
        body = {"model": request.model, "messages": list(request.messages), **sampling, "stream": stream}
        if request.tools:
            body["tools"] = list(request.tools)
        if stream:
            body["stream_options"] = {"include_usage": True}
        reading = _Reading(request.model, sampling, version)
        try:
            async with self._client().post(self._url, json=body) as response:
                if response.status != 200:
                    raise _failure(response.status, response.headers.get("Retry-After"), await response.read())
                if response.content_type != "text/event-stream":
                    yield Delta(as_delta(reading.take_whole(await response.json())))
                else:
                    async for event in _events(response.content):
                        for delta in reading.take_chunk(event):
                            yield delta
            final = reading.final()
        except EngineUnavailable:
            raise
        except (AttributeError, KeyError, TypeError) as error:  # of JSON in another shape than we read it in
            raise EngineUnavailable(f"what {self._url} answers is no chat completion: {error!r}") from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            raise EngineUnavailable(f"the model server at {self._url} broke off: {error!r}") from error
        yield final

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(limit=0)
            self._http = aiohttp.ClientSession(
                headers=self._headers,
                timeout=self._timeout,
                connector=connector,
                read_bufsize=1 << 20,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._http


class _Reading:
    """What has been read of one answer."""

    def __init__(self, model: str, sampling: dict[str, Any], policy_version: str | None) -> None:
        self._assembly, self._whole = Assembly(), None
        self._model, self._sampling, self._version = model, sampling, policy_version
        self._finish: str | None = None
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
        if facts.get("error"):
            raise _failure_event(facts)
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
        self._prompt_ids = facts.get("prompt_token_ids") or choice.get("prompt_token_ids") or self._prompt_ids
        if choice.get("token_ids") is not None:
            self._sampled_ids = (self._sampled_ids or []) + cast("list[int]", choice["token_ids"])
        logprobs = cast("Message", choice.get("logprobs") or {}).get("content")
        if logprobs is not None:
            self._saw_logprobs = True
            self._content_logprobs += cast("list[Message]", logprobs)

    def final(self) -> Final:
        """Return the answer.

        Raises:
            EngineUnavailable: it did not come to its end.
        """
        if self._finish is None:
            raise EngineUnavailable("the model server's answer ended before its finish_reason")
        logprobs = [_number(entry.get("logprob")) for entry in self._content_logprobs]
        return Final(
            message=self._whole or self._assembly.message, finish_reason=self._finish, usage=_usage(self._usage),
            model=self._model, sampling=self._sampling, policy_version=self._version,
            prompt_ids=self._prompt_ids, sampled_ids=self._sampled_ids,
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


def _number(value: Any) -> float:
    number = float(value) if value is not None else _LOWEST_LOGPROB
    return number if math.isfinite(number) else _LOWEST_LOGPROB


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[Message]:
    """Yield the JSON of each server-sent event; lines may be of any length up to a bound."""
    rest = b""
    async for block in content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > _LINE_BYTES:
            raise EngineUnavailable("the model server sent an event without end")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield json.loads(data)


def _failure(status: int, retry_after: str | None, body: bytes) -> EngineRefused | EngineUnavailable:
    text = body[:2000].decode(errors="replace")
    message = f"the model server answered {status}: {text}"
    if status >= 500 or status in (408, 425, 429):
        return EngineUnavailable(message, retry_after=_seconds(retry_after))
    try:
        facts = json.loads(body)
    except ValueError:
        facts = None
    return EngineRefused(message, http_status=status, body=cast("Message", facts) if isinstance(facts, dict) else None)


def _failure_event(facts: Message) -> EngineRefused | EngineUnavailable:
    """A server that fails in mid-stream says so in an event; some put an HTTP status into its code."""
    error = facts["error"]
    code = cast("Message", error).get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500 and code not in (408, 425, 429):
        return EngineRefused(f"the model server refused: {error}", http_status=code, body=facts)
    return EngineUnavailable(f"the model server failed: {error}")


def _seconds(retry_after: str | None) -> float | None:
    """``Retry-After`` may also be a date, which is left aside: our own pauses do."""
    return float(retry_after) if retry_after and retry_after.isdigit() else None
