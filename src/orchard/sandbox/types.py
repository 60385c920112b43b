"""The words of the sandbox room as plain frozen values."""
# pyright: reportUnnecessaryIsInstance=false
# (values of callers are checked at run time here, whatever their annotation says)

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, cast

from orchard.core.errors import CommandFailed, CommandTimeout, InvalidArgument
from orchard.sandbox.toolnames import parse_tools

Network = Literal["none", "open"]

DEFAULT_TTL = 3600.0
DEFAULT_MAX_TTL = 86400.0
DEFAULT_PIDS = 4096
LEAST_PIDS = 2
"""With fewer no command can start: starting one takes a moment's process beside it."""
MOST_PIDS = 4 << 20
"""The kernel has no more."""
LEAST_MEMORY = 1 << 20
"""With less hardly a shell can start. Who leaves the unit out, meaning MiB, is told so."""
DEFAULT_RUN_TIMEOUT = 300.0
DEFAULT_OUTPUT_LIMIT = 1 << 20
DEFAULT_CREATE_TIMEOUT = 300.0
GROUP_LABEL = "group.orchard/id"
"""Label of sandboxes that are made all or none; see ``Orchard.sandboxes``."""
OWNER_WINDOW = 30.0
OWNER_RENEW = 10.0

_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(B|[KMGT]i?B?|[kmgt])?")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_DNS_PART = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_LABEL_PREFIX = re.compile(rf"{_DNS_PART}(?:\.{_DNS_PART})*")
_LONGEST_PREFIX = 253
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_size(value: int | str, name: str) -> int:
    """Return bytes of ``2147483648``, ``"2GiB"``, ``"512M"`` (binary multiples).

    Raises:
        InvalidArgument: not a positive size.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidArgument(f"{name} must be bytes or a text such as '2GiB', not {value!r}", field=name)
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if not match:
            raise InvalidArgument(f"{name} must be bytes or a text such as '2GiB', not {value!r}", field=name)
        value = int(float(match[1]) * _UNIT[(match[2] or "").upper()[:1].replace("B", "")])
    if value <= 0:
        raise InvalidArgument(f"{name} must be positive, not {value!r}", field=name)
    return value


def parse_memory(value: int | str) -> int:
    """Return bytes of a sandbox's memory; see ``parse_size``.

    Raises:
        InvalidArgument: no size, or less than ``LEAST_MEMORY``.
    """
    size = parse_size(value, "memory")
    if size < LEAST_MEMORY:
        raise InvalidArgument(
            f"memory must be at least 1MiB, not {size} bytes", field="memory", hint="give a unit, such as 512MiB"
        )
    return size


def check_seconds(value: object, name: str, *, most: float = 31_536_000.0) -> float:
    """Return ``value`` as seconds, 0 < value <= ``most``; the one check for every time-out and TTL.

    Raises:
        InvalidArgument: another type (also ``"5"`` and booleans), NaN, not positive, or beyond ``most``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{name} must be a number of seconds, not {value!r}", field=name)
    if not 0 < value <= most:  # so is NaN
        raise InvalidArgument(f"{name} must be more than 0 and at most {most:g} seconds, not {value!r}", field=name)
    return float(value)


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return ``labels`` if each obeys Kubernetes' label syntax.

    Raises:
        InvalidArgument: one does not, or they are no mapping of texts.
    """
    _check_mapping(labels, "labels")
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if not _LABEL_NAME.fullmatch(name) or (slash and not _is_prefix(prefix)):
            raise InvalidArgument(f"label key {key!r} is not a Kubernetes label key", field="labels")
        if not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
            raise InvalidArgument(
                f"label {key!r}: {value!r} is not a Kubernetes label value (<= 63 of A-Z a-z 0-9 . _ -)", field="labels"
            )
    return dict(labels)


def _is_prefix(text: str) -> bool:
    return len(text) <= _LONGEST_PREFIX and _LABEL_PREFIX.fullmatch(text) is not None


def check_text(value: object, name: str) -> str:
    """Return ``value`` if it is a text that can reach a program.

    Raises:
        InvalidArgument: no text, or one with a NUL or a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} must be text, not {value!r:.80}", field=name)
    if "\0" in value or (not value.isascii() and _SURROGATE.search(value)):
        raise InvalidArgument(f"{name} holds a NUL or a lone surrogate, which cannot reach a program", field=name)
    return value


def _check_mapping(value: object, name: str) -> None:
    if not isinstance(value, Mapping):  # never shown: values may be secrets
        raise InvalidArgument(f"{name} must map names to texts, and not be {type(value).__name__}", field=name)
    for key in cast("Mapping[object, object]", value):
        if not isinstance(key, str):
            raise InvalidArgument(f"{name} must map names to texts, and {key!r} is no text", field=name)


class State(StrEnum):
    """Observed state of a sandbox."""

    PULLING = "pulling"  # the image is being fetched; the ready clock has not started
    STARTING = "starting"  # being made; no command works yet
    READY = "ready"  # a command works
    GONE = "gone"  # ended; ``reason`` says why


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is to be. Checked once, by ``validated``; every backend gets a checked one."""

    image: str
    """``host``, ``dir:/path``, ``oci:/path[:tag]``, ``oci-archive:``, ``docker-archive:``, ``docker-daemon:``,
    a digest or name in the backend's own store, or a registry reference."""
    cpu: float | None = None
    """CPUs, or None for no limit."""
    memory: int | None = None
    """Bytes, at least ``LEAST_MEMORY``, or None for no limit."""
    disk: int | None = None
    """Bytes of changes, or None for no limit."""
    pids: int = DEFAULT_PIDS
    """Most processes and threads at once, ``LEAST_PIDS`` to ``MOST_PIDS``."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added to the image's ENV for every command."""
    user: str | None = None
    """``name``, ``uid`` or ``uid:gid``; None is the image's USER. Each command looks a name up in
    the sandbox, which may gain it later; until then commands raise ``CommandNotStarted(user_unknown)``."""
    workdir: str | None = None
    """An absolute path; None is the image's WORKDIR."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Kubernetes label syntax on every backend."""
    network: Network = "none"
    ttl: float = DEFAULT_TTL
    """Seconds until it ends unless extended."""
    max_ttl: float = DEFAULT_MAX_TTL
    """Seconds beyond which no extension goes; fixed at create."""
    idle: float | None = None
    """Seconds without activity until it ends, or None."""
    heartbeat: float | None = None
    """Owner's window in seconds: without a renewal for so long it ends. None: no owner."""
    create_timeout: float = DEFAULT_CREATE_TIMEOUT
    """Seconds until ready, not counting the pull."""
    entrypoint: bool | Sequence[str] = False
    """Run the image's ENTRYPOINT and CMD (True), or this argv, as process ``entrypoint``."""
    tools: Sequence[str] = ()
    """``NAME@sha256:…``: read-only folders of programs, mounted at /opt/orchard/tools/NAME; their ``bin`` ends PATH.
    A name once; see ``orchard.sandbox.tools``."""

    def validated(self) -> SandboxSpec:
        """Return self if every field is sane.

        Raises:
            InvalidArgument: the first field that is not; ``field`` names it.
        """
        if not check_text(self.image, "image"):
            raise InvalidArgument("image must name an image", field="image")
        if self.cpu is not None and not (
            isinstance(self.cpu, int | float) and not isinstance(self.cpu, bool) and 0 < self.cpu < math.inf
        ):
            raise InvalidArgument(f"cpu must be a positive number of CPUs, not {self.cpu!r}", field="cpu")
        if self.memory is not None:
            parse_memory(self.memory)
        if self.disk is not None:
            parse_size(self.disk, "disk")
        if isinstance(self.pids, bool) or not isinstance(self.pids, int) or not LEAST_PIDS <= self.pids <= MOST_PIDS:
            raise InvalidArgument(
                f"pids must be a number from {LEAST_PIDS} to {MOST_PIDS}, not {self.pids!r}", field="pids"
            )
        self._check_times()
        check_labels(self.labels)
        self._check_process()
        parse_tools(self.tools)
        if self.network not in ("none", "open"):
            raise InvalidArgument(f"network must be 'none' or 'open', not {self.network!r}", field="network")
        return self

    def _check_process(self) -> None:
        _check_mapping(self.env, "env")
        for key, value in self.env.items():
            if not key or "=" in key or not isinstance(value, str):
                raise InvalidArgument(f"env {key!r} is not a variable name with a text value", field="env")
            check_text(key, "env")
            check_text(value, "env")
        if self.user is not None:
            check_text(self.user, "user")
        if self.workdir is not None and check_text(self.workdir, "workdir")[:1] != "/":
            raise InvalidArgument(
                f"workdir must be an absolute path such as '/work', not {self.workdir!r}", field="workdir"
            )
        self._check_entrypoint()

    def _check_entrypoint(self) -> None:
        given = self.entrypoint
        if isinstance(given, bool):
            return
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise InvalidArgument(f"entrypoint must be True or an argv, not {given!r:.80}", field="entrypoint")
        for word in given:
            check_text(word, "entrypoint")

    def _check_times(self) -> None:
        check_seconds(self.max_ttl, "max_ttl")
        check_seconds(self.ttl, "ttl", most=self.max_ttl)
        check_seconds(self.create_timeout, "create_timeout", most=86400.0)
        for name in ("idle", "heartbeat"):
            value = getattr(self, name)
            if value is not None:
                check_seconds(value, name)


@dataclass(frozen=True)
class SandboxInfo:
    """What is known of a sandbox, alive or gone."""

    id: str
    state: State
    image: str
    """As asked for."""
    image_digest: str | None
    """``sha256:…`` of the image's manifest, or None where the image has none (``host``, ``dir:``)."""
    labels: Mapping[str, str]
    created_at: datetime
    """Aware, UTC."""
    expires_at: datetime | None
    backend: str
    reason: str | None = None
    """Once gone, one of ``GONE_REASONS``."""
    ended_at: datetime | None = None
    detail: str | None = None
    """More words on the reason: who ended it, or the machine's own message."""
    workdir: str = "/"
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Endpoint:
    """How to speak the wire of sandboxd to one sandbox. Never shown in logs: the headers hold the token."""

    base: str
    """``unix:/path/of/socket``, ``http://10.0.0.7:8421``, or ``https://service/v1/sandboxes/ID``."""
    prefix: str
    """Path put before ``/processes`` …: ``/v1`` for sandboxd, ``/v1/sandboxes/ID`` for a service."""
    headers: Mapping[str, str] = field(repr=False, default_factory=dict[str, str])
    """Sent with every request: identity and token, or the service's key."""
    sandbox_id: str = ""
    tunnel: Literal["upgrade", "websocket"] = "upgrade"
    """How tunnels are opened: HTTP Upgrade with raw bytes, or WebSocket with binary frames (empty = half-close)."""
    lapses: bool = False
    """The token is a short-lived one: refused, it is to be asked for anew."""


@dataclass(frozen=True)
class Page:
    """One page of a listing; ``next`` is the cursor of the following page, or None."""

    items: Sequence[SandboxInfo]
    next: str | None = None


@dataclass(frozen=True)
class Result:
    """What a command did: every fact in a field of its own."""

    id: str
    """Operation id."""
    exit_code: int | None
    """None when a signal ended it."""
    signal: str | None
    """``"KILL"``, ``"SEGV"`` … when a signal ended it."""
    timed_out: bool
    oom_killed: bool
    cancelled: bool
    """Ended by a request to kill it, or with its sandbox."""
    stdout: bytes = field(repr=False)
    """Head and tail up to the output limit; the cut, if any, at ``stdout_cut``."""
    stderr: bytes = field(repr=False)
    stdout_bytes: int = 0
    """All that was written."""
    stderr_bytes: int = 0
    stdout_cut: int | None = None
    """Offset in ``stdout`` at which bytes are missing, or None."""
    stderr_cut: int | None = None
    duration: float = 0.0
    """Seconds."""

    @property
    def ok(self) -> bool:
        """True if it ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def truncated(self) -> bool:
        """True if bytes of either stream are missing here; the whole can be fetched by ``box.output``."""
        return self.stdout_dropped > 0 or self.stderr_dropped > 0

    @property
    def stdout_dropped(self) -> int:
        """Bytes of stdout that are not in ``stdout``."""
        return self.stdout_bytes - len(self.stdout)

    @property
    def stderr_dropped(self) -> int:
        """Bytes of stderr that are not in ``stderr``."""
        return self.stderr_bytes - len(self.stderr)

    @property
    def text(self) -> str:
        """``stdout`` as text, never raising: bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """``stderr`` as text, never raising."""
        return self.stderr.decode("utf-8", "replace")

    def check(self) -> Result:
        """Return self if ``ok``.

        Raises:
            CommandTimeout: it was ended by its time-out.
            CommandFailed: it failed in any other way.
        """
        if self.ok:
            return self
        tail = (self.error_text or self.text)[-500:]
        if self.timed_out:
            raise CommandTimeout(f"command {self.id} timed out after {self.duration:.1f} s: {tail}", result=self)
        end = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
        raise CommandFailed(f"command {self.id} ended with {end}: {tail}", result=self)
