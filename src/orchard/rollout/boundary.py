"""The one place where trouble is typed: at which seam, which reason, whether another try may help."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from orchard.core.errors import (
    CommandError,
    CreateFailed,
    FileError,
    ImageUnfit,
    InvalidArgument,
    MachineUnfit,
    OrchardError,
    SandboxGone,
    StoreFailed,
    TaskRefused,
    Unsupported,
)
from orchard.harness.endpoint import EndpointFailed
from orchard.trajectories import Failure

Seam = Literal["prepare", "sandbox", "harness", "gateway", "engine", "grade", "store"]
_LASTING = (ImageUnfit, InvalidArgument, MachineUnfit, Unsupported, TaskRefused)
_LASTING_CREATE = {"image_not_found", "image_auth", "image_invalid", "wrong_arch", "tool_not_found"}
_TEXT = 4000  # characters of an error's text that a record keeps


class RolloutFailed(OrchardError):
    """Infrastructure trouble of one try. ``again`` says whether another try may help."""

    code = "rollout_failed"

    def __init__(self, failure: Failure, *, again: bool) -> None:
        super().__init__(f"{failure.seam}: {failure.text}", reason=failure.reason)
        self.failure, self.again = failure, again


@contextmanager
def boundary(seam: Seam) -> Iterator[None]:
    """Turn whatever escapes into ``RolloutFailed`` at ``seam``, or at the seam the error itself names.

    Cancellation passes. Trouble of the sandbox or the model endpoint that surfaces in a harness is theirs, not its.
    """
    try:
        yield
    except (RolloutFailed, asyncio.CancelledError):
        raise
    except Exception as error:  # the seam between a rollout and its siblings: nothing else may cross
        raise RolloutFailed(_failure(seam, error), again=_again(error)) from error


def _failure(seam: Seam, error: Exception) -> Failure:
    text = (str(error) or repr(error))[-_TEXT:]
    if isinstance(error, OrchardError):
        return Failure(seam=_seam(seam, error), reason=error.reason or error.code, text=text)
    return Failure(seam=seam, reason=type(error).__name__, text=text)


def _seam(seam: Seam, error: OrchardError) -> Seam:
    if isinstance(error, StoreFailed):
        return "store"
    if seam == "harness":
        if isinstance(error, EndpointFailed):
            return "engine"
        if isinstance(error, SandboxGone | CommandError | FileError | CreateFailed):
            return "sandbox"
    return seam


def _again(error: Exception) -> bool:
    if isinstance(error, CreateFailed):
        return error.reason not in _LASTING_CREATE
    return not isinstance(error, _LASTING)
