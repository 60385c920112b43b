"""The conformance suite notices what is broken: a twin that breaks just one line makes exactly that line fail.

The line itself must fail, and its neighbours, which look at the most similar things, must hold.
"""

import asyncio
import tempfile
from pathlib import Path

import pytest
from tests.support.twin import Twin, twin_of
from tests.support.twins import TWINS

from orchard.sandbox import Orchard
from orchard.sandbox.conformance import CHECKS, LATER, Check, Context, run_check
from orchard.sandbox.conformance.roots import special_images
from orchard.sandbox.local import LocalBackend, LocalSettings

NEIGHBOUR_SECONDS = 89.0
EXCEPTED = {47, 52}  # disk limits on plain folders and open networks, which the local backend excepts by name

pytestmark = [pytest.mark.timeout(400), pytest.mark.twins]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return special_images(tmp_path_factory.mktemp("special"))


def passes(check: Check) -> bool:
    """Whether the twin's proxy lets the check's traffic through, and it is for every backend."""
    return check.feature not in ("service", "disk", "network=open") and not any(
        word in check.claim for word in ("tunnel", "48 MiB")
    )


def neighbours(line: int) -> list[Check]:
    """Checks of the lines beside ``line``; none that needs a tunnel, a second or more of load, or a service."""
    lines = sorted({check.line for check in CHECKS})
    at = lines.index(line)
    beside = {*lines[max(0, at - 1) : at], *lines[at + 1 : at + 2]}
    return [check for check in CHECKS if check.line in beside and passes(check) and check.seconds < NEIGHBOUR_SECONDS]


async def judge(twin: Twin, home: Path, image: str, images: dict[str, str]) -> None:
    backend = LocalBackend(LocalSettings(home=home))
    with tempfile.TemporaryDirectory(prefix="orchard-twin-") as folder:
        async with twin_of(backend, twin, Path(folder)) as broken, Orchard(backend=broken) as orchard:
            env = twin.env if twin.env is not None else {"ORCHARD_HOME": str(home)}
            context = Context(orchard, image, lambda: Orchard(backend=broken), images, env, home)
            own = [check for check in CHECKS if check.line == twin.line and (passes(check) or twin.line == 54)]
            gate = asyncio.Semaphore(4)

            async def one(check: Check) -> tuple[Check, str, str]:
                async with gate:
                    outcome = await run_check(check, context)
                    return check, outcome.verdict, outcome.detail

            seen = await asyncio.gather(*(one(check) for check in [*own, *neighbours(twin.line)]))
    await backend.close()
    failed = {check.line for check, verdict, _ in seen if verdict == "failed"}
    assert failed == {twin.line}, [
        (check.name, verdict, detail) for check, verdict, detail in seen if verdict != "passed"
    ]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: f"{twin.line:02d} {twin.breaks}")
def test_the_line_fails_and_its_neighbours_hold(
    twin: Twin, local_home: Path, debian_image: str, images: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if twin.patch is not None:
        monkeypatch.setattr(*twin.patch)
    asyncio.run(judge(twin, local_home, debian_image, images))


def test_every_line_that_has_a_check_has_a_twin() -> None:
    later = {line for line, _, _ in LATER}
    checked = {check.line for check in CHECKS} - EXCEPTED
    assert {twin.line for twin in TWINS} == checked
    assert checked | later | EXCEPTED == set(range(1, 61))
