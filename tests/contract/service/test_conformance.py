"""``orchard conformance`` through a service as people start it: what it refuses by its settings is no failure."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.cli import orchard
from tests.support.service import Served, served

from orchard.sandbox.conformance.roots import special_images
from orchard.sandbox.local import LocalBackend, LocalSettings

pytestmark = pytest.mark.root


def verdicts(service: Served, *more: str) -> dict[int, set[str]]:
    env = {"ORCHARD_API_KEY": service.key}
    done = orchard("conformance", "--backend", service.url, "--json", *more, env=env)
    found: dict[int, set[str]] = {}
    for one in json.loads(done.stdout)["checks"]:
        found.setdefault(one["line"], set()).add(one["verdict"])
    return found


def test_images_that_a_service_does_not_take_are_left_out_by_name(local_home: Path, tmp_path: Path) -> None:
    backend = LocalBackend(LocalSettings(home=local_home))
    image = asyncio.run(backend.resolve_image(special_images(tmp_path)["busybox"]))
    assert image is not None
    lines = [word for line in (55, 56, 59) for word in ("--line", str(line))]
    with served(local_home) as service:
        found = verdicts(service, "--image", image, *lines)
    assert found == {55: {"not applicable", "passed"}, 56: {"not applicable", "passed"}, 59: {"passed"}}


def test_a_service_that_was_told_to_show_its_machine_is_not_blamed_for_it(local_home: Path) -> None:
    with served(local_home, "--allow-host-images") as service:
        assert verdicts(service, "--line", "59") == {59: {"not applicable", "passed"}}


def test_a_kind_of_image_that_no_check_asks_for_is_refused() -> None:
    done = orchard("conformance", "--special", "bussybox=x", env={})
    assert (done.returncode, b"bussybox=x" in done.stderr) == (2, True)
