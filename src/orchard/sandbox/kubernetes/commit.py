"""A sandbox's changes as an image: what differs from the manifest of its image becomes a layer over it.

Nothing of a Pod's layer can be read from outside, so sandboxd is asked, while nobody else may speak with it. The tag
follows from id and name: the registry is the record by which the same commit again, by any replica, answers the same.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, TypeAlias, TypeVar, cast

from orchard.core.config import cache_dir
from orchard.core.errors import NotFound, OrchardError, SandboxGone, Unauthorized, Unavailable, Unsupported, text_of
from orchard.core.retry import Patience
from orchard.core.scratch import scratch
from orchard.core.tasks import finish, unwrapped
from orchard.sandbox.answers import next_piece
from orchard.sandbox.kubernetes import deaths, layers, manifests
from orchard.sandbox.kubernetes.changes import Changes, too_large
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.kubernetes.pod import FACTS, SPEC, notes
from orchard.sandbox.kubernetes.record import created_at
from orchard.sandbox.kubernetes.registry import Base, Registry
from orchard.sandbox.kubernetes.settings import KubernetesSettings
from orchard.sandbox.kubernetes.tombstones import Tombstones
from orchard.sandbox.kubernetes.turns import Turns
from orchard.sandbox.protocol import Backend
from orchard.sandbox.sessions import Sessions
from orchard.sandbox.transport import SILENCE, Call, Transport, query
from orchard.sandbox.types import Endpoint, SandboxInfo

Find: TypeAlias = Callable[[str], Awaitable[tuple[Json, Identity] | SandboxInfo]]
"""Of an id: the Pod and whose it is, or what is remembered; ``NotFound`` where it is neither."""
T = TypeVar("T")

_log = logging.getLogger(__name__)
_TIME = 1800.0  # seconds that the sandbox is kept for its commit, where its max_ttl lets it
_BATCH = 4 << 20  # bytes of paths in one request
_KILLS = 16  # at once
_UNDO_SECONDS = 10.0


class Committer:
    """Makes images out of the sandboxes of one process."""

    def __init__(
        self, settings: KubernetesSettings, cluster: Cluster, key: ServiceKey, tombstones: Tombstones,
        registry: Registry, backend: Backend, find: Find,
    ) -> None:  # fmt: skip
        self._repository, self._cluster, self._key = settings.commit_repository, cluster, key
        self._most, self._turns = settings.commit_bytes, Turns(settings.commits)
        self._tombstones, self._registry, self._backend, self._find = tombstones, registry, backend, find
        self._manifests = manifests.ImageManifests(backend, settings.daemon_image)
        self._running: dict[str, asyncio.Task[str]] = {}

    async def commit(self, sandbox_id: str, name: str) -> str:
        """End the sandbox and return the digest of the image that its changes make. The same again answers the same.

        If it fails the sandbox lives on, its processes ended, so that it can be tried again.

        Raises:
            NotFound: no such sandbox.
            SandboxGone: it has ended, and its changes with it.
            Unavailable: it is not ready, or the registry does not answer.
            Unauthorized: the registry refuses us.
            Unsupported: no repository is set, a change cannot be held by a layer, their layer is larger than
                ``commit_bytes``, or a root has too many files (``too_large``).
            FileError: a change cannot be read; ``path`` names it.
        """
        if not self._repository:
            raise Unsupported(
                "commit needs a repository that images can be pushed to", hint="set commit_repository; see docs"
            )
        reference = f"{self._repository}:{_tag(sandbox_id, name)}"
        running = self._running.get(reference)
        if running is None:
            running = self._running[reference] = asyncio.ensure_future(self._commit(sandbox_id, name, reference))
            running.add_done_callback(lambda task: self._ended(reference, task))
        return await asyncio.shield(running)

    async def close(self) -> None:
        """Give up what is under way."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _ended(self, reference: str, task: asyncio.Task[str]) -> None:
        self._running.pop(reference, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.info("commit %s: %s", reference, error)  # whoever waits raises it; there may be nobody left

    async def _commit(self, sandbox_id: str, name: str, reference: str) -> str:
        async with self._turns.turn(await self._tenant(sandbox_id)):
            try:
                return await self._made(sandbox_id, name, reference)
            except (SandboxGone, NotFound):
                digest = await self._registry.digest(reference)  # another replica may have made it, and ended it, since
                if digest is None:
                    raise
                return digest

    async def _tenant(self, sandbox_id: str) -> str:
        """Return whose turn it is; of what is gone, nobody's: the registry may know of it yet."""
        with suppress(NotFound):
            found = await self._find(sandbox_id)
            return "" if isinstance(found, SandboxInfo) else found[1].tenant
        return ""

    async def _made(self, sandbox_id: str, name: str, reference: str) -> str:
        digest = await self._registry.digest(reference)
        try:
            found = await self._find(sandbox_id)
        except NotFound:
            if digest is None:
                raise
            return digest
        if isinstance(found, SandboxInfo) or deaths.classify(found[0]) is not None:
            if digest is None:
                raise self._gone(sandbox_id, found)
            return digest
        if digest is None:
            digest = await self._image(*found, name, reference)
        pod, who = found
        await self._tombstones.bury(pod, who, deaths.Death("deleted", f"committed as {name}", datetime.now(UTC)))
        await self._backend.delete(sandbox_id)
        return digest

    @staticmethod
    def _gone(sandbox_id: str, found: tuple[Json, Identity] | SandboxInfo) -> SandboxGone:
        if isinstance(found, SandboxInfo):
            at = found.ended_at.isoformat() if found.ended_at else None
            return SandboxGone(f"sandbox {sandbox_id} has ended", reason=found.reason, at=at)
        death = deaths.classify(found[0])
        return SandboxGone(f"sandbox {sandbox_id} has ended", reason=death.reason if death else "unknown")

    async def _image(self, pod: Json, who: Identity, name: str, reference: str) -> str:
        spec = cast("Json", json.loads(notes(pod)[SPEC]))
        base = await self._base(pod)
        held = ExitStack()
        try:
            place = scratch(cache_dir() / "kubernetes" / "commits")
            folder = await finish(asyncio.to_thread(held.enter_context, place))
            below = held.enter_context(await self._manifests.of(base, spec.get("user"), folder))
            with (folder / "changes.tar").open("w+b") as archive:
                async with self._alone(who.id) as transport:
                    await manifests.take(transport, folder / "now.gz")
                    changes = await asyncio.to_thread(manifests.compare, below, folder / "now.gz")
                    changes.check(self._most)
                    await _fetch(transport, changes, archive, self._most)
                    image = folder / "image"
                    image.mkdir()
                    await asyncio.to_thread(layers.complete, archive, changes, self._most)
                    layer = await asyncio.to_thread(layers.compress, archive, image)
                    # Nothing of the moment, so that two replicas at it make one and the same image.
                    note = {"created": created_at(pod).isoformat(), "created_by": "orchard commit", "comment": name}
                    digest = layers.write_image(image, base.manifest, base.config, layer, note)
                    await self._registry.push(base, image, reference)
        finally:
            await finish(asyncio.to_thread(held.close))
        return digest

    async def _base(self, pod: Json) -> Base:
        facts = cast("Json", json.loads(notes(pod).get(FACTS) or "{}"))
        if not facts.get("reference"):
            raise Unsupported(
                "the registry of the sandbox's image has told us nothing of it, so nothing can be laid over it",
                hint="let the service read that registry: pull_secrets, insecure_registries",
            )

        async def architecture() -> str | None:
            with suppress(Unauthorized):  # to list them is a right that the service has for other reasons
                async for page in self._cluster.pages("/api/v1/nodes"):
                    for node in page["items"]:
                        if node["metadata"]["name"] == pod["spec"].get("nodeName"):
                            return part(node, "status", "nodeInfo").get("architecture")
            _log.info("the architecture of a sandbox's node is not known; the image's first one is taken")
            return None

        return await self._registry.base(str(facts["reference"]), architecture)

    @asynccontextmanager
    async def _alone(self, sandbox_id: str) -> AsyncGenerator[Transport]:
        """Yield a way to the sandbox that nobody else has, all its processes ended; after a failure others have theirs.

        Another replica has the same way, so it can go on where one was killed. It may also be at work now: then it ends
        the sandbox before us, which ``SandboxGone`` tells, or gives our way back, which ``Unavailable`` does.
        """
        token, theirs = self._key.commit_token(sandbox_id), partial(self._backend.endpoint, sandbox_id)

        async def mine() -> Endpoint:
            endpoint = await theirs()
            return replace(endpoint, headers={**endpoint.headers, "Authorization": f"Bearer {token}"})

        endpoint, sessions = await mine(), Sessions()
        transport = _Lone(endpoint, sessions=sessions, locate=mine)
        try:
            try:
                await self._hand_over(Transport(await theirs(), sessions=sessions, locate=theirs), transport, token)
                await _quiet(transport)
                yield transport
            except BaseException:
                await finish(self._give_back(sandbox_id, Transport(endpoint, sessions=sessions, locate=mine)))
                raise
        finally:
            await sessions.close()

    @staticmethod
    async def _hand_over(theirs: Transport, mine: Transport, token: str) -> None:
        sha256 = hashlib.sha256(token.encode()).hexdigest()
        try:
            await theirs.request(Call("POST", "/tokens", json={"replace": sha256}))
        except Unauthorized:  # a replica that was killed in the midst of it has done so
            await mine.request(Call("GET", "/lease"))

    async def _give_back(self, sandbox_id: str, transport: Transport) -> None:
        theirs = {"replace": self._key.token_sha256(sandbox_id)}
        try:
            async with asyncio.timeout(_UNDO_SECONDS):
                await transport.request(Call("POST", "/tokens", json=theirs))
        except (Unauthorized, SandboxGone, NotFound):
            return  # it never was ours, or another replica has given it back, or ended it
        except (OrchardError, TimeoutError) as error:
            _log.warning(
                "sandbox %s is closed until its time is over, or its commit repeated: %s", sandbox_id, text_of(error)
            )


class _Lone(Transport):
    """A way to a sandbox that its commit alone has."""

    async def retrying(self, call: Call, once: Callable[[], Awaitable[T]], patience: Patience | None = None) -> T:
        """As ``Transport.retrying``; a token that is refused is no fault of the client's, who may ask again.

        Raises:
            Unavailable: also where another replica has given the way back.
        """
        try:
            return await super().retrying(call, once, patience)
        except Unauthorized as error:
            words = "another replica, at work on the same commit, has given it up"
            raise Unavailable(words, hint="ask again") from error


async def _quiet(transport: Transport) -> None:
    """Let nothing but us write and nothing but its ``max_ttl`` end the sandbox for a while."""
    lease = (await transport.request(Call("GET", "/lease"))).json()
    now = datetime.now(UTC)
    ends, last = deaths.parse_time(lease.get("expires_at")), deaths.parse_time(lease.get("max_expires_at"))
    terms: dict[str, Any] = {"heartbeat_s": None, "idle_s": None}
    if ends is not None and (ends - now).total_seconds() < _TIME:
        left = (last - now).total_seconds() - 1 if last is not None else _TIME
        terms["ttl_s"] = max(1.0, min(_TIME, left))
    await transport.request(Call("POST", "/lease", json=terms))
    turns = asyncio.Semaphore(_KILLS)

    async def end(process: str) -> None:
        async with turns:
            try:
                await transport.request(Call("DELETE", f"/processes/{process}"))
            except NotFound:
                return

    known = (await transport.request(Call("GET", "/processes"))).json()["processes"]
    with unwrapped():
        async with asyncio.TaskGroup() as group:
            for each in known:
                group.create_task(end(each["id"]))


async def _fetch(transport: Transport, changes: Changes, archive: IO[bytes], most: int) -> None:
    """Write what has changed into an archive without an end; hard links hold within a request.

    Raises:
        Unsupported: the archive would take more than ``most`` bytes.
    """
    batch: list[bytes] = []
    size = 0
    for path in changes.files:
        batch.append(path)
        size += len(path) + 4
        if size > _BATCH:
            await _pick(transport, batch, archive, most)
            batch, size = [], 0
    if batch:
        await _pick(transport, batch, archive, most)


async def _pick(transport: Transport, paths: list[bytes], archive: IO[bytes], most: int) -> None:
    names: dict[str, list[str]] = {"paths": [], "paths_b64": []}
    for path in paths:
        try:
            names["paths"].append(path.decode())
        except UnicodeDecodeError:
            names["paths_b64"].append(base64.b64encode(path).decode())
    start = archive.tell()
    call = Call("POST", "/tree/pick", query(path="/"), json=names, silence=SILENCE)

    async def once() -> None:
        archive.seek(start)
        archive.truncate()
        async with transport.open(call) as response:
            while piece := await next_piece(response):
                if archive.tell() + len(piece) > most:
                    raise too_large(most)
                await asyncio.to_thread(archive.write, piece)
        layers.open_end(archive)

    await transport.retrying(call, once)


def _tag(sandbox_id: str, name: str) -> str:
    """Return the tag of a commit: words for people, and what makes it the only one."""
    words = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:60] or "commit"
    return f"{words}-{hashlib.sha256(f'{sandbox_id} {name}'.encode()).hexdigest()[:16]}"
