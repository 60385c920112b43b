"""What a commit on a cluster takes from others, the way to the sandbox, it gives back. Over a real sandboxd."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.daemon import DaemonBackend
from tests.support.waiting import until

from orchard.core.errors import Unauthorized
from orchard.sandbox import Sandbox
from orchard.sandbox.conformance.faulty import NONE, Fault, faulty
from orchard.sandbox.kubernetes import KubernetesSettings
from orchard.sandbox.kubernetes.commit import Committer
from orchard.sandbox.kubernetes.identity import ServiceKey
from orchard.sandbox.transport import Call, Transport
from orchard.sandbox.types import Endpoint

NOBODY: Any = None  # no cluster is come to


def with_token(endpoint: Endpoint, token: str) -> Endpoint:
    return replace(endpoint, headers={**endpoint.headers, "Authorization": f"Bearer {token}"})


async def opens(endpoint: Endpoint) -> bool:
    transport = Transport(endpoint)
    try:
        await transport.request(Call("GET", "/lease"))
    except Unauthorized:
        return False
    finally:
        await transport.close()
    return True


async def test_a_commit_given_up_while_it_takes_the_sandbox_over_gives_it_back(
    daemon: DaemonBackend, box: Sandbox, short_path: Path
) -> None:
    key = ServiceKey(b"k" * 32)
    before = Transport(daemon.endpoints[box.id])
    await before.request(Call("POST", "/tokens", json={"replace": key.token_sha256(box.id)}))
    await before.close()
    theirs = with_token(daemon.endpoints[box.id], key.token(box.id))
    mine = with_token(theirs, key.commit_token(box.id))
    settings = KubernetesSettings(commit_repository="127.0.0.1:1/made")
    committer = Committer(settings, NOBODY, key, NOBODY, NOBODY, daemon, cast("Any", None))

    async def take() -> None:
        async with committer._alone(box.id):
            pytest.fail("its answer is held back")

    async with faulty(theirs.base, lambda n: NONE if n else Fault(delay=600), short_path / "proxy") as (_, address):
        daemon.endpoints[box.id] = replace(theirs, base=address)
        taking = asyncio.ensure_future(take())
        await until(lambda: opens(mine))
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
    assert await opens(theirs)
    assert not await opens(mine)
    daemon.endpoints[box.id] = theirs
