"""The synchronous twin: the same names and arguments, from threads, loops in a row, and after a fork."""

import asyncio
import inspect
import os
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from tests.support.daemon import DaemonBackend
from tests.support.waiting import until

import orchard.sandbox as room
from orchard.core.errors import InvalidArgument, SandboxGone
from orchard.core.tasks import finish
from orchard.sandbox import Orchard, SyncOrchard, generate_sync
from orchard.sandbox.bridge import Bridge
from orchard.sandbox.types import Endpoint, SandboxSpec

PAIRS = [(getattr(room, name), getattr(room, f"Sync{name}")) for name in generate_sync.TWINS]
SPECIAL = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


def fork_quietly() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        return os.fork()


def names(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("plain", "twin"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_twin_has_the_same_names_and_arguments(plain: type, twin: type) -> None:
    left_out = {name for cls, name in generate_sync.LEFT_OUT if cls == plain.__name__}
    assert names(twin) == names(plain) - left_out
    for dunder, expected in SPECIAL.items():
        assert (dunder in vars(plain)) == (expected in vars(twin))
    for name in names(twin):
        mine, other = inspect.getattr_static(twin, name), inspect.getattr_static(plain, name)
        if isinstance(other, property):
            assert isinstance(mine, property)
            continue
        assert not inspect.iscoroutinefunction(mine)
        left, right = (inspect.signature(one).parameters.values() for one in (mine, other))
        assert [(one.name, one.kind, one.default) for one in left] == [
            (one.name, one.kind, one.default) for one in right
        ]
        assert mine.__doc__


def test_twin_is_up_to_date() -> None:
    assert Path(inspect.getfile(SyncOrchard)).read_text() == generate_sync.generate(), (
        "python -m orchard.sandbox.generate_sync"
    )


@pytest.fixture
def backend(short_path: Path) -> DaemonBackend:
    return DaemonBackend(short_path)


def test_everything_works_without_await(backend: DaemonBackend, tmp_path: Path) -> None:
    with SyncOrchard(backend=backend) as orchard, orchard.sandbox("host") as box:
        assert box.run("cat", stdin=iter([b"a", b"b"])).check().text == "ab"
        box.files.write("f", iter([b"x" * 10, b"y"]))
        assert b"".join(box.files.open_read("f")) == b"x" * 10 + b"y"
        process = box.start("read line; echo got $line; sleep 60", stdin=True)
        process.send("it\n")
        lines = process.lines()
        assert next(lines) == "got it"
        lines.close()
        assert process.kill().cancelled
        assert [event.data for event in box.attach(process.id)] == [b"got it\n"]
        with pytest.raises(InvalidArgument):
            box.run("true", timeout=0)
        (tmp_path / "d").mkdir()
        (tmp_path / "d/a").write_text("1")
        assert box.upload(tmp_path / "d", "d").files == 1
        with box.forward(1) as port:
            assert port
        box_id = box.id
        assert [info.id for info in orchard.list()] == [box_id]
    with SyncOrchard(backend=backend) as orchard, pytest.raises(SandboxGone):
        orchard.attach(box_id)
    assert not [thread for thread in threading.enumerate() if thread.name == "orchard-sync"]


def test_an_error_in_the_block_still_deletes(backend: DaemonBackend) -> None:
    with SyncOrchard(backend=backend) as orchard:
        with pytest.raises(ZeroDivisionError), orchard.sandbox("host"):
            raise ZeroDivisionError
        assert orchard.list() == []


def test_many_threads_share_one_client(backend: DaemonBackend) -> None:
    with SyncOrchard(backend=backend) as orchard, orchard.sandbox("host") as box, ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda number: box.run(["echo", str(number)]).text.strip(), range(100)))
        assert texts == [str(number) for number in range(100)]


def test_a_fork_after_use_works_and_leaves_the_parent_whole(backend: DaemonBackend) -> None:
    owned = SyncOrchard(backend=backend).sandbox("host")
    with owned as box:
        assert box.run("echo parent").text == "parent\n"
        child = fork_quietly()
        if child == 0:
            try:
                worked = box.run("echo child").text == "child\n"
                owned.__exit__(None, None, None)  # the child leaves the block: the sandbox stays the parent's
                os._exit(0 if worked else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert box.run("echo parent").text == "parent\n"


def test_two_loops_in_a_row_share_one_client(backend: DaemonBackend) -> None:
    orchard = Orchard(backend=backend)

    async def make() -> str:
        box = await orchard.create("host")
        await box.run("true")
        return box.id

    async def use(box_id: str) -> str:
        box = await orchard.attach(box_id)
        return (await box.run("echo again")).text

    async def end(box_id: str) -> None:
        await orchard.delete(box_id)

    box_id = asyncio.run(make())
    assert asyncio.run(use(box_id)) == "again\n"
    child = fork_quietly()
    if child == 0:
        try:
            os._exit(0 if asyncio.run(use(box_id)) == "again\n" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert asyncio.run(use(box_id)) == "again\n"
    asyncio.run(end(box_id))


def test_uvloop_serves_as_well(backend: DaemonBackend) -> None:
    orchard = Orchard(backend=backend)

    async def main() -> int:
        async with orchard.sandbox("host") as box, box.reverse(0, "tcp:127.0.0.1:1"):
            return (await box.run("cat", stdin=bytes(3 << 20))).stdout_bytes

    assert [uvloop.run(main()) for _ in range(2)] == [3 << 20] * 2


def test_one_box_in_two_loops_and_threads_at_once(backend: DaemonBackend) -> None:
    orchard = Orchard(backend=backend)
    box = asyncio.run(orchard.create("host"))

    async def many() -> list[str]:
        return [result.text for result in await asyncio.gather(*(box.run("echo x") for _ in range(20)))]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: asyncio.run(many()), range(4))) == [["x\n"] * 20] * 4
    asyncio.run(box.delete())


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """What Ctrl-C does to the main thread, from any thread."""
    main = threading.get_ident()
    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    made = Bridge()
    yield made
    made.stop()


def test_an_interrupted_call_waits_until_its_work_has_cleaned_up(bridge: Bridge, interrupt: Callable[[], None]) -> None:
    done = list[str]()

    async def tidy() -> None:
        await asyncio.sleep(0.2)  # who does not wait for it would be quicker
        done.append("tidied")

    async def work() -> None:
        try:
            interrupt()
            await asyncio.get_running_loop().create_future()
        finally:
            await finish(tidy())

    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            bridge.call(work())
        assert done == ["tidied"]
        done.clear()


def test_a_second_interrupt_ends_the_wait(
    bridge: Bridge, interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.sandbox.bridge._GRACE", 600.0)
    go, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            interrupt()
            await asyncio.get_running_loop().create_future()
        finally:
            interrupt()
            await finish(asyncio.to_thread(go.wait))
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        bridge.call(work())
    assert not ended.is_set()
    go.set()
    assert ended.wait(60)


def test_a_block_that_is_interrupted_once_it_was_entered_is_left(bridge: Bridge, interrupt: Callable[[], None]) -> None:
    steps = list[str]()

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        interrupt()
        steps.append("entered")
        try:
            yield
        finally:
            steps.append("left")

    for _ in range(5):
        with pytest.raises(KeyboardInterrupt), bridge.block(block()):
            pass
        assert steps == ["entered", "left"]
        steps.clear()


def test_a_block_that_cannot_be_left_holds_up_no_interrupt(
    bridge: Bridge, interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.sandbox.bridge._GRACE", 0.1)
    go, left = threading.Event(), threading.Event()

    @asynccontextmanager
    async def block() -> AsyncIterator[None]:
        interrupt()
        try:
            yield
        finally:
            await finish(asyncio.to_thread(go.wait))
            left.set()

    with pytest.raises(KeyboardInterrupt), bridge.block(block()):
        pass
    assert not left.is_set()
    go.set()
    assert left.wait(60)


def test_a_sandbox_whose_block_is_interrupted_on_entering_is_deleted(
    backend: DaemonBackend, interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = backend.endpoint

    async def interrupted(sandbox_id: str) -> Endpoint:
        interrupt()
        return await endpoint(sandbox_id)

    monkeypatch.setattr(backend, "endpoint", interrupted)
    with SyncOrchard(backend=backend) as orchard:
        with pytest.raises(KeyboardInterrupt), orchard.sandbox("host"):
            pass
        assert backend.created == 1
        assert orchard.list() == []


def test_interrupting_run_ends_the_command_also_where_the_program_ends_at_once(backend: DaemonBackend) -> None:
    box_id = asyncio.run(backend.create(SandboxSpec("host"), "key")).id
    child = fork_quietly()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            SyncOrchard(backend=backend).attach(box_id).run("sleep 600", key="long")
        except KeyboardInterrupt:
            os._exit(7)
        finally:
            os._exit(2)

    async def watch() -> None:
        box = await Orchard(backend=backend).attach(box_id)

        async def runs() -> bool:
            return [known.id for known in await box.processes() if known.state == "running"] == ["long"]

        await until(runs)
        os.kill(child, signal.SIGINT)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7  # noqa: ASYNC222
        status = await (await box.attach("long")).poll()
        assert status is not None
        assert status.cancelled
        await box.delete()

    try:
        asyncio.run(watch())
    finally:
        asyncio.run(backend.delete(box_id))
