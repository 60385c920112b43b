"""The witness of a sandbox without network: it reaches the API server, and sandboxd is to find that it does not.

Why that proves the network to be shut, and nothing less would, is told in ``sandboxd/spec/wire.md``, "Seal".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from orchard.core.errors import Unavailable
from orchard.core.retry import Patience
from orchard.sandbox.kubernetes.client import WINDOW, Cluster
from orchard.sandbox.kubernetes.daemons import Daemons
from orchard.sandbox.kubernetes.endpoints import ApiEndpoint, api_endpoints
from orchard.sandbox.kubernetes.settings import KubernetesSettings

_PAUSE = 0.05  # seconds between two tries on a network that is open as yet
_DIAL_SECONDS = 2.0
_ROUND_SECONDS = 5.0  # that sandboxd may take for a round; others may be before us
_KNOWN_SECONDS = 60.0
_MOST = 16  # targets of one request


class Witness:
    """Seals sandboxes for one process."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings, daemons: Daemons) -> None:
        self._cluster, self._settings, self._daemons = cluster, settings, daemons
        self._known: Sequence[ApiEndpoint] = ()
        self._asked = 0.0
        self._asking = asyncio.Lock()

    async def greet(self, sandbox_id: str, address: str, network: str) -> None:
        """Return once the daemon answers and, with ``network`` none, its network is shut; raises as ``seal``."""
        await self._daemons.greet(sandbox_id, address)
        if network == "none":
            await self.seal(sandbox_id, address)

    async def seal(self, sandbox_id: str, address: str) -> None:
        """Return once the sandbox at ``address`` has found its network shut; wait as long as it is open.

        Raises:
            Unavailable: for a minute the sandbox does not answer, or the API server is not reached from here,
                so that nobody could tell a policy from a fault.
        """
        patience = Patience(WINDOW)
        while True:
            try:
                targets = [str(each) for each in await self._reached()]
                told = await self._daemons.ask(
                    sandbox_id, address, "/seal", body={"dial": targets}, seconds=_ROUND_SECONDS
                )
            except Unavailable as error:
                await patience.pause(error)
                continue
            patience.reset()
            if told["sealed"]:
                return
            if not told["denied"]:
                await asyncio.sleep(_PAUSE)

    async def _reached(self) -> list[ApiEndpoint]:
        """Return the endpoints of the API server that have just been reached from here."""
        known = await self._endpoints()
        dialled = await asyncio.gather(*map(_reaches, known))
        reached = [each for each, answered in zip(known, dialled, strict=True) if answered]
        if not reached:
            self._asked = 0.0
            raise Unavailable(
                f"no endpoint of the API server is reached from here: {', '.join(map(str, known))}; without it nobody "
                "can tell whether the network of a sandbox is shut", reason="no_witness",
                hint="run the service where the network of Pods and nodes is reached; where Pods see the API server at "
                "another address, name that one in api_servers",
            )  # fmt: skip
        return reached

    async def _endpoints(self) -> Sequence[ApiEndpoint]:
        async with self._asking:
            if time.monotonic() - self._asked > _KNOWN_SECONDS or not self._known:
                self._known = (await api_endpoints(self._cluster, self._settings))[:_MOST]
                self._asked = time.monotonic()
        return self._known


async def _reaches(target: ApiEndpoint) -> bool:
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            _, writer = await asyncio.open_connection(target.host, target.port)
            writer.close()
            await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
    return True
