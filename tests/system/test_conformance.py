"""How a sandbox must behave, on the local backend and through the service over it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.service import running_service

from orchard.sandbox.conformance import CHECKS, LATER, Check, Outcome, Report, run
from orchard.sandbox.conformance.roots import special_images
from orchard.sandbox.conformance.targets import local, service
from orchard.sandbox.local import LocalSettings
from orchard.sandbox.local.cgroups import find_cgroups

LINES = 60
UNLIMITED = frozenset[str]() if find_cgroups() else frozenset({"cpu", "memory", "pids"})
"""An ordinary user without a delegated subtree has no control groups."""
ALLOWED = {"local": {"disk", "network=open"} | UNLIMITED, "remote": {"disk", "network=open"} | UNLIMITED}
"""Features that each backend may except on this machine; anything else must pass."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return special_images(tmp_path_factory.mktemp("special"))


@pytest.fixture(scope="session")
def home(image_home: Path) -> Path:
    return image_home


@pytest.fixture(scope="session")
def on_local(home: Path, debian_image: str, images: dict[str, str]) -> Report:
    async def go() -> Report:
        async with local(LocalSettings(home=home), debian_image, images) as context:
            return await run(context)

    return asyncio.run(go())


@pytest.fixture(scope="session")
def on_service(home: Path, debian_image: str, images: dict[str, str]) -> Iterator[Report]:
    async def go(url: str, key: str) -> Report:
        async with service(url, key, debian_image, images, home) as context:
            return await run(context)

    with running_service(home) as (url, key):
        yield asyncio.run(go(url, key))


def outcome(report: Report, check: Check) -> Outcome:
    return next(found for found in report.outcomes if (found.line, found.claim) == (check.line, check.claim))


def judge(report: Report, check: Check) -> None:
    found = outcome(report, check)
    if found.verdict == "excepted":
        assert check.feature in ALLOWED[report.backend], found.detail
    else:
        only_service = check.feature == "service" and report.backend == "local"
        assert found.verdict == ("not applicable" if only_service else "passed"), found.detail


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_local(on_local: Report, check: Check) -> None:
    judge(on_local, check)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_remote_over_local(on_service: Report, check: Check) -> None:
    judge(on_service, check)


def test_every_line_has_a_check_or_comes_later() -> None:
    covered = {check.line for check in CHECKS} | {line for line, _, _ in LATER}
    assert covered == set(range(1, LINES + 1))
    assert len({check.name for check in CHECKS}) == len(CHECKS)
