"""One broken twin for each line of the behaviours that has a check."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.twin import Ask, Twin, command, exit_facts, is_exit

from orchard.core.errors import CreateFailed, NotFound, SandboxGone
from orchard.core.ids import new_id
from orchard.sandbox.conformance.wrap import Wrapped
from orchard.sandbox.frames import Frame, Kind
from orchard.sandbox.protocol import Backend
from orchard.sandbox.tree import Transfer
from orchard.sandbox.types import Endpoint, Page, SandboxInfo, SandboxSpec, State

FILL = """
import subprocess, time
while True:
    try:
        subprocess.Popen(["sleep", "61"])
    except OSError:
        time.sleep(0.001)
"""
"""Takes every slot that becomes free."""


def longer(spec: dict[str, Any]) -> None:
    if "echo hello" in command(spec) and spec.get("timeout_s") == 2:
        spec["timeout_s"] += 1


def survivor(when: str, *argv: str) -> Any:
    """After a command with ``when`` in it, other processes live on that its end does not reach."""

    async def started(spec: dict[str, Any], ask: Ask) -> None:
        if when in command(spec):
            with suppress(AssertionError):  # no slot is left: one twin is about just that
                await ask("POST", "/v1/processes", {"id": new_id("op"), "argv": list(argv)})

    return started


def becomes(when: str, script: str) -> Any:
    """A command that is or begins with ``when`` becomes another one."""

    def start(spec: dict[str, Any]) -> None:
        if command(spec).startswith(when):
            spec.pop("argv", None)
            spec["shell"] = script

    return start


def given(when: str, **facts: Any) -> Any:
    """A command that begins with ``when`` is started with other facts."""

    def start(spec: dict[str, Any]) -> None:
        if command(spec).startswith(when):
            spec.update(facts)

    return start


def on_exit(when: str, **facts: Any) -> Any:
    """The exit of a command that begins with ``when`` has other facts."""

    def frame(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
        yield exit_facts(one, **facts) if is_exit(one) and command(spec).startswith(when) else one

    return frame


def exit_is_timeout(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
    late = is_exit(one) and json.loads(one.payload)["exit_code"] == 124
    yield exit_facts(one, timed_out=True) if late else one


def wrong_at_offset(method: str, target: str) -> str | None:
    """A stream that is asked for from an offset begins a byte later."""
    if "/stream?" in target and "mode=full" in target and "stdout=" in target and "stdout=0" not in target:
        offset = int(target.partition("stdout=")[2].partition("&")[0])
        return target.replace(f"stdout={offset}", f"stdout={offset + 1}")
    return None


def new_operation(spec: dict[str, Any]) -> None:
    if spec["id"] == "op-same":
        spec["id"] = new_id("op")


def changed_bytes(when: str, old: bytes, new: bytes) -> Any:
    def frame(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
        hit = one.kind == Kind.STDOUT and when in command(spec)
        yield replace(one, payload=one.payload.replace(old, new)) if hit else one

    return frame


_count = itertools.count()


def loses_output(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
    """Now and then the exit overtakes the output, which is then lost."""
    if one.kind != Kind.STDOUT or command(spec) != "echo x; exit 3" or next(_count) % 97:
        yield one


def exit_for_a_break(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
    """A stream that breaks off looks like a normal end."""
    yield one
    if one.kind == Kind.STATUS and command(spec).startswith("seq 1 200000; exit"):
        facts = json.loads(one.payload) | {"state": "exited", "exit_code": 0}
        yield Frame(Kind.EXIT, 0, json.dumps(facts).encode())


def half_of_it(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
    if one.kind == Kind.STDOUT and command(spec).startswith("head -c 100000000"):
        one = replace(one, payload=one.payload[: len(one.payload) // 2])
    yield one


def split_arguments(spec: dict[str, Any]) -> None:
    argv = spec.get("argv", [])
    if len(argv) > 4 and "for a do" in argv[2]:
        spec["argv"] = argv[:4] + " ".join(argv[4:]).split(" ")


def one_at_a_time(when: str) -> Any:
    lock = asyncio.Lock()
    return lambda spec: lock if when in command(spec) else None


def other_byte(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    changed = method == "GET" and "path=/tmp/sized" in target and body
    return status, b"\0" + body[1:] if changed else body


def missing_folder(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    if status >= 400 and body and json.loads(body).get("errno") == "EISDIR":
        return 404, json.dumps(json.loads(body) | {"errno": "ENOENT"}).encode()
    return status, body


def host_file(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    return status, b"of the host" if "path=/tmp/leak/hostname" in target else body


def entry_lost(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    if "path=/tmp/l&" in target or target.endswith("path=/tmp/l"):
        lines = body.splitlines(keepends=True)
        return status, b"".join(line for line in lines if b"broken" not in line)
    return status, body


def no_shell_is_missing(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    if status == 422 and json.loads(body).get("reason") == "no_shell":
        return status, json.dumps(json.loads(body) | {"reason": "program_not_found"}).encode()
    return status, body


async def extract_anything(response: Any, local: Path) -> Transfer:
    """As a careless client would: every member where its name says."""
    import io

    archive = io.BytesIO(await response.read())
    await asyncio.to_thread(local.mkdir, parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            with suppress(OSError, tarfile.TarError):
                tar.extract(member, local, filter="fully_trusted")
    return Transfer(1, ())


class Slow(Wrapped):
    """Takes its time to say that a sandbox is gone."""

    async def get(self, sandbox_id: str) -> SandboxInfo:
        info = await self.inner.get(sandbox_id)
        if info.reason == "deleted":
            await asyncio.sleep(3)
        return info


class NewKeys(Wrapped):
    """Forgets idempotency keys."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        return await self.inner.create(spec, new_id("key"))


class LongerTtl(Wrapped):
    """Rounds a short ttl up."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        return await self.inner.create(replace(spec, ttl=60) if spec.ttl == 2 else spec, key)


class Immortal(Wrapped):
    """Says that what others made is alive, whatever became of it."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._mine: set[str] = set()

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        info = await self.inner.create(spec, key)
        self._mine.add(info.id)
        return info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        info = await self.inner.get(sandbox_id)
        return info if sandbox_id in self._mine else replace(info, state=State.READY, reason=None)


class DeleteOnce(Wrapped):
    """Does not know a sandbox that it has deleted."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._deleted: set[str] = set()

    async def delete(self, sandbox_id: str, *, wait: bool = True) -> None:
        if sandbox_id in self._deleted:
            raise NotFound(f"no sandbox {sandbox_id}")
        self._deleted.add(sandbox_id)
        await self.inner.delete(sandbox_id, wait=wait)


class Litter(Wrapped):
    """Leaves a sandbox behind when a create fails."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        try:
            return await self.inner.create(spec, key)
        except CreateFailed:
            if "orchard.probe" in spec.labels:
                await self.inner.create(replace(spec, image="host", ttl=5), new_id("key"))
            raise


class Restarts(Wrapped):
    """Puts a blank sandbox in the place of one whose daemon died."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._specs: dict[str, SandboxSpec] = {}
        self._now: dict[str, str] = {}

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        info = await self.inner.create(spec, key)
        self._specs[info.id] = spec
        return info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        info = await self.inner.get(self._now.get(sandbox_id, sandbox_id))
        if info.state is State.GONE and info.reason not in ("deleted", "ttl", "idle", "heartbeat"):
            fresh = await self.inner.create(self._specs[sandbox_id], new_id("key"))
            self._now[sandbox_id] = fresh.id
            return replace(fresh, id=sandbox_id)
        return replace(info, id=sandbox_id)

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        with suppress(SandboxGone):
            return await self.inner.endpoint(self._now.get(sandbox_id, sandbox_id))
        await self.get(sandbox_id)
        return await self.inner.endpoint(self._now.get(sandbox_id, sandbox_id))


class OtherReason(Wrapped):
    """Does not tell a private image from a missing one."""

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        try:
            return await self.inner.create(spec, key)
        except CreateFailed as error:
            if error.reason != "image_auth":
                raise
            raise CreateFailed(error.message, reason="image_not_found") from error


class NoPulling(Wrapped):
    """Does not say that it pulls."""

    async def list(
        self, labels: Mapping[str, str] | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        page = await self.inner.list(labels, limit=limit, cursor=cursor)
        return replace(page, items=[replace(one, state=State.STARTING) for one in page.items])


class FiftiethFails(Wrapped):
    """One create of many fails."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self._count = 0

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        self._count += spec.ttl == 120
        if spec.ttl == 120 and self._count == 50:
            raise CreateFailed("one too many at once", reason="start_timeout")
        return await self.inner.create(spec, key)


def told(spec: dict[str, Any]) -> None:
    logging.getLogger("twin").info("starting %s", spec)


def renewal_lost(method: str, target: str) -> str | int | None:
    return 200 if (method, target) == ("POST", "/v1/lease") else None


def unquoted(method: str, target: str) -> str | int | None:
    """Decodes names twice."""
    return target if method == "GET" and "path=/tmp/names/%2F" in target else None


def one_write_refused(method: str, target: str) -> str | int | None:
    return 409 if method == "PUT" and "path=/tmp/a/b/c/7&" in target else None


async def without_hidden(spec: dict[str, Any], ask: Ask) -> None:
    if command(spec).startswith("cd /tmp/up && ls"):
        await ask("POST", "/v1/files/remove?path=/tmp/up/.hidden", None)


def as_root(method: str, target: str) -> str | None:
    return f"{target}&user=0" if method == "PUT" and "path=mine/file" in target else None


TWINS = [
    Twin(1, "a time-out comes a second late", start=longer),
    Twin(2, "a background child outlives its command", started=survivor("sleep 71 &", "sleep", "71")),
    Twin(3, "a child that fled lives on", started=survivor("setsid sleep 301", "sleep", "301")),
    Twin(4, "a background child holds the answer", start=becomes("sleep 30 & echo", "sleep 9 & echo started; wait")),
    Twin(5, "a time-out leaves processes", started=survivor("sleep 61", "python3", "-c", FILL)),
    Twin(6, "stdin stays open", start=given("cat", stdin="open")),
    Twin(7, "a time-out is rounded to whole seconds", start=given("sleep 20", timeout_s=3.0)),
    Twin(8, "exit code 124 means a time-out", frame=exit_is_timeout),
    Twin(9, "an offset is off by one", request=wrong_at_offset),
    Twin(10, "an aborted request leaves something", started=survivor("sleep 9", "sh", "-c", "sleep 9; sleep 9")),
    Twin(11, "the end of a sandbox is told late", wrap=Slow),
    Twin(12, "a background process gets a hidden time-out", start=given("sleep 304", timeout_s=0.1)),
    Twin(13, "git log waits on a pager", start=becomes("git log", "git log; sleep 20")),
    Twin(15, "commands stand in a queue", gate=one_at_a_time("/tmp/meet")),
    Twin(16, "an operation id is forgotten", start=new_operation),
    Twin(17, "the count of bytes is wrong", frame=on_exit("seq 1 3000000", stdout_bytes=22888895)),
    Twin(18, "a carriage return becomes a line feed", frame=changed_bytes(r"a\rb\rc", b"\r", b"\n")),
    Twin(19, "a character is split", frame=changed_bytes("-lt 4000", b"\xc3", b"\xe2")),
    Twin(20, "an exit overtakes the output", frame=loses_output),
    Twin(21, "a broken stream is exit 0", frame=exit_for_a_break),
    Twin(22, "a large stream has holes", frame=half_of_it),
    Twin(23, "stderr goes to stdout", start=given("echo out; echo err", merge=True)),
    Twin(24, "a long script is cut", start=becomes("# xxx", "true")),
    Twin(25, "arguments are joined and split again", start=split_arguments),
    Twin(26, "a token is in the environment", start=given("cat /proc/1/environ", env={"ORCHARD_TOKEN": "x"})),
    Twin(27, "HOME is not the user's", start=given("id -un; id -Gn", env={"HOME": "/"})),
    Twin(28, "a byte of a file changes", answer=other_byte, answers="/v1/files"),
    Twin(29, "one of many writes is refused", request=one_write_refused),
    Twin(30, "a name is decoded twice", request=unquoted),
    Twin(31, "dot files stay behind", started=without_hidden),
    Twin(32, "a folder is told as missing", answer=missing_folder, answers="/v1/files"),
    Twin(33, "an archive is trusted", patch=("orchard.sandbox.tree.extract", extract_anything)),
    Twin(34, "a link leads to the host", answer=host_file, answers="/v1/files"),
    Twin(35, "a broken link is not listed", answer=entry_lost, answers="/v1/files/list"),
    Twin(36, "written files belong to root", request=as_root),
    Twin(37, "the same key makes a second sandbox", wrap=NewKeys),
    Twin(38, "a ttl is rounded up", wrap=LongerTtl),
    Twin(39, "a running command is no activity", start=given("sleep 4; echo done", timeout_s=1.5)),
    Twin(40, "a renewal elsewhere is lost", request=renewal_lost),
    Twin(41, "a sandbox outlives its killed client", wrap=Immortal),
    Twin(42, "deleting twice is an error", wrap=DeleteOnce),
    Twin(43, "a failed create leaves a sandbox", wrap=Litter),
    Twin(44, "a dead sandbox is replaced by a blank one", wrap=Restarts),
    Twin(45, "death by memory is not told", frame=on_exit("python3 -c x = []", oom_killed=False)),
    Twin(46, "all CPUs of the host are shown", start=becomes("nproc", "echo 64; echo 64")),
    Twin(48, "a private image is told as missing", wrap=OtherReason),
    Twin(49, "pulling is not shown", wrap=NoPulling),
    Twin(50, "packets leave", start=becomes("python3 -c \nimport socket, time", "echo OUT tcp; echo lookup 0.1")),
    Twin(54, "a tunnel is refused", request=lambda method, target: 404 if "/ports/" in target else None),
    Twin(55, "a missing shell is not named", answer=no_shell_is_missing, answers="/v1/processes"),
    Twin(56, "ENV of the image is lost", start=given("id -un; pwd", env={"IMAGE_SAYS": "other"})),
    Twin(57, "one create of a hundred fails", wrap=FiftiethFails),
    Twin(58, "another process does not reach the backend", env={"ORCHARD_URL": "http://127.0.0.1:9"}),
    Twin(59, "environment values are logged", start=told),
    Twin(60, "one command of a thousand is dropped", start=becomes("sleep 1; echo 500", "true")),
]  # fmt: skip
