"""The store: durable, torn anywhere, many writers, a full disk, an index that is only a cache."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard.core.errors import InvalidArgument, NotFound, StoreFailed
from orchard.trajectories import CallRecord, CallTimes, Failure, RolloutRecord, SessionRecord, Store
from orchard.trajectories import segments as segments_module

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def call(number: int, session: str = "se-1") -> CallRecord:
    return CallRecord(
        id=f"call-{number}", session=session, index=number, dialect="chat", model="m", engine="script",
        messages=[{"role": "user", "content": f"é {number} \ud800"}], answer={"role": "assistant", "content": "ok"},
        times=CallTimes(received=NOW), response_id=f"chatcmpl-{number}",
    )  # fmt: skip


def carried(record: CallRecord) -> CallRecord:
    return record.model_copy(update={"messages": [{"role": "user", "content": f"é {record.index} \ufffd"}]})


def rollout(name: str, sessions: list[str], **facts: object) -> RolloutRecord:
    base: dict[str, object] = dict(
        id=name, run="r1", task="t1", attempt=0, tries=len(sessions), sessions=sessions, harness="loop",
        harness_version="1", policy="p", model="m", started_at=NOW,
    )  # fmt: skip
    return RolloutRecord.model_validate(base | facts)


def segment_files(path: Path) -> list[Path]:
    return sorted((path / "segments").iterdir())


async def test_append_and_join(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        await store.append(SessionRecord(session="se-1", at=NOW))
        await asyncio.gather(*(store.append(call(n)) for n in range(50)))
        await store.append(call(0, "se-other"))
        await store.append(rollout("ro-1", ["se-0", "se-1"], reward=0.5))
        trajectory = store.trajectory("ro-1")
    assert trajectory.rollout is not None
    assert trajectory.rollout.reward == 0.5
    assert [c.index for c in trajectory.calls] == list(range(50))
    assert trajectory.calls[7] == carried(call(7)), "halves of surrogate pairs are no text that others could read"
    assert {s.session for s in trajectory.sessions} == {"se-1"}
    with pytest.raises(NotFound):
        store.trajectory("ro-2")


async def test_concurrent_appends_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    real = os.fdatasync

    def counting(fd: int) -> None:
        nonlocal syncs
        syncs += 1
        real(fd)

    monkeypatch.setattr(segments_module.os, "fdatasync", counting)
    with Store(tmp_path) as store:
        await asyncio.gather(*(store.append(call(n)) for n in range(500)))
    assert 1 <= syncs < 100
    assert len(list(store.records())) == 500


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1), batches=st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_cut_at_any_byte(tmp_path_factory: pytest.TempPathFactory, cut: float, batches: list[int]) -> None:
    path = tmp_path_factory.mktemp("cut")
    ends: list[tuple[int, int]] = [(0, 0)]
    number = 0

    async def batch(store: Store, first: int, count: int) -> None:
        await asyncio.gather(*(store.append(call(n)) for n in range(first, first + count)))

    with Store(path) as store:
        for count in batches:
            asyncio.run(batch(store, number, count))
            number += count
            ends.append((segment_files(path)[0].stat().st_size, number))
        assert len(store.session("se-1").calls) == number  # the index has seen all of it
    segment = segment_files(path)[0]
    length = round(cut * segment.stat().st_size)
    os.truncate(segment, length)
    whole = max(count for size, count in ends if size <= length)
    with Store(path) as again:
        again.append_now(call(1000, "se-2"))
        read = [r.index for r in again.records() if isinstance(r, CallRecord) and r.session == "se-1"]
        assert read[:whole] == list(range(whole))
        assert read == list(range(len(read)))
        assert [c.index for c in again.session("se-2").calls] == [1000]
        if whole:
            assert len(again.session("se-1").calls) == len(read)


@settings(max_examples=30, deadline=None)
@given(garbage=st.binary(min_size=1, max_size=64))
def test_garbage_behind_the_last_frame(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.mktemp("garbage")
    with Store(path) as store:
        store.append_now(call(0))
    with segment_files(path)[0].open("ab") as file:
        file.write(garbage)
    with Store(path) as again:
        again.append_now(call(1))
        assert [c.index for c in again.session("se-1").calls] == [0, 1]


@settings(max_examples=40, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), harm=st.integers(1, 255), length=st.integers(1, 40))
def test_harm_in_the_middle_costs_what_it_touches(
    tmp_path_factory: pytest.TempPathFactory, where: float, harm: int, length: int
) -> None:
    path = tmp_path_factory.mktemp("harm")
    ends = [0]
    with Store(path) as store:
        for n in range(6):
            store.append_now(call(n))
            ends.append(segment_files(path)[0].stat().st_size)
    segment = segment_files(path)[0]
    data = bytearray(segment.read_bytes())
    start = int(where * len(data))
    stop = min(start + length, len(data))
    data[start:stop] = bytes(byte ^ harm for byte in data[start:stop])
    segment.write_bytes(data)
    whole = [n for n in range(6) if ends[n + 1] <= start or ends[n] >= stop]
    with Store(path) as again:
        assert [c.index for c in again.session("se-1").calls] == whole
        assert sum(one.size for one in again.damage()) == len(data) - sum(ends[n + 1] - ends[n] for n in whole)
        assert all(one.tail == (one.offset + one.size == len(data)) for one in again.damage())


def test_queries(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append_now(rollout("ro-1", ["a"], reward=1.0, labels={"kind": "x y"}, stop="submitted"))
        store.append_now(rollout("ro-2", ["b"], reward=0.0, task="t2", policy="gold"))
        failure = Failure(seam="sandbox", reason="oom", text="gone")
        store.append_now(rollout("ro-3", ["c"], run="r2", failure=failure))
        store.append_now(rollout("ro-1", ["a2"], reward=0.0))  # closed twice: the first record counts

        def ids(where: str = "", params: tuple[object, ...] = ()) -> list[str]:
            return [row.id for row in store.rollouts(where, params)]

        assert ids() == ["ro-1", "ro-2", "ro-3"]
        assert ids("reward >= ?", (0.5,)) == ["ro-1"]
        assert ids("label(labels, 'kind') = ?", ("x y",)) == ["ro-1"]
        assert ids("failure = 'sandbox' AND run = ?", ("r2",)) == ["ro-3"]
        assert ids("task = 't2' AND policy = 'gold' AND harness = 'loop' AND stop IS NULL") == ["ro-2"]
        assert len(list(store.rollouts(limit=2))) == 2
        row = next(store.rollouts("id = 'ro-1'"))
        assert (row.started_at, row.labels, row.sessions, row.stop) == (NOW, {"kind": "x y"}, ["a"], "submitted")
        assert store.rollout("ro-1").reward == 1.0
        with pytest.raises(InvalidArgument):
            ids("nonsense ((")
        with pytest.raises(InvalidArgument):
            ids("1=1; DROP TABLE rollouts")


@pytest.mark.parametrize("rewards", [[None, 0.5, 1.0], [0.5, None, 1.0], [None, None, 0.5]])
def test_a_record_without_a_failure_goes_before_those_with_one(tmp_path: Path, rewards: list[float | None]) -> None:
    failure = Failure(seam="sandbox", reason="oom", text="gone")
    with Store(tmp_path) as store:
        for number, reward in enumerate(rewards):
            why = failure if reward is None else None
            store.append_now(rollout("ro-1", [f"s{number}"], reward=reward, failure=why))
            assert [row.id for row in store.rollouts()] == ["ro-1"], "one row, whatever was read when"
        assert store.rollout("ro-1").reward == 0.5


def test_sessions_without_a_closing_record(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append_now(SessionRecord(session="se-1", at=NOW, labels={"run": "r1"}))
        store.append_now(SessionRecord(session="se-2", at=NOW))
        store.append_now(call(0, "se-1"))
        store.append_now(rollout("ro-1", ["se-2"]))
        (open_one,) = store.aborted()
        assert (open_one.session, open_one.labels, open_one.live) == ("se-1", {"run": "r1"}, True)
    (left,) = Store(tmp_path).aborted()
    assert left.live is False
    assert len(Store(tmp_path).session("se-1").calls) == 1


@pytest.mark.parametrize("harm", ["missing", "garbage", "truncated", "other_version"])
def test_the_index_is_a_cache(tmp_path: Path, harm: str) -> None:
    with Store(tmp_path) as store:
        for n in range(20):
            store.append_now(call(n))
        store.append_now(rollout("ro-1", ["se-1"]))
        assert len(store.trajectory("ro-1").calls) == 20
    index = tmp_path / "index.sqlite"
    for extra in tmp_path.glob("index.sqlite-*"):
        extra.unlink()
    if harm == "missing":
        index.unlink()
    elif harm == "garbage":
        index.write_bytes(os.urandom(20_000))
    elif harm == "truncated":
        os.truncate(index, index.stat().st_size // 2)
    else:
        import sqlite3

        with sqlite3.connect(index) as db:
            db.execute("PRAGMA user_version = 77")
            db.execute("DROP TABLE frames")
        db.close()
    assert len(Store(tmp_path).trajectory("ro-1").calls) == 20


def test_rotation(tmp_path: Path) -> None:
    with Store(tmp_path, segment_bytes=2000) as store:
        for n in range(40):
            store.append_now(call(n))
        assert len(segment_files(tmp_path)) > 3
        assert [c.index for c in store.session("se-1").calls] == list(range(40))


def test_full_disk_is_typed_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    full = False

    def write(fd: int, data: bytes) -> int:
        if full and len(data) > 64:
            return real(fd, data[:64])  # a part still fits
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(segments_module.os, "write", write)
    with Store(tmp_path) as store:
        store.append_now(call(0))
        full = True
        for _ in range(2):
            with pytest.raises(StoreFailed) as caught:
                store.append_now(call(1))
            assert caught.value.reason == "no_space"
        full = False
        store.append_now(call(2))
        assert [c.index for c in store.session("se-1").calls] == [0, 2]
    assert [c.index for c in Store(tmp_path).session("se-1").calls] == [0, 2]


def test_a_failed_sync_abandons_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path) as store:
        store.append_now(call(0))

        def broken(fd: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(segments_module.os, "fdatasync", broken)
            with pytest.raises(StoreFailed) as caught:
                store.append_now(call(1))
        assert caught.value.reason == "io"
        store.append_now(call(2))
        assert len(segment_files(tmp_path)) == 2
        assert [c.index for c in store.session("se-1").calls] == [0, 2]


def test_closed_and_unwritable(tmp_path: Path) -> None:
    store = Store(tmp_path / "a")
    store.close()
    with pytest.raises(StoreFailed) as caught:
        store.append_now(call(0))
    assert caught.value.reason == "closed"
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed):
        Store(tmp_path / "file" / "b")


_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_store import call
from orchard.trajectories import Store
store = Store(Path(sys.argv[1]))
n = 0
while n < int(sys.argv[4]):
    store.append_now(call(n, sys.argv[2])); n += 1
    print(n, flush=True)
"""


def writer(path: Path, session: str, count: int) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", _WRITER, str(path), session, str(Path(__file__).parent), str(count)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def test_several_processes_write_while_one_reads(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writers = [writer(tmp_path, f"se-{k}", 150) for k in range(3)]
    seen = 0
    while any(process.poll() is None for process in writers):
        count = sum(1 for _ in store.records())
        assert count >= seen
        seen = count
        list(store.rollouts())
    for process in writers:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 0
    for k in range(3):
        assert [c.index for c in store.session(f"se-{k}").calls] == list(range(150))


def test_a_record_that_was_being_written_is_found_once_another_has_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader meets half of it, and while it looks for what comes next the writer goes on."""
    with Store(tmp_path) as store:
        store.append_now(call(0, "se"))
        (segment,) = (tmp_path / "segments").iterdir()
        half = segment.stat().st_size + 40
        store.append_now(call(1, "se"))
        store.append_now(call(2, "se"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:half])
    look = segments_module._next_frame

    def later(*where: Any) -> int | None:
        segment.write_bytes(whole)
        return look(*where)

    monkeypatch.setattr(segments_module, "_next_frame", later)
    assert [each.index for each in store.session("se").calls] == [0, 1, 2]


def test_a_fork_writes_to_a_file_of_its_own(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append_now(call(0))
        with warnings.catch_warnings():  # newer Pythons warn of what is tried here: a fork beside a thread
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            store.append_now(call(1))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        store.append_now(call(2))
        assert [c.index for c in store.session("se-1").calls] == [0, 1, 2]
    assert len(segment_files(tmp_path)) == 2


def test_kill_9_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    process = writer(tmp_path, "se-1", 10**9)
    assert process.stdout is not None
    for _ in range(100):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    acknowledged = 100 + len(process.stdout.readlines())
    process.stdout.close()
    process.wait()
    with Store(tmp_path) as store:
        assert len(store.session("se-1").calls) >= acknowledged
        store.append_now(call(0, "se-2"))
        assert len(store.session("se-2").calls) == 1


_FULL = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_store import call
from orchard.core.errors import StoreFailed
from orchard.trajectories import Store
folder = Path(sys.argv[1])
filler = folder / "filler"
filler.write_bytes(bytes(200_000))
acknowledged = []
with Store(folder) as store:
    for n in range(10_000):
        try:
            store.append_now(call(n).model_copy(update={"finish_reason": os.urandom(400).hex()}))
            acknowledged.append(n)
        except StoreFailed as failed:
            assert failed.reason == "no_space", failed.reason
            break
    else:
        raise AssertionError("the disk never filled")
    assert [r.index for r in store.records()] == acknowledged
    try:
        list(store.rollouts())
        raise AssertionError("no room for an index")
    except StoreFailed as failed:
        assert failed.reason == "no_space", failed
    filler.unlink()
    store.append_now(call(77_777))
    assert [r.index for r in store.records()] == [*acknowledged, 77_777]
    assert [c.index for c in store.session("se-1").calls] == [*acknowledged, 77_777]
print("done", len(acknowledged))
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk")
def test_a_really_full_disk(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", _FULL, str(tmp_path), str(Path(__file__).parent)]
    shell = 'mount -t tmpfs -o size=400k none "$0" && exec "$@"'
    run = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell, str(tmp_path), *argv], capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("done")


def test_a_query_reads_the_index_alone(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for n in range(300):
            store.append_now(rollout(f"ro-{n:03}", [f"se-{n}"], reward=n / 300, patch=f"{n}" * 100))
        assert len(list(store.rollouts())) == 300
    for path in segment_files(tmp_path):
        path.write_bytes(bytes(path.stat().st_size))  # nothing of the records is left
    assert [row.id for row in Store(tmp_path).rollouts("reward > 0.99")] == ["ro-298", "ro-299"]
    with pytest.raises(StoreFailed) as caught:
        Store(tmp_path).rollout("ro-298")
    assert caught.value.reason == "damaged"
