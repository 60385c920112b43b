"""``Sandbox.run`` and ``Process`` over the real wire."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from tests.support.daemon import DaemonBackend, start_unheard
from tests.support.waiting import PATIENT, until

from orchard.core.errors import (
    CommandFailed,
    CommandNotStarted,
    CommandTimeout,
    Conflict,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    SandboxGone,
)
from orchard.sandbox import Orchard, Output, Sandbox
from orchard.sandbox.transport import RETRY_WINDOW


async def test_result_holds_every_fact_in_its_own_field(box: Sandbox) -> None:
    result = await box.run("printf out; printf err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.signal) == (b"out", b"err", 3, None)
    assert not result.ok
    assert not result.timed_out
    assert not result.truncated
    with pytest.raises(CommandFailed) as caught:
        result.check()
    assert caught.value.result is result
    assert (await box.run(["printf", "%s", "a b"])).check().text == "a b"


async def test_death_by_signal_says_which(box: Sandbox) -> None:
    result = await box.run("kill -SEGV $$")
    assert (result.exit_code, result.signal) == (None, "SEGV")


async def test_timeout_is_a_flag_and_keeps_the_output(box: Sandbox) -> None:
    for seconds in PATIENT:
        result = await box.run("echo before; sleep 1000; echo hello", timeout=seconds)
        assert result.timed_out
        if result.stdout:  # a shell that has not begun within a second has said nothing yet
            break
    else:
        pytest.fail("what was said before is not kept")
    assert result.stdout == b"before\n"
    with pytest.raises(CommandTimeout):
        result.check()


@pytest.mark.parametrize("wrong", [-1, 0, float("nan"), 1e12, "5", True])
async def test_timeouts_are_checked_by_name(box: Sandbox, wrong: float) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await box.run("true", timeout=wrong)
    assert caught.value.field == "timeout"


async def test_options_reach_the_command(box: Sandbox) -> None:
    result = await box.run('pwd; echo "$A"; echo oops >&2', cwd="/tmp", env={"A": "x y\n'é"}, merge=True)
    assert result.stdout == "/tmp\nx y\n'é\noops\n".encode()
    assert result.stderr == b""
    with pytest.raises(InvalidArgument) as caught:
        await box.run("true", env={"A": "nul\0"})
    assert caught.value.field == "env"


async def test_what_did_not_start_says_why(box: Sandbox) -> None:
    with pytest.raises(CommandNotStarted) as caught:
        await box.run(["/nowhere/at/all"])
    assert caught.value.reason == "program_not_found"
    with pytest.raises(CommandNotStarted) as caught:
        await box.run("true", cwd="/nowhere")
    assert caught.value.reason == "cwd_missing"


async def test_same_key_is_the_same_run(box: Sandbox) -> None:
    path = f"{box.info.workdir}/f"
    first = await box.run(f"echo x >> {path}; echo $$", key="once")
    second = await box.run(f"echo x >> {path}; echo $$", key="once")
    assert first == second
    assert await box.files.read(path) == b"x\n"


async def test_stdin_is_closed_or_bytes_or_an_iterator(box: Sandbox) -> None:
    assert (await box.run("cat; echo after")).stdout == b"after\n"
    assert (await box.run(["cat"], stdin=b"a\0b")).stdout == b"a\0b"

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%d\n" % number

    assert (await box.run(["sh", "-c", "wc -l"], stdin=pieces())).text.strip() == "100"


async def test_large_stdin_arrives_whole_and_a_large_script_runs(box: Sandbox) -> None:
    data = os.urandom(1 << 20) * 48
    result = await box.run(["wc", "-c"], stdin=data)
    assert result.text.strip() == str(len(data))
    script = "# " + "x" * 3_000_000 + "\necho ran"
    assert (await box.run(script)).stdout == b"ran\n"


async def test_a_command_that_ignores_its_stdin_ends_the_run(box: Sandbox) -> None:
    result = await box.run("exit 4", stdin=bytes(16 << 20))
    assert result.exit_code == 4


async def test_an_error_in_the_stdin_iterator_comes_out_as_itself_and_ends_the_command(box: Sandbox) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await box.run("cat > /dev/null; sleep 60", stdin=broken(), key="fed")
    assert (await (await box.attach("fed")).wait(60)).cancelled


async def test_output_is_exact_and_bounded_with_its_cut(box: Sandbox) -> None:
    result = await box.run("printf 'a\\n\\n\\0\\377'")
    assert result.stdout == b"a\n\n\0\xff"
    result = await box.run("seq 1 3000000", output_limit=1000)
    whole = "".join(f"{number}\n" for number in range(1, 3_000_001)).encode()
    assert len(result.stdout) == 1000
    assert result.stdout_cut == 500
    assert result.stdout_bytes == len(whole)
    assert result.stdout_dropped == len(whole) - 1000
    assert result.stdout == whole[:500] + whole[-500:]
    fetched = b"".join([piece async for piece in box.output(result.id)])
    assert fetched == whole
    assert b"".join([piece async for piece in box.output(result.id, offset=10, length=7)]) == whole[10:17]


async def test_exit_never_overtakes_the_last_output(box: Sandbox) -> None:
    results = await asyncio.gather(*(box.run("echo x; exit 3") for _ in range(50)))
    assert {(result.stdout, result.exit_code) for result in results} == {(b"x\n", 3)}


async def test_more_commands_at_once_than_a_pool_has_connections(box: Sandbox) -> None:
    ours = f"600.{os.getpid()}"  # these sandboxes see all processes of the machine, and those of other tests
    runs = [asyncio.ensure_future(box.run(["sleep", ours])) for _ in range(150)]

    async def all_run() -> bool:
        return sum(status.running for status in await box.processes()) == 150

    await until(all_run)
    await box.run(f"while pkill -f '^sleep {ours}$'; do sleep 0.1; done")
    assert {result.signal for result in await asyncio.gather(*runs)} == {"TERM"}


async def test_cancelling_run_ends_its_whole_tree(box: Sandbox) -> None:
    ours = f"777.{os.getpid()}"
    running = asyncio.ensure_future(box.run(f"setsid sleep {ours} & sleep {ours}", key="victim"))

    async def both_run() -> bool:
        return (await box.run(f"pgrep -cf '^sleep {ours}$'")).text.strip() == "2"

    await until(both_run)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await (await box.attach("victim")).poll()).cancelled  # type: ignore[union-attr]
    assert (await box.run(f"pgrep -f '^sleep {ours}$'")).exit_code == 1


async def test_started_process_streams_takes_stdin_and_outlives_its_handle(box: Sandbox) -> None:
    process = await box.start(["cat"], stdin=True)
    await process.send("one\n")
    events = aiter(process)
    assert await anext(events) == Output("stdout", b"one\n", 0)
    assert await process.poll() is None
    with pytest.raises(DeadlineExceeded):
        await process.wait(0.2)
    other = await box.attach(process.id, stdout=4)
    await other.send(b"two\n")
    await other.close_stdin()
    assert [event async for event in other] == [Output("stdout", b"two\n", 4)]
    assert await anext(events) == Output("stdout", b"two\n", 4)
    await events.aclose()  # type: ignore[attr-defined]
    assert (await process.wait(60)).exit_code == 0
    assert (await process.result()).stdout == b"one\ntwo\n"
    with pytest.raises(Conflict):
        await process.send(b"late")


async def test_signals_and_kill(box: Sandbox) -> None:
    process = await box.start("trap 'echo got; exit 9' INT; echo ready; while :; do sleep 0.05; done")
    async with aclosing(process.lines()) as lines:
        assert await anext(lines) == "ready"
        await process.signal("INT")
        assert await anext(lines) == "got"
    assert (await process.wait(60)).exit_code == 9
    process = await box.start(["sleep", "60"])
    assert (await process.kill()).signal == "KILL"


async def test_text_never_splits_a_character(box: Sandbox) -> None:
    process = await box.start(["python3", "-c", "print('é' * 400000, end='')"])
    pieces = [piece async for piece in process.text()]
    assert "".join(pieces) == "é" * 400_000
    process = await box.start(r"printf 'a\nb\303'; sleep 0.2; printf '\251\nlast\377'")
    assert [line async for line in process.lines("stdout")] == ["a", "bé", "last\ufffd"]


async def test_unknown_process_is_not_found(box: Sandbox) -> None:
    with pytest.raises(NotFound):
        await box.attach("nobody")


async def test_a_gone_sandbox_says_so_quickly(orchard: Orchard, daemon: DaemonBackend) -> None:
    async with orchard.sandbox("host") as box:
        running = asyncio.ensure_future(box.run("sleep 60"))
        await box.run("true")
        daemon.kill(box.id)
        start = time.monotonic()
        for call in (running, box.run("true"), box.files.read("/etc/hostname"), box.start("true")):
            with pytest.raises(SandboxGone) as caught:
                await call
            assert caught.value.reason == "signal"
        assert time.monotonic() - start < RETRY_WINDOW, "it was tried again"
        with pytest.raises(SandboxGone):
            await orchard.attach(box.id)


async def test_many_megabytes_stream_while_the_loop_ticks(box: Sandbox) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.ensure_future(turn())
    process = await box.start("head -c 100000000 /dev/zero")
    size, within, most, seen = 0, 0, 0, 0
    async for event in process:
        size += len(event.data)
        within = len(event.data) + (within if turns == seen else 0)
        seen, most = turns, max(most, within)
    turning.cancel()
    assert size == 100_000_000
    assert most < 4 << 20, "taken without a turn for anybody else"


@pytest.mark.parametrize("key", [None, "mine"])
async def test_a_start_that_is_cut_off_ends_the_command_unless_its_key_finds_it(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    with monkeypatch.context() as patch:
        started = start_unheard(patch)
        starting = asyncio.ensure_future(box.start("sleep 600", key=key))
        await started.wait()
        assert [status.running for status in await box.processes()] == [True]
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    if key is None:
        assert not [status for status in await box.processes() if status.running]
    else:
        again = await box.start("sleep 600", key=key)
        assert [status.id for status in await box.processes() if status.running] == [again.id]
