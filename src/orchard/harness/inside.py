"""A program inside the sandbox as a harness: its files and variables go in, it runs once, its own records come out.

Each run has a folder of its own in the sandbox, outside the work tree, to which the program's settings and records are
led by its own variables. ``HOME`` stays the image's: build tools find their caches and their settings there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from orchard.core.errors import FileError, FileMissing, FilePresent, OrchardError
from orchard.core.tasks import finish
from orchard.core.text import carried
from orchard.harness.endpoint import BUDGET_CODE, CONTEXT_CODE
from orchard.harness.layers import Layer, build, built
from orchard.harness.options import Kind, check_kinds
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop, ToolEvent
from orchard.sandbox import Result, Sandbox
from orchard.sandbox.toolnames import TOOLS

ENDS = {BUDGET_CODE: Stop.BUDGET, CONTEXT_CODE: Stop.CONTEXT}
"""Code of the endpoint's last error -> why a program ended that did not get to its own end."""
_OUTPUT = 64 << 20
"""Most bytes that are kept of a program's stdout, and of its stderr: a half from the head, a half from the tail."""
_RECORDS = 256 << 20
"""Most bytes of its records that are fetched."""
_REMOVE_SECONDS = 30.0
_WORDS = 2000


@dataclass(frozen=True)
class Launch:
    """How one run is started."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path below the run's own folder -> content; nobody else may read them."""
    stdin: str = ""


@dataclass(frozen=True)
class Left:
    """What one run left behind, on this machine."""

    stdout: Path
    records: Sequence[Path]
    """What ``Inside.collect`` fetched."""
    result: Result


@dataclass(frozen=True)
class Reading:
    """What a program says of its run, in its output and its records."""

    done: bool
    """It says that the agent is done. Its exit code plays no part."""
    turns: int = 0
    submission: str | None = None
    """The agent's last words."""
    events: Sequence[ToolEvent] = ()
    native: Path | None = None
    """Its trajectory file."""
    limit: Stop | None = None
    """A limit of its own that ended it."""
    words: str = ""
    """What it says went wrong."""


class Inside(ABC):
    """Base of such harnesses: a driver says how its program is started, and reads what it left."""

    name: ClassVar[str]
    pin: ClassVar[str]
    """Version of the program."""
    layers: ClassVar[Sequence[Layer]]
    needs: Sequence[str] = ("sh",)
    options: ClassVar[Mapping[str, Kind]] = {}
    records: ClassVar[str] = ""
    """Folder, below the run's own, in which the program keeps its records; "": none."""
    names: ClassVar[str] = "*"
    """Pattern of the names of those files there that are its records."""
    placement: Literal["inside"] = "inside"

    def check(self, config: Mapping[str, Any]) -> None:
        """See ``Harness.check``."""
        check_kinds(self.name, config, self.options)

    async def version(self) -> str:
        """Return the pinned version."""
        return self.pin

    async def install(self) -> None:
        """Build its tool layers, once; see ``Harness.install``."""
        await self.tools()

    async def installed(self) -> bool:
        """See ``Harness.installed``."""
        return all(built(layer) for layer in self.layers)

    async def tools(self) -> Sequence[str]:
        """Return its tool layers; see ``Harness.tools``."""
        return [await build(layer) for layer in self.layers]

    async def close(self) -> None:  # noqa: B027 - most have nothing to end
        """Nothing is kept between runs."""

    @abstractmethod
    def launch(self, request: HarnessRequest, home: str) -> Launch:
        """Return how to start a run whose own folder in the sandbox is ``home``."""

    @abstractmethod
    def read(self, left: Left) -> Reading:
        """Read what a run left; it may have been ended at any point."""

    async def run(self, request: HarnessRequest) -> HarnessResult:
        """Run the program once; see ``Harness.run``."""
        self.check(request.config)
        box = request.box
        home = await _make_home(box)
        try:
            launch = self.launch(request, home)
            for path, content in launch.files.items():
                await box.files.write(f"{home}/{path}", content, mode=0o600)
            result = await box.run(
                launch.argv, timeout=request.limits.seconds, cwd=request.workdir, env=_direct(box) | {**launch.env},
                stdin=carried(launch.stdin).encode() or None, output_limit=_OUTPUT,
            )  # fmt: skip
            stdout = request.scratch / "stdout"
            stdout.write_bytes(result.stdout)
            (request.scratch / "stderr").write_bytes(result.stderr)
            left = Left(stdout, await self.collect(request, launch, home, stdout), result)
        finally:
            await finish(_remove(box, home))
        return _verdict(request, result, self.read(left))

    async def collect(self, request: HarnessRequest, launch: Launch, home: str, stdout: Path) -> Sequence[Path]:
        """Return the program's records, fetched from the run's own folder once it has ended; by path."""
        if not self.records:
            return ()
        return await fetch(request.box, f"{home}/{self.records}", request.scratch / "records", self.names)


def program(layer: str, name: str) -> str:
    """Return the path of a program of a tool layer: never the image's own of the same name."""
    return f"{TOOLS}/{layer}/bin/{name}"


async def fetch(box: Sandbox, folder: str, into: Path, names: str = "*") -> list[Path]:
    """Copy the files called ``names`` below ``folder`` of the sandbox; return where they are, by path. No links.

    What is larger than is bearable is left out too, the newest last.
    """
    try:
        entries = await box.files.list(folder, recursive=True)
    except FileMissing:
        return []
    copies, room = [], _RECORDS
    for entry in sorted(entries, key=lambda one: one.path):
        below = PurePosixPath(entry.path.removeprefix(f"{folder}/"))
        if entry.type != "file" or entry.size > room or not below.match(names):
            continue
        if below.is_absolute() or ".." in below.parts:
            continue
        try:
            content = await box.files.read(entry.path, length=entry.size)
        except FileMissing:  # what the program left running has removed it meanwhile
            continue
        room -= entry.size
        copy = into / below
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        copies.append(copy)
    return copies


async def _make_home(box: Sandbox) -> str:
    """Make the run's own folder; ``/var/tmp`` first, since Codex makes none of its helper programs below ``/tmp``.

    Programs tell the model of it, so its name is the same in each new sandbox: prompts of a task's rollouts are equal.
    """
    try:
        return await _make_folder(box, "/var/tmp")
    except FileError:  # a minimal image, of which this user can make no folder
        return await _make_folder(box, "/tmp")


async def _make_folder(box: Sandbox, parent: str) -> str:
    await box.files.mkdir(parent)
    number, path = 1, f"{parent}/orchard-harness"
    while True:
        try:
            await box.files.mkdir(path, parents=False, mode=0o700)
        except FilePresent:  # of another run in the same sandbox
            number += 1
            path = f"{parent}/orchard-harness-{number}"
        else:
            return path


def _direct(box: Sandbox) -> dict[str, str]:
    """Return the variables that keep a proxy of the image's from the endpoint."""
    known = box.info.env.get("NO_PROXY") or box.info.env.get("no_proxy") or ""
    value = ",".join([*filter(None, [known]), "127.0.0.1", "localhost"])
    return {"NO_PROXY": value, "no_proxy": value}


async def _remove(box: Sandbox, home: str) -> None:
    with suppress(OrchardError):  # the sandbox is gone, or will be: what the run came to is what counts
        await box.files.remove(home, recursive=True, missing_ok=True)


def _verdict(request: HarnessRequest, result: Result, read: Reading) -> HarnessResult:
    code = request.last_error()
    if result.timed_out:
        stop, detail = Stop.TIME, f"{request.limits.seconds:g} s of wall time are used up"
    elif read.done:
        stop, detail = Stop.SUBMITTED, ""
    elif read.limit is not None:
        stop, detail = read.limit, read.words
    else:
        stop, detail = ENDS.get(code or "", Stop.FAILED), _trouble(result, read, code)
    submission = read.submission if stop is Stop.SUBMITTED else None
    return HarnessResult(stop, detail, submission, read.turns, tuple(read.events), read.native)


def _trouble(result: Result, read: Reading, code: str | None) -> str:
    end = f"signal {result.signal}" if result.signal else f"exit code {result.exit_code}"
    told = f"; the endpoint's last error was {code}" if code else ""
    killed = "; out of memory" if result.oom_killed else ""
    return f"it ended with {end}{killed}{told}: {read.words or result.error_text or result.text}"[:_WORDS]
