"""The witness of a sandbox without network: how long it waits for what it needs."""

import asyncio
from typing import Any, cast

import pytest
from tests.support.pods import Server

from orchard.core import retry
from orchard.core.errors import Unavailable
from orchard.sandbox.kubernetes import KubernetesSettings, seal
from orchard.sandbox.kubernetes.daemons import Daemons
from orchard.sandbox.kubernetes.seal import Witness


class Clock:
    """Time that passes only while somebody sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Sealed:
    async def ask(self, *_: object, **__: object) -> dict[str, Any]:
        return {"sealed": True}


@pytest.mark.parametrize(("away", "waits"), [(50.0, True), (90.0, False)])
async def test_a_restart_of_the_api_server_is_waited_out(
    monkeypatch: pytest.MonkeyPatch, away: float, waits: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(retry, "asyncio", clock)

    async def reaches(_: object) -> bool:
        await asyncio.sleep(0)
        return clock.now >= away

    monkeypatch.setattr(seal, "_reaches", reaches)
    settings = KubernetesSettings(api_servers=["192.0.2.1:6443"])
    witness = Witness(Server().as_cluster, settings, cast("Daemons", Sealed()))
    if waits:
        await witness.seal("sb-a-b", "192.0.2.2")
    else:
        with pytest.raises(Unavailable) as caught:
            await witness.seal("sb-a-b", "192.0.2.2")
        assert caught.value.reason == "no_witness"
