from pathlib import Path

import pytest

from orchard.core.errors import InvalidArgument
from orchard.service.images import ImageRules
from orchard.service.keys import NO_AUTH, Caller, KeyRing
from orchard.service.options import ServiceOptions

HOST = ("host", "dir:/etc")
FILES = ("oci:/x", "oci-archive:/x", "docker-archive:/x", "docker-daemon:x", "containers-storage:x")
NAMES = ("python:3.12", "ghcr.io/a/b@sha256:0", "sha256:" + "0" * 64, "hosts", "directory/x", "localhost/x")
ALICE = Caller("k", "alice")


def refused(rules: ImageRules, caller: Caller, *images: str) -> list[str]:
    found = []
    for image in images:
        try:
            rules.check(image, caller)
        except InvalidArgument as error:
            found.append(image if error.field == "image" else str(error))
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ServiceOptions(None), [*HOST, *FILES]),
        (ServiceOptions(None, allow_image_files=True), [*HOST]),
        (ServiceOptions(None, allow_host_images=True), []),
    ],
)
def test_what_is_read_from_the_machine_is_refused_unless_allowed(options: ServiceOptions, expected: list[str]) -> None:
    assert refused(ImageRules(options, None), NO_AUTH, *HOST, *FILES, *NAMES) == expected


def test_names_of_images_have_an_owner_where_there_are_several_tenants(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "keys.toml")
    ring.add("alice")
    rules = ImageRules(ServiceOptions(ring.path), ring)
    rules.check_new("python:3.12", ALICE)
    ring.add("bob")
    assert ring.tenants == {"alice", "bob"}
    rules.check_new("alice/mine:1", ALICE)
    for name in ("python:3.12", "bob/x", "alice", "localhost/alice/x"):
        with pytest.raises(InvalidArgument):
            rules.check_new(name, ALICE)
    assert refused(rules, ALICE, "bob/x", "localhost/bob/x", "alice/x", "bob", "docker.io/bob/x") == [
        "bob/x", "localhost/bob/x",
    ]  # fmt: skip
