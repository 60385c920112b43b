"""Trouble is typed by where it happened and by what it is, never by its words."""

import asyncio

import pytest

from orchard.core.errors import (
    CommandLost,
    CreateFailed,
    InvalidArgument,
    MachineUnfit,
    OrchardError,
    SandboxGone,
    StoreFailed,
    TaskRefused,
    Unavailable,
)
from orchard.harness.endpoint import EndpointFailed
from orchard.rollout.boundary import RolloutFailed, Seam, boundary


@pytest.mark.parametrize(
    ("seam", "error", "expected", "reason", "again"),
    [
        ("harness", SandboxGone("it ended", reason="oom"), "sandbox", "oom", True),
        ("harness", CommandLost("lost"), "sandbox", "command_lost", True),
        ("harness", EndpointFailed("503"), "engine", "endpoint_failed", True),
        ("harness", OrchardError("broke", reason="odd"), "harness", "odd", True),
        ("harness", StoreFailed("full", reason="no_space"), "store", "no_space", True),
        ("harness", InvalidArgument("no such option"), "harness", "invalid_argument", False),
        ("sandbox", CreateFailed("none", reason="image_not_found"), "sandbox", "image_not_found", False),
        ("sandbox", CreateFailed("slow", reason="start_timeout"), "sandbox", "start_timeout", True),
        ("prepare", TaskRefused("no signal", reason="no_signal"), "prepare", "no_signal", False),
        ("prepare", MachineUnfit("no runc"), "prepare", "machine_unfit", False),
        ("grade", Unavailable("away"), "grade", "unavailable", True),
        ("gateway", RuntimeError("a fault of ours"), "gateway", "RuntimeError", True),
    ],
)
def test_each_error_has_its_seam(seam: Seam, error: Exception, expected: str, reason: str, again: bool) -> None:
    with pytest.raises(RolloutFailed) as caught, boundary(seam):
        raise error
    failure = caught.value.failure
    assert (failure.seam, failure.reason, caught.value.again) == (expected, reason, again)
    assert str(error).split(" (")[0] in failure.text
    assert caught.value.__cause__ is error


def test_the_inner_seam_stands_and_cancellation_passes() -> None:
    with pytest.raises(RolloutFailed) as caught, boundary("grade"), boundary("sandbox"):
        raise Unavailable("away")
    assert caught.value.failure.seam == "sandbox"
    with pytest.raises(asyncio.CancelledError), boundary("harness"):
        raise asyncio.CancelledError
