"""The error tree: one root, each leaf with a stable code, and a hint that says what to do.

OrchardError
├── InvalidArgument(field)          also ValueError       the caller's input; nothing was done
├── Unauthorized                    also PermissionError
├── NotFound                        also LookupError
├── Conflict                        a different request under the same key, or a state that forbids it
├── Unsupported                     this backend or machine cannot do it, by name
├── ResultExpired                   it ran, its result is no longer kept; never run again
├── RateLimited(retry_after)
├── QuotaExceeded
├── Unavailable                     also ConnectionError  not reached; nothing known to have happened
├── DeadlineExceeded                also TimeoutError
├── InternalError                   a fault of ours
├── CreateFailed(reason)            see CREATE_REASONS
├── SandboxGone(reason, at)         see GONE_REASONS
├── CommandError
│   ├── CommandNotStarted(reason)   nothing ran; see NOT_STARTED_REASONS
│   ├── CommandFailed(result)       raised by ``result.check()`` only
│   ├── CommandTimeout(result)      also TimeoutError; raised by ``result.check()`` only
│   └── CommandLost                 it may have run; its result cannot be had
├── FileError(errno, path)          also OSError
│   ├── FileMissing                 also FileNotFoundError
│   ├── FileIsFolder                also IsADirectoryError
│   ├── FileNotFolder               also NotADirectoryError
│   ├── FileDenied                  also PermissionError
│   ├── FileNoSpace
│   ├── FileReadOnly
│   └── FilePresent                 also FileExistsError
├── PatchFailed
├── ImageUnfit                      the image lacks what a harness needs of it
├── TaskRefused(reason)             no sound task can be made of it; see TASK_REFUSALS
├── StoreFailed(reason)             also OSError          a record is not durable; see STORE_REASONS
└── MachineUnfit                    the host lacks what the local backend needs

Infrastructure trouble is one of these; what a command did is a result, never an exception.
Rules for a new leaf: a ``code`` of its own, facts as keyword arguments, picklable (all state in ``__dict__``).
"""

from __future__ import annotations

import errno as _errno
from typing import Any, ClassVar

CREATE_REASONS = (
    "image_not_found", "image_auth", "image_invalid", "wrong_arch", "registry_unreachable", "unschedulable",
    "start_timeout", "start_failed", "not_sealed", "made_way", "tool_not_found",
)  # fmt: skip
GONE_REASONS = (
    "oom", "ttl", "idle", "heartbeat", "evicted", "node_lost", "deleted", "signal", "restarted",
    "not_sealed", "unknown",
)  # fmt: skip
NOT_STARTED_REASONS = (
    "program_not_found", "no_shell", "cwd_missing", "permission", "user_unknown", "argument_too_long",
    "not_executable", "resources",
)  # fmt: skip
TASK_REFUSALS = (
    "no_sdist", "no_tests", "no_changelog_entry", "no_code_change", "binary_change", "dependencies", "install_failed",
    "collection_error", "gold_fails", "no_fail_to_pass", "unstable",
)  # fmt: skip
STORE_REASONS = ("no_space", "denied", "closed", "damaged", "io")


class OrchardError(Exception):
    """Root of all errors.

    Attributes:
        code: stable machine-readable word, one per class.
        message: what happened, in one sentence.
        reason: finer word from the class's list, or None.
        hint: what to do about it, or None.
        request_id: the id under which a service logged it, or None.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, reason: str | None = None, hint: str | None = None, request_id: str | None = None
    ) -> None:
        self.message, self.reason, self.hint, self.request_id = message, reason, hint, request_id
        super().__init__(message)

    def __str__(self) -> str:
        text = self.message if self.reason is None else f"{self.message} ({self.reason})"
        return text if self.hint is None else f"{text} — {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.__dict__.copy()))

    def to_problem(self) -> dict[str, Any]:
        """Return the ``application/problem+json`` body (RFC 9457) of this error."""
        return {
            "type": "about:blank", "title": self.code, "status": self.status, "code": self.code,
            "detail": self.message, "reason": self.reason, "hint": self.hint, "request_id": self.request_id,
        }  # fmt: skip


def _rebuild(cls: type[OrchardError], state: dict[str, Any]) -> OrchardError:
    error = cls.__new__(cls)
    Exception.__init__(error, state.get("message", ""))
    error.__dict__.update(state)
    return error


class InvalidArgument(OrchardError, ValueError):
    """The caller's input is wrong; nothing was done. ``field`` names it."""

    code, status = "invalid_argument", 400

    def __init__(self, message: str, *, field: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.field = field

    def to_problem(self) -> dict[str, Any]:
        """Add ``field`` to the problem body."""
        return {**super().to_problem(), "field": self.field}


class Unauthorized(OrchardError, PermissionError):
    """No valid key or token."""

    code, status = "unauthorized", 401


class NotFound(OrchardError, LookupError):
    """No such object, or it belongs to another tenant."""

    code, status = "not_found", 404


class Conflict(OrchardError):
    """Another request under the same idempotency key, or a state that forbids the request."""

    code, status = "conflict", 409


class Unsupported(OrchardError):
    """This backend or machine cannot do it; the message names what and why."""

    code, status = "unsupported", 501


class ResultExpired(OrchardError):
    """The process ran and its result is no longer kept. It is never run again under this id."""

    code, status = "result_expired", 410


class RateLimited(OrchardError):
    """Too many requests; ``retry_after`` is in seconds."""

    code, status = "rate_limited", 429

    def __init__(self, message: str, *, retry_after: float = 1.0, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.retry_after = retry_after


class QuotaExceeded(OrchardError):
    """The tenant's quota is used up."""

    code, status = "quota_exceeded", 403


class Unavailable(OrchardError, ConnectionError):
    """The other side could not be reached, or is not ready; a retry may succeed."""

    code, status = "unavailable", 503


class DeadlineExceeded(OrchardError, TimeoutError):
    """The caller's deadline passed before an answer was known."""

    code, status = "deadline_exceeded", 504


class InternalError(OrchardError):
    """A fault of ours; the request id finds it in the log."""

    code, status = "internal", 500


class CreateFailed(OrchardError):
    """A sandbox could not be made; ``reason`` is one of ``CREATE_REASONS``. Nothing is left of it."""

    code, status = "create_failed", 422


class SandboxGone(OrchardError):
    """The sandbox has ended; ``reason`` is one of ``GONE_REASONS``, ``at`` an RFC 3339 time or None."""

    code, status = "sandbox_gone", 410

    def __init__(self, message: str, *, at: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.at = at

    def to_problem(self) -> dict[str, Any]:
        """Add ``at`` to the problem body."""
        return {**super().to_problem(), "at": self.at}


class CommandError(OrchardError):
    """Root of what concerns one command."""

    code, status = "command_error", 422


class CommandNotStarted(CommandError):
    """Nothing ran; ``reason`` is one of ``NOT_STARTED_REASONS``."""

    code, status = "command_not_started", 422


class CommandFailed(CommandError):
    """``result.check()`` on a command that did not exit with 0. ``result`` holds everything it did."""

    code = "command_failed"

    def __init__(self, message: str, *, result: Any = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.result = result


class CommandTimeout(CommandFailed, TimeoutError):
    """``result.check()`` on a command that was ended by its time-out. ``result`` holds the partial output."""

    code = "command_timeout"


class CommandLost(CommandError):
    """The command was sent and may have run, but what became of it cannot be learnt."""

    code, status = "command_lost", 502


class FileError(OrchardError, OSError):
    """A file operation failed in the sandbox. ``errno`` is the number, ``errno_name`` its name, ``path`` the file."""

    code, status = "file_error", 400

    def __init__(self, message: str, *, errno_name: str = "EIO", path: str | None = None, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.errno_name, self.path = errno_name, path
        self.errno = getattr(_errno, errno_name, _errno.EIO)

    @staticmethod
    def of(message: str, *, errno_name: str, path: str | None = None, **facts: Any) -> FileError:
        """Return the leaf for ``errno_name`` (``"ENOENT"`` …), or a plain ``FileError``."""
        return _FILE_LEAVES.get(errno_name, FileError)(message, errno_name=errno_name, path=path, **facts)

    def to_problem(self) -> dict[str, Any]:
        """Add ``errno`` and ``path`` to the problem body."""
        return {**super().to_problem(), "errno": self.errno_name, "path": self.path}


class FileMissing(FileError, FileNotFoundError):
    """ENOENT."""

    status = 404


class FileIsFolder(FileError, IsADirectoryError):
    """EISDIR: a folder stands where a file is due."""

    status = 409


class FileNotFolder(FileError, NotADirectoryError):
    """ENOTDIR: a file stands where a folder is due."""

    status = 409


class FileDenied(FileError, PermissionError):
    """EACCES or EPERM."""

    status = 403


class FileNoSpace(FileError):
    """ENOSPC or EDQUOT."""

    status = 507


class FileReadOnly(FileError):
    """EROFS."""

    status = 403


class FilePresent(FileError, FileExistsError):
    """EEXIST or ENOTEMPTY."""

    status = 409


_FILE_LEAVES: dict[str, type[FileError]] = {
    "ENOENT": FileMissing, "EISDIR": FileIsFolder, "ENOTDIR": FileNotFolder, "EACCES": FileDenied,
    "EPERM": FileDenied, "ENOSPC": FileNoSpace, "EDQUOT": FileNoSpace, "EROFS": FileReadOnly,
    "EEXIST": FilePresent, "ENOTEMPTY": FilePresent,
}  # fmt: skip


class PatchFailed(OrchardError):
    """A patch does not apply; nothing was changed. ``detail`` holds the tool's words."""

    code, status = "patch_failed", 422

    def __init__(self, message: str, *, detail: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.detail = detail


class ImageUnfit(OrchardError):
    """The image lacks a program that a harness needs of it; the message names program and image."""

    code, status = "image_unfit", 422


class TaskRefused(OrchardError):
    """No sound task can be made of it; ``reason`` is one of ``TASK_REFUSALS``, ``detail`` the evidence."""

    code, status = "task_refused", 422

    def __init__(self, message: str, *, detail: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.detail = detail


class StoreFailed(OrchardError, OSError):
    """A record could not be made durable, or read; ``reason`` is one of ``STORE_REASONS``."""

    code, status = "store_failed", 507


class MachineUnfit(OrchardError):
    """This machine lacks what the local backend needs; ``hint`` holds the command that mends it."""

    code, status = "machine_unfit", 501


_LEAVES: tuple[type[OrchardError], ...] = (
    Unauthorized, NotFound, Conflict, Unsupported, ResultExpired, QuotaExceeded, Unavailable, DeadlineExceeded,
    InternalError, CreateFailed, CommandNotStarted, CommandLost, PatchFailed, ImageUnfit, TaskRefused,
    MachineUnfit,
)  # fmt: skip
_PLAIN: dict[str, type[OrchardError]] = {
    "wrong_sandbox": Unavailable,
    "shutting_down": Unavailable,
    "not_sealed": Unavailable,
    "invalid_range": InvalidArgument,
    **{cls.code: cls for cls in _LEAVES},
}


def text_of(error: BaseException) -> str:
    """Return what an error says of itself; one that says nothing, such as a time-out, is named by its kind."""
    return str(error) or type(error).__name__


def from_problem(problem: dict[str, Any], *, retry_after: float | None = None) -> OrchardError:
    """Turn a problem+json body into the error it stands for; an unknown code becomes ``OrchardError``."""
    code = str(problem.get("code") or "error")
    message = str(problem.get("detail") or problem.get("title") or code)
    facts: dict[str, Any] = {key: problem.get(key) for key in ("reason", "hint", "request_id")}
    if code == "invalid_argument":
        return InvalidArgument(message, field=problem.get("field"), **facts)
    if code == "file_error":
        return FileError.of(message, errno_name=str(problem.get("errno") or "EIO"), path=problem.get("path"), **facts)
    if code == "sandbox_gone":
        return SandboxGone(message, at=problem.get("at"), **facts)
    if code == "rate_limited":
        return RateLimited(message, retry_after=retry_after or 1.0, **facts)
    return _PLAIN.get(code, OrchardError)(message, **facts)
