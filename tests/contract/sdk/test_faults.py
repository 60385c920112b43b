"""Broken connections: a command never runs twice, and a break is never an exit."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from tests.support.daemon import DaemonBackend
from tests.support.waiting import until

from orchard.core.errors import CommandLost, InvalidArgument, Unavailable
from orchard.sandbox import Orchard, Sandbox, transport
from orchard.sandbox.conformance.faulty import NONE, Fault, Faulty, Kind, faulty
from orchard.sandbox.types import Endpoint


@asynccontextmanager
async def behind(
    orchard: Orchard, daemon: DaemonBackend, box: Sandbox, folder: Path, choose: Callable[[int], Fault]
) -> AsyncIterator[tuple[Sandbox, Faulty]]:
    """A second handle to ``box``, through a proxy that misbehaves."""
    true = daemon.endpoints[box.id]
    async with faulty(true.base, choose, folder / "proxy") as (proxy, address):
        daemon.endpoints[box.id] = replace(true, base=address)
        try:
            other = await orchard.attach(box.id)
            yield other, proxy
            await other.close()
        finally:
            daemon.endpoints[box.id] = true


def each_fault(number: int, chance: random.Random) -> Fault:
    """The kinds in turn, so that each is met: the first of each at once, and no connection is sound for ever."""
    most = 100 if number < 6 else 900
    return [
        Fault(refuse=True),
        Fault(bad_gateway="before"),
        Fault(bad_gateway="after"),
        Fault(cut_request=chance.randrange(1, most)),
        Fault(cut_answer=chance.randrange(1, most)),
        Fault(duplicate=True, cut_answer=4000),
    ][number % 6]


@pytest.mark.slow
async def test_a_command_under_faults_runs_once_two_hundred_times(
    orchard: Orchard, daemon: DaemonBackend, box: Sandbox, short_path: Path
) -> None:
    chance = random.Random(16)
    async with behind(orchard, daemon, box, short_path, lambda number: each_fault(number, chance)) as (other, proxy):
        limit = asyncio.Semaphore(20)

        async def one(number: int) -> None:
            path = f"{box.info.workdir}/f{number}"
            async with limit:
                result = await other.run(f"echo x >> {path}; echo {number}; exit 7")
            assert (result.stdout, result.exit_code) == (b"%d\n" % number, 7)

        await asyncio.gather(*(one(number) for number in range(200)))
        assert set(proxy.injected) == set(get_args(Kind)) - {"delay"}
    counts = await box.run("cat f* | wc -l; ls f* | wc -l")
    assert counts.text.split() == ["200", "200"]


async def test_output_cut_anywhere_is_still_whole(
    orchard: Orchard, daemon: DaemonBackend, box: Sandbox, short_path: Path
) -> None:
    chance = random.Random(21)
    async with behind(
        orchard, daemon, box, short_path, lambda _: Fault(cut_answer=chance.randrange(100_000, 900_000))
    ) as (other, proxy):
        result = await other.run("seq 1 1000000", output_limit=16 << 20)
        whole = "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()
        assert result.stdout == whole
        bounded = await other.run("seq 1 1000000", output_limit=300_000)
        assert bounded.stdout == whole[:150_000] + whole[-150_000:]
        process = await other.start("seq 1 1000000")
        assert b"".join([event.data async for event in process]) == whole
        assert b"".join([piece async for piece in other.output(process.id)]) == whole
        assert proxy.injected["cut_answer"] > 10


async def test_stdin_and_files_survive_cuts(
    orchard: Orchard, daemon: DaemonBackend, box: Sandbox, short_path: Path
) -> None:
    chance = random.Random(24)
    data = random.Random(1).randbytes(6 << 20)

    def choose(number: int) -> Fault:
        """A whole body gets through now and then; an answer with all of it never does."""
        return Fault(cut_request=chance.randrange(1 << 20, 12 << 20), cut_answer=chance.randrange(1 << 20, 5 << 20))

    async with behind(orchard, daemon, box, short_path, choose) as (other, proxy):
        for _ in range(3):
            assert (await other.run(["wc", "-c"], stdin=data)).text.split() == [str(len(data))]
            await other.files.write("big", data)
            assert await other.files.read("big") == data
            await other.files.write("log", b"")
            for line in range(3):
                await other.files.append("log", data[: 2 << 20] + b"%d" % line)
            assert (await box.files.stat("log")).size == 3 * ((2 << 20) + 1)
        assert proxy.injected["cut_request"] > 0
        assert proxy.injected["cut_answer"] > 0


async def test_a_stream_without_exit_is_lost_never_zero(
    orchard: Orchard, daemon: DaemonBackend, box: Sandbox, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.sandbox.streams.RETRY_WINDOW", 0.5)
    async with behind(orchard, daemon, box, short_path, lambda _: Fault(cut_answer=400)) as (other, _):
        with pytest.raises(CommandLost):
            await other.run("sleep 0.2; true")


async def test_nothing_sent_is_unavailable(
    orchard: Orchard, daemon: DaemonBackend, box: Sandbox, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard.sandbox.streams.RETRY_WINDOW", 0.5)
    true = daemon.endpoints[box.id]
    daemon.endpoints[box.id] = replace(true, base=f"unix:{short_path}/nobody")
    other = await orchard.attach(box.id)
    with pytest.raises(Unavailable) as caught:
        await other.run("true")
    assert caught.value.reason == "not_sent"
    daemon.endpoints[box.id] = true


async def test_a_stranger_is_no_answer(box: Sandbox, daemon: DaemonBackend) -> None:
    true = daemon.endpoints[box.id]
    wire = transport.Transport(Endpoint(true.base, true.prefix, true.headers, sandbox_id="sb-another"))
    with pytest.raises(Unavailable) as caught:
        await wire.request(transport.Call("GET", "/health", window=0.2))
    assert caught.value.reason == "broken"
    headers = {**true.headers, "Orchard-Sandbox": "sb-another"}
    recycled = transport.Transport(Endpoint(true.base, true.prefix, headers, sandbox_id="sb-another"))
    with pytest.raises(Unavailable):
        await recycled.request(
            transport.Call("POST", "/processes", json={"id": "x", "shell": "touch pwned"}, window=0.2)
        )
    assert not await box.files.exists("pwned")
    await wire.close()
    await recycled.close()


async def test_moving_the_endpoint_is_followed(
    box: Sandbox, daemon: DaemonBackend, orchard: Orchard, short_path: Path
) -> None:
    true = daemon.endpoints[box.id]
    async with faulty(true.base, lambda _: NONE, short_path / "proxy") as (_, address):
        daemon.endpoints[box.id] = replace(true, base=address)
        other = await orchard.attach(box.id)
        running = asyncio.ensure_future(other.run("sleep 0.5; echo done"))
        await asyncio.sleep(0.2)
        daemon.endpoints[box.id] = true
    assert (await running).stdout == b"done\n"
    await other.close()


async def test_aborted_requests_leave_nothing_stuck(box: Sandbox) -> None:
    chance = random.Random(10)

    async def abort() -> None:
        call = asyncio.ensure_future(box.run("true"))
        await asyncio.sleep(chance.uniform(0, 0.02))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    for _ in range(20):
        await asyncio.gather(*(abort() for _ in range(10)))
    assert (await box.run("echo fine")).stdout == b"fine\n"

    async def none_runs() -> bool:
        return not any(status.running for status in await box.processes())

    await until(none_runs)


async def test_unknown_option_is_named(box: Sandbox) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await box.run("true", retries=3)  # type: ignore[call-arg]
    assert caught.value.field == "retries"
