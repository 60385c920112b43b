"""The conformance suite notices what is broken: a twin that breaks just one line makes exactly that line fail.

``twins``: a line fails under its own twin, and holds under all others at once.
``twins_all``: under each twin alone, its line fails and every other line holds; heavy checks run under their own twin.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.support.twin import Twin, TwinContext, twin_of
from tests.support.twins import TWINS
from tests.support.twins_together import together

from orchard.sandbox import Orchard
from orchard.sandbox.conformance import CHECKS, LATER, Check, Context, Outcome, run_check
from orchard.sandbox.conformance.roots import special_images
from orchard.sandbox.local import LocalBackend, LocalSettings

LEFT_OUT = {
    "service": "there is no service between",
    "disk": "the local backend excepts it by name: plain folders have no limits",
    "network=open": "the local backend excepts it by name",
}
"""Features whose checks run under no twin, and why. All other checks do."""
EXCEPTED = {47, 52}  # lines all of whose checks are of these features
HEAVY = {
    "2 GB round-trip in flat memory": "twice 2 GB through the proxy",
    "a hundred creates at once all succeed": "a hundred sandboxes",
    "a thousand commands at once from one client are not capped silently": "a thousand processes at once",
}
"""Checks that run by themselves, and under all twins of other lines at once only, not under each: what they cost."""
AT_ONCE = 10  # most checks wait
TRIES = 3  # a busy machine breaks a bound in seconds now and then, a twin breaks its line each time
SEEN = [check for check in CHECKS if check.feature not in LEFT_OUT]

pytestmark = pytest.mark.timeout(900)
all_twins = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: f"{twin.line:02d} {twin.breaks}")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return special_images(tmp_path_factory.mktemp("special"))


@asynccontextmanager
async def under(twin: Twin, home: Path, image: str, images: dict[str, str]) -> AsyncGenerator[TwinContext]:
    backend = LocalBackend(LocalSettings(home=home))
    with tempfile.TemporaryDirectory(prefix="orchard-twin-") as folder:
        async with twin_of(backend, twin, Path(folder)) as broken, Orchard(backend=broken) as orchard:
            env = {"ORCHARD_HOME": str(home)}
            yield TwinContext(orchard, image, lambda: Orchard(backend=broken), images, env, home, before=twin.before)
    await backend.close()


async def failures(checks: Sequence[Check], context_of: Callable[[Check], Context], own: int = 0) -> list[Outcome]:
    """What does not pass, the heavy checks one by one. A failure beside the ``own`` line must come again, alone."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(check: Check) -> tuple[Check, Outcome]:
        async with gate:
            return check, await run_check(check, context_of(check))

    seen = await asyncio.gather(*(one(check) for check in checks if check.claim not in HEAVY))
    seen += [(check, await run_check(check, context_of(check))) for check in checks if check.claim in HEAVY]
    found: list[Outcome] = []
    for check, outcome in seen:
        for _ in range(TRIES if check.line != own else 0):
            outcome = await run_check(check, context_of(check)) if outcome.verdict == "failed" else outcome
        if outcome.verdict != "passed":
            found.append(outcome)
    return found


async def judge(twin: Twin, checks: Sequence[Check], home: Path, image: str, images: dict[str, str]) -> None:
    async with under(twin, home, image, images) as context:
        found = await failures(checks, lambda _: context, twin.line)
    assert {(outcome.line, outcome.verdict) for outcome in found} == {(twin.line, "failed")}, found


@pytest.fixture
def only_its_line_fails(
    local_home: Path, debian_image: str, images: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Twin, list[Check]], None]:
    def go(twin: Twin, checks: list[Check]) -> None:
        if twin.patch is not None:
            monkeypatch.setattr(*twin.patch)
        asyncio.run(judge(twin, checks, local_home, debian_image, images))

    return go


@pytest.mark.twins
@all_twins
def test_the_line_fails(twin: Twin, only_its_line_fails: Callable[[Twin, list[Check]], None]) -> None:
    only_its_line_fails(twin, [check for check in SEEN if check.line == twin.line])


@pytest.mark.twins
def test_each_line_holds_under_all_other_twins_at_once(
    local_home: Path, debian_image: str, images: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(lines: set[int]) -> list[Outcome]:
        async with AsyncExitStack() as stack:
            contexts = {
                line: await stack.enter_async_context(
                    under(together([twin for twin in TWINS if twin.line != line]), local_home, debian_image, images)
                )
                for line in lines
            }
            return await failures([check for check in SEEN if check.line in lines], lambda check: contexts[check.line])

    patching = {twin.line: twin.patch for twin in TWINS if twin.patch is not None}
    found = asyncio.run(go(set(patching)))
    for patch in patching.values():
        monkeypatch.setattr(*patch)
    found += asyncio.run(go({check.line for check in SEEN} - set(patching)))
    assert not found


@pytest.mark.twins_all
@all_twins
def test_no_other_line_fails(twin: Twin, only_its_line_fails: Callable[[Twin, list[Check]], None]) -> None:
    only_its_line_fails(twin, [check for check in SEEN if check.line == twin.line or check.claim not in HEAVY])


@pytest.mark.twins
def test_every_line_that_has_a_check_has_a_twin() -> None:
    later = {line for line, _, _ in LATER}
    checked = {check.line for check in SEEN}
    assert {twin.line for twin in TWINS} == checked == {check.line for check in CHECKS} - EXCEPTED
    assert {check.claim for check in SEEN} > HEAVY.keys()
    assert checked | later | EXCEPTED == set(range(1, 61))
