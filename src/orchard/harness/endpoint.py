"""The client side of a model endpoint for loops of our own: one request, with failures told apart by type."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from orchard.core.errors import OrchardError, Unavailable

if TYPE_CHECKING:
    from openai import AsyncOpenAI

RETRIES = 4
"""Tries after the first; the client waits 0.5 s, doubling, and numbers them in ``x-stainless-retry-count``."""
CONTEXT_CODE = "context_length_exceeded"
BUDGET_CODE = "budget_exceeded"
"""Codes of errors (not words of messages) that are the model's outcome rather than trouble."""


class EndpointFailed(Unavailable):
    """The model endpoint could not be reached, or answered with an error; nothing of the model's doing."""

    code = "endpoint_failed"


class BudgetSpent(OrchardError):
    """The session may ask no more."""

    code = "budget_exceeded"


class ContextFull(OrchardError):
    """The conversation no longer fits the model."""

    code = "context_length_exceeded"


@asynccontextmanager
async def open_client(base_url: str, api_key: str) -> AsyncIterator[AsyncOpenAI]:
    """Yield a client of the endpoint at ``base_url`` (without ``/v1``); closed afterwards."""
    import openai  # takes a second to import, so only where it is used

    async with openai.AsyncOpenAI(
        base_url=f"{base_url}/v1", api_key=api_key, max_retries=RETRIES, timeout=None
    ) as client:
        yield client


async def ask(client: AsyncOpenAI, body: Mapping[str, Any]) -> dict[str, Any]:
    """Send one chat completion; return the answer as the server wrote it.

    Raises:
        BudgetSpent, ContextFull: outcomes.
        EndpointFailed: trouble, after the client's own retries.
    """
    import openai

    try:
        answer = await client.chat.completions.with_raw_response.create(**body)
    except openai.APIStatusError as error:
        if error.code == BUDGET_CODE:
            raise BudgetSpent(error.message) from error
        if error.code == CONTEXT_CODE:
            raise ContextFull(error.message) from error
        raise EndpointFailed(f"the model endpoint answered {error.status_code}: {error.message}") from error
    except openai.OpenAIError as error:
        raise EndpointFailed(f"the model endpoint could not be asked: {error}") from error
    try:
        found = json.loads(answer.content)
        if isinstance(found["choices"][0]["message"], dict):
            return found
    except (ValueError, LookupError, TypeError):
        pass  # told below
    raise EndpointFailed(f"the model endpoint answered without a choice: {answer.content[:200]!r}")
