"""Images by digest, in a name that every backend takes."""

import pytest

from orchard.sandbox.pinned import pinned

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("debian", f"debian@{DIGEST}"),
        ("docker://a.example:5000/x/debian:12", f"a.example:5000/x/debian@{DIGEST}"),
        (f"a.example/x:1@sha256:{'b' * 64}", f"a.example/x@{DIGEST}"),
        (f"sha256:{'a' * 64}", DIGEST),
        ("oci:/images/x:1", DIGEST),
        ("docker-daemon:x:1", DIGEST),
    ],
)
def test_a_registry_keeps_its_repository_and_a_store_needs_the_digest_alone(image: str, expected: str) -> None:
    assert pinned(image, DIGEST) == expected


def test_what_has_no_digest_stays() -> None:
    assert pinned("dir:/x", None) == "dir:/x"
