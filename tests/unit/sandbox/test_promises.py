"""The small promises that the rest stands on: patience, finishing, names in patches, targets."""

import asyncio
import time

import pytest

from orchard.core.errors import InvalidArgument, Unavailable
from orchard.core.retry import Patience
from orchard.core.tasks import finish, unwrapped
from orchard.sandbox.manifest import CACHES, excluded
from orchard.sandbox.patch import named_paths, plain_hunks
from orchard.sandbox.relay import check_target
from orchard.sandbox.transport import query


async def wear_out(patience: Patience, error: Exception) -> None:
    for _ in range(1000):
        await patience.pause(error)


def test_patience_ends_with_the_error_and_begins_anew_after_a_success() -> None:
    async def main() -> None:
        patience, error = Patience(0.2, first=0.01), Unavailable("no")
        start = time.monotonic()
        with pytest.raises(Unavailable):
            await wear_out(patience, error)
        assert time.monotonic() - start > 0.05
        patience.reset()
        await patience.pause(error)
        with pytest.raises(Unavailable):
            await patience.pause(error, at_least=1.0)

    asyncio.run(main())


def test_what_is_being_finished_ends_before_the_cancellation_comes_out() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            await asyncio.sleep(0.05)
            seen.append("done")

        task = asyncio.ensure_future(finish(work()))
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    assert asyncio.run(main()) == ["done"]


def test_finish_hands_on_the_outcome() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(finish(fail()))
    assert asyncio.run(finish(asyncio.sleep(0, "value"))) == "value"


def test_unwrapped_takes_the_first_out_of_nested_groups() -> None:
    with pytest.raises(KeyError), unwrapped():
        raise BaseExceptionGroup("", [ExceptionGroup("", [KeyError("x")]), ValueError()])


@pytest.mark.parametrize(
    ("patch", "names"),
    [
        (b"--- a/x y.py\t2024\n+++ b/x y.py\n", {b"x y.py"}),
        (b"diff --git a/p q b/p q\nold mode 100644\nnew mode 100755\n", {b"p q", b"p q b/p q"}),
        (b"rename from o/ld\nrename to n/ew\n", {b"o/ld", b"n/ew"}),
        (b'--- "a/\\303\\251\\n\\"q"\n+++ /dev/null\n', {'é\n"q'.encode(), b'\\303\\251\\n\\"q"'}),
        (b"--- a/../../etc/passwd\n+++ b/.git/config\n--- /etc/x\n", set()),
    ],
)
def test_every_name_a_patch_may_mean_is_found(patch: bytes, names: set[bytes]) -> None:
    assert {name for name in named_paths(patch, 1) if name != b"etc/x"} - {b"x"} == names


def test_caches_are_left_out_at_any_depth() -> None:
    paths = [
        "a/__pycache__/b.pyc",
        "x.pyc",
        "pkg.egg-info/PKG-INFO",
        "node_modules/y/z.js",
        "src/a.py",
        ".github/w.yml",
    ]
    assert [path for path in paths if not excluded(path, (*CACHES, ".git"))] == ["src/a.py", ".github/w.yml"]


@pytest.mark.parametrize(
    ("target", "dialled"),
    [
        ("http://127.0.0.1:9000", "tcp:127.0.0.1:9000"), ("http://localhost/v1", "tcp:localhost:80"),
        ("tcp:host:5", "tcp:host:5"), ("http://[::1]:7", "tcp:[::1]:7"), ("unix:/a/b", "unix:/a/b"),
    ],
)  # fmt: skip
def test_targets_are_read(target: str, dialled: str) -> None:
    assert check_target(target) == dialled


def test_a_target_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_target("https://127.0.0.1:1")
    assert caught.value.field == "target"


def test_queries_hold_raw_bytes() -> None:
    assert query(path="a/%2F \udcff", none=None, flag=True, off=False, many=["x", b"\xfe"]) == (
        "path=a/%252F%20%FF&flag=1&off=0&many=x&many=%FE"
    )


def test_only_hunks_reach_patch_with_true_counts() -> None:
    text = b"Index: x\n1a\n!touch y\n.\n"
    text += (
        b"--- a/f\n+++ b/f\n@@ -1,9 +1 @@ def f():\n a\n\n-b\n+c\n\n1,2d\n--- a/g\n+++ b/g\n@@ -1 +1 @@\n--- x\n++ y\n"
    )
    assert plain_hunks(text) == (
        b"--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n \n-b\n+c\n--- a/g\n+++ b/g\n@@ -1,1 +1,1 @@\n--- x\n++ y\n"
    )
