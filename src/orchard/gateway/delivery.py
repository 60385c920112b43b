"""Writing an exchange to a connection: a whole answer after it is durable, or a stream whose end waits for that.

An answer counts as delivered once the kernel has taken its last byte.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass

from aiohttp import web

from orchard.core.errors import OrchardError
from orchard.gateway.dialects.base import Dialect, EventStream, ModelRequest
from orchard.gateway.engine import Delta, Final, as_delta
from orchard.gateway.errors import http_status
from orchard.gateway.exchange import Exchange

_RETRY_AFTER = "2"
"""Seconds; sent with each error that a later try may be spared."""


async def send_whole(
    request: web.Request, exchange: Exchange, dialect: Dialect, asked: ModelRequest
) -> web.StreamResponse:
    """Wait for the answer or the error, and write it."""
    exchange.attach()
    delivered = False
    try:
        while not exchange.done:
            await exchange.pulse.wait()
        if exchange.final is None:
            return error_response(_error(exchange), dialect)
        body = dialect.answer(asked, exchange.response_id, exchange.model, exchange.final)
        response = web.Response(body=body, content_type="application/json")
        _unbuffered(request)
        await response.prepare(request)
        await response.write_eof()
        await request.writer.drain()
        delivered = _open(request)
        return response
    finally:
        exchange.detach(delivered=delivered)


@dataclass(frozen=True)
class Silence:
    """What a stream does while the engine says nothing; seconds."""

    keep_alive: float
    """After so much silence a sign of life is sent."""
    grace: float
    """To wait for a first sign of the engine before the headers, so that a refusal has its status."""


async def send_stream(
    request: web.Request, exchange: Exchange, dialect: Dialect, asked: ModelRequest, silence: Silence
) -> web.StreamResponse:
    """Write the deltas as they come, the end once the call is durable.

    Args:
        request: the harness's request.
        exchange: what answers it.
        dialect: how it is written.
        asked: the harness's request, read.
        silence: bounds.
    """
    exchange.attach()
    delivered = False
    try:
        await _first_sign(exchange, silence.grace)
        if exchange.error is not None and not dialect.told_in_stream(exchange.error):
            return error_response(exchange.error, dialect)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        _unbuffered(request)
        await response.prepare(request)
        events = dialect.events(asked, exchange.response_id, exchange.model)
        with suppress(ConnectionResetError):  # its reader is gone: the exchange learns it as it is detached
            await _relay(response, exchange, events, silence.keep_alive)
            if exchange.final is None:
                await _break_off(request, response, events, _error(exchange))
                return response
            await response.write(events.end(exchange.final))
            await response.write_eof()
            await request.writer.drain()
            delivered = _open(request)
        return response
    finally:
        exchange.detach(delivered=delivered)


async def _first_sign(exchange: Exchange, grace: float) -> None:
    try:
        async with asyncio.timeout(grace):
            while not exchange.done and not exchange.deltas:
                await exchange.pulse.wait()
    except TimeoutError:
        return


async def _relay(response: web.StreamResponse, exchange: Exchange, events: EventStream, keep_alive: float) -> None:
    sent = 0
    await response.write(events.begin())
    while True:
        pulse, done = exchange.pulse, exchange.done
        fresh = exchange.deltas[sent:]
        if done and sent == 0 and not fresh and exchange.final is not None:
            fresh = [_all_of(exchange.final)]
        if fresh:
            sent += len(fresh)
            await response.write(b"".join(events.delta(one) for one in fresh))
        elif done:
            return
        else:
            try:
                async with asyncio.timeout(keep_alive):
                    await pulse.wait()
            except TimeoutError:
                await response.write(events.alive())


def _all_of(final: Final) -> Delta:
    return Delta(as_delta(final.message), final.raw_logprobs)


async def _break_off(
    request: web.Request, response: web.StreamResponse, events: EventStream, error: OrchardError
) -> None:
    """End a stream that has begun: with an event where the error is final, by a broken connection where a retry helps.

    Every harness seen starts a call over when its stream breaks, and not each of them when it gets an error event.
    """
    if http_status(error) != 503:
        await response.write(events.failed(error))
        await response.write_eof()
    elif request.transport is not None:
        request.transport.abort()


def error_response(error: OrchardError, dialect: Dialect) -> web.Response:
    """Return the answer for an error in the dialect's shape: 503 and a hint when to retry, or final."""
    status = http_status(error)
    headers = {"Retry-After": _RETRY_AFTER} if status == 503 else {"x-should-retry": "false"}
    body = json.dumps(dialect.error_body(error)).encode()
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _error(exchange: Exchange) -> OrchardError:
    assert exchange.error is not None
    return exchange.error


def _unbuffered(request: web.Request) -> None:
    """Make ``drain`` wait until the kernel has everything."""
    if request.transport is not None:
        request.transport.set_write_buffer_limits(high=0)


def _open(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
