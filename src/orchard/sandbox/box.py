"""``Sandbox``: what users hold. Everything in it goes over the endpoint that the backend names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakValueDictionary

from orchard.core.errors import InvalidArgument, NotFound, OrchardError, SandboxGone
from orchard.core.ids import check_key
from orchard.core.tasks import finish, unwrapped
from orchard.sandbox.commands import Bounded, Command, CommandOptions, ProcessStatus, Stdin, command_body, status_of
from orchard.sandbox.diff import Diff, image_baseline, make_diff
from orchard.sandbox.files import Files, RemotePath
from orchard.sandbox.frames import Frame, StreamName
from orchard.sandbox.manifest import Baseline, excludes, take_baseline
from orchard.sandbox.patch import apply_patch
from orchard.sandbox.process import Process, collect
from orchard.sandbox.protocol import Backend
from orchard.sandbox.relay import Reverse, check_port, forwarded, open_port
from orchard.sandbox.sessions import Sessions
from orchard.sandbox.spool import read_spool
from orchard.sandbox.streams import StdinPipe, follow, start_call, stream_call
from orchard.sandbox.transport import Call, Transport
from orchard.sandbox.tree import Transfer, download, upload
from orchard.sandbox.tunnel import Tunnel
from orchard.sandbox.types import DEFAULT_RUN_TIMEOUT, Endpoint, Result, SandboxInfo, State, check_seconds

_KILL_BOUND = 10.0  # seconds that a cancelled ``run`` waits for its command's end


class Sandbox:
    """A sandbox to work in. Holding, closing or dropping this object never ends it; ``delete`` does."""

    def __init__(self, info: SandboxInfo, endpoint: Endpoint, backend: Backend, sessions: Sessions) -> None:
        self._info, self._backend = info, backend
        self._transport = Transport(endpoint, sessions=sessions, locate=self._locate)
        self._sessions = sessions
        self._baselines: dict[tuple[str, tuple[str, ...]], Baseline] = {}
        self._files = Files(self._transport)
        self._forwards: dict[tuple[asyncio.AbstractEventLoop, int], tuple[AsyncExitStack, int]] = {}
        self._forwarding: WeakValueDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"Sandbox({self.id!r}, image={self._info.image!r}, backend={self._info.backend!r})"

    @property
    def id(self) -> str:
        """Its id, by which ``Orchard.attach`` finds it."""
        return self._info.id

    @property
    def info(self) -> SandboxInfo:
        """What was last heard of it; ``refresh`` asks anew."""
        return self._info

    @property
    def files(self) -> Files:
        """Its files."""
        return self._files

    @property
    def transport(self) -> Transport:
        """The wire to it, for what this class has no word for."""
        return self._transport

    async def refresh(self) -> SandboxInfo:
        """Ask the backend anew; also answers once the sandbox is gone, with the reason."""
        self._info = await self._backend.get(self.id)
        return self._info

    async def run(
        self, command: Command, *, timeout: float | None = DEFAULT_RUN_TIMEOUT, stdin: Stdin = None,
        key: str | None = None, **options: Unpack[CommandOptions],
    ) -> Result:  # fmt: skip
        """Run a command to its end. Whatever it does is in the result: only ``result.check()`` raises on it.

        A broken connection is resumed; the command never runs twice. Cancelling the call ends the command and its tree.

        Args:
            command: text for the sandbox's shell, or an argv.
            timeout: seconds until its whole tree is killed and ``timed_out`` is set; None: never.
            stdin: bytes, or an asynchronous iterator of them; None: closed, a reader sees EOF at once.
            key: operation id; the same again answers with the same run. Made up by default.
            **options: see ``CommandOptions``.

        Raises:
            CommandNotStarted: nothing ran; ``reason`` says why.
            CommandLost: it may have run, and what became of it cannot be learnt.
            SandboxGone: the sandbox ended before or meanwhile.
            InvalidArgument: ``field`` names it.
        """
        body = command_body(command, timeout, stdin, key, options)
        name, bounded = body["id"], Bounded()
        frames = follow(
            self._transport, start_call(body, "bounded"), lambda: stream_call(name, "bounded", bounded.offsets)
        )
        try:
            if stdin is None or "stdin_data" in body:
                return await collect(frames, bounded)
            return await self._run_feeding(frames, bounded, name, stdin)
        except OrchardError:
            raise
        except BaseException:  # cancelled, or the caller's stdin failed: nobody waits for the command any more
            await finish(self._end(name))
            raise

    async def start(
        self, command: Command, *, timeout: float | None = None, stdin: bool = False, key: str | None = None,
        **options: Unpack[CommandOptions],
    ) -> Process:  # fmt: skip
        """Start a command and return a handle to it. It goes on when its caller is cancelled later, or ends.

        Args:
            command: text for the sandbox's shell, or an argv.
            timeout: seconds until its whole tree is killed; None: never.
            stdin: keep its stdin open for ``Process.send``.
            key: operation id; the same again returns the same process, also after a cancelled call. Made up by default,
                and then a call that is cancelled ends what it may have started.
            **options: see ``CommandOptions``.

        Raises:
            OrchardError: as ``run``.
        """
        body = command_body(command, timeout, None, key, options)
        if stdin:
            body["stdin"] = "open"
        try:
            reply = await self._transport.request(start_call(body, None))
        except OrchardError:
            raise
        except BaseException:
            if key is None:  # nobody could find it
                await finish(self._end(body["id"]))
            raise
        return Process(self._transport, status_of(reply.json()))

    async def attach(self, process_id: str, *, stdout: int = 0, stderr: int = 0) -> Process:
        """Return a handle to a process that someone started; iterating begins at the offsets.

        Raises:
            NotFound: no such process.
            ResultExpired: it ran, and its result is no longer kept.
        """
        where = f"/processes/{check_key(process_id, 'process_id')}"
        reply = await self._transport.request(Call("GET", where))
        return Process(self._transport, status_of(reply.json()), stdout=stdout, stderr=stderr)

    async def processes(self) -> list[ProcessStatus]:
        """Return the status of every process that is still known."""
        reply = await self._transport.request(Call("GET", "/processes"))
        return [status_of(facts) for facts in reply.json()["processes"]]

    def output(
        self, process_id: str, stream: StreamName = "stdout", *, offset: int = 0, length: int | None = None
    ) -> AsyncGenerator[bytes]:
        """Yield what a process wrote and the spool still holds, also what its bounded result leaves out.

        Args:
            process_id: ``Result.id`` or ``Process.id``.
            stream: which one.
            offset: position to begin at.
            length: bytes at most; None: to the end of what is there now.
        """
        return read_spool(self._transport, process_id, stream, offset, length)

    async def upload(self, local: str | Path, remote: RemotePath, *, user: str | None = None) -> Transfer:
        """Send a local file to the path ``remote``, or what is in a local folder into the folder ``remote``.

        Links, modes, times, dot files and empty folders are kept; special files are left out and named.
        """
        return await upload(self._transport, Path(local), remote, user=user)

    async def download(self, remote: RemotePath, local: str | Path, *, exclude: Sequence[str] = ()) -> Transfer:
        """Fetch a file to the path ``local``, or what is in a folder into the folder ``local``; as ``upload``.

        Raises:
            FileError: ``EXDEV``: the sandbox sent a name that leads out of ``local``. Nothing was written there.
        """
        return await download(self._transport, remote, Path(local), exclude=tuple(exclude))

    async def apply_patch(self, patch: bytes | str, cwd: str | None = None, *, strip: int = 1) -> tuple[str, ...]:
        """Apply a patch below ``cwd`` (the workdir by default), all or nothing; return the paths that changed.

        It is applied on this machine, on copies: nothing of the sandbox is run. If git refuses it, looser ways follow:
        wrong line counts, changed blanks, then fuzz.

        Raises:
            PatchFailed: it does not apply, or would leave ``cwd``; nothing changed. ``detail`` has the tool's words.
        """
        data = patch.encode("utf-8", "surrogateescape") if isinstance(patch, str) else patch
        return await apply_patch(self.files, data, cwd or self._info.workdir, strip)

    async def baseline(self, path: str | None = None, *, exclude: Sequence[str] | None = None) -> Baseline:
        """Remember a work tree as it is now; ``diff`` of the same path compares with it from here on.

        Args:
            path: the work tree; the workdir by default.
            exclude: names left out at any depth, ``*`` allowed; ``manifest.CACHES`` by default. ``.git`` always is.
        """
        where, names = self._tree(path), excludes(exclude)
        self._baselines[where, names] = taken = await take_baseline(self._transport, where, names)
        return taken

    async def diff(
        self, path: str | None = None, *, exclude: Sequence[str] | None = None, since: Baseline | None = None
    ) -> Diff:
        """Return what changed in a work tree, as a patch in git's form (bytes), made on this machine.

        It compares with ``since``, else with the last ``baseline`` of that path, else with the image's own state. What
        the sandbox did to its ``.git`` plays no part, and nothing that it holds is run.

        Args:
            path: the work tree; the workdir by default.
            exclude: as ``baseline``.
            since: compare with this.
        """
        where, names = self._tree(path), excludes(exclude)
        known = since or self._baselines.get((where, names))
        if known is None:
            known = await image_baseline(self._backend, self._sessions, self._info, where, names)
        return await make_diff(self._transport, known)

    def reverse(self, port: int, target: str) -> AbstractAsyncContextManager[Reverse]:
        """Return a block in which ``port`` inside (loopback) leads to ``target`` here, whatever the sandbox's network.

        Args:
            port: 0 lets the sandbox pick one; the block yields an object whose ``port`` says which.
            target: ``http://127.0.0.1:9000``, ``tcp:host:port`` or ``unix:/path``, dialled from this process.

        Raises:
            Conflict: on entering; the port is taken inside.
        """
        return Reverse(self._transport, port, target).running()

    async def tunnel(self, port: int, *, wait: float | None = None) -> Tunnel:
        """Open a duplex stream of bytes to a port in the sandbox.

        Args:
            port: on its loopback.
            wait: seconds to wait for a listener, 60 at most; None: it must be there.

        Raises:
            NotFound: nothing listens.
        """
        return await open_port(self._transport, port, wait)

    def forward(self, port: int, *, local_port: int = 0) -> AbstractAsyncContextManager[int]:
        """Return a block in which a port of this machine's loopback, which it yields, leads to ``port`` inside."""
        return forwarded(self._transport, port, local_port)

    async def url(self, port: int) -> str:
        """Return the base URL, with a ``/`` at its end, of the HTTP or WebSocket server on ``port`` inside.

        Through a service it is the service's port proxy: send the API key, as ``X-Orchard-Key`` where the server wants
        an ``Authorization`` of its own. Elsewhere a port of this machine's loopback leads there, until ``close`` or
        ``delete``, or the end of the event loop that asked.

        Raises:
            InvalidArgument: no port.
        """
        check_port(port)
        endpoint = self._transport.endpoint
        if endpoint.tunnel == "websocket":
            return f"{endpoint.base.rstrip('/').removesuffix(endpoint.prefix)}{endpoint.prefix}/proxy/{port}/"
        where = (asyncio.get_running_loop(), port)
        async with self._forwards_alone():
            if where not in self._forwards:
                stack = AsyncExitStack()
                self._forwards[where] = stack, await stack.enter_async_context(forwarded(self._transport, port, 0))
            return f"http://127.0.0.1:{self._forwards[where][1]}/"

    def _forwards_alone(self) -> asyncio.Lock:
        return self._forwarding.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def _end_forwards(self) -> None:
        here = asyncio.get_running_loop()
        async with self._forwards_alone():
            for where in [known for known in list(self._forwards) if known[0] is here]:
                await self._forwards.pop(where)[0].aclose()

    async def extend(self, ttl: float) -> None:
        """Let it end ``ttl`` seconds from now, sooner or later than before.

        Raises:
            InvalidArgument: beyond its ``max_ttl``.
        """
        await self._transport.request(Call("POST", "/lease", json={"ttl_s": check_seconds(ttl, "ttl")}))

    async def renew(self) -> None:
        """Tell it that its owner lives. An ``async with`` block does so by itself."""
        await self._transport.request(Call("POST", "/lease", json={"heartbeat": True}, apart=True))

    async def lease(self) -> dict[str, Any]:
        """Return when it ends: ``expires_at``, ``ttl_s``, ``max_expires_at``, ``idle_s``, ``heartbeat_s``."""
        return (await self._transport.request(Call("GET", "/lease"))).json()

    async def stats(self) -> dict[str, Any]:
        """Return its use of CPU, memory, processes and disk; what cannot be known is None."""
        return (await self._transport.request(Call("GET", "/stats"))).json()

    async def health(self) -> dict[str, Any]:
        """Return the daemon's version, uptime and number of processes."""
        return (await self._transport.request(Call("GET", "/health"))).json()

    async def commit(self, name: str) -> str:
        """Stop it and turn its changes into an image; returns the digest. ``name`` is an extra name of the image."""
        return await self._backend.commit(self.id, name)

    async def delete(self, *, wait: bool = True) -> None:
        """End it. With ``wait``, return once nothing of it is left. Deleting twice is fine."""
        await self._end_forwards()
        await self._backend.delete(self.id, wait=wait)
        await self._transport.close()

    async def close(self) -> None:
        """Close the connections to it. It lives on, and this object may be used again."""
        await self._end_forwards()
        await self._transport.close()

    async def _locate(self) -> Endpoint:
        info = await self.refresh()
        if info.state is State.GONE:
            raise gone(info)
        return await self._backend.endpoint(self.id)

    def _tree(self, path: str | None) -> str:
        where = path or self._info.workdir
        if where.strip("/") == "":
            raise InvalidArgument("path must name a work tree, not the whole root", field="path")
        return where if where.startswith("/") else f"{self._info.workdir.rstrip('/')}/{where}"

    async def _run_feeding(self, frames: AsyncGenerator[Frame], bounded: Bounded, name: str, stdin: Stdin) -> Result:
        assert stdin is not None
        async with aclosing(frames):
            await anext(frames)  # the status: it has started, so there is a stdin
            with unwrapped():
                async with asyncio.TaskGroup() as group:
                    feeder = group.create_task(StdinPipe(self._transport, name, sole=True).feed(stdin))
                    try:
                        return await collect(frames, bounded)
                    finally:
                        feeder.cancel()

    async def _end(self, name: str) -> None:
        """Kill a process that may not have been started yet: its request may still be under way."""
        try:
            async with asyncio.timeout(_KILL_BOUND):
                for again in (True, False):
                    try:
                        await self._transport.request(Call("DELETE", f"/processes/{name}"))
                        return
                    except NotFound:
                        if again:
                            await asyncio.sleep(0.1)
        except (TimeoutError, OrchardError):
            return  # the caller's own cancellation is what is raised


def gone(info: SandboxInfo) -> SandboxGone:
    """Return the error that says why and when the sandbox of ``info`` ended."""
    detail = f": {info.detail}" if info.detail else ""
    at = info.ended_at.isoformat() if info.ended_at else None
    return SandboxGone(f"sandbox {info.id} has ended{detail}", reason=info.reason or "unknown", at=at)
