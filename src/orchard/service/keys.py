"""API keys: a TOML file of hashes. A key itself is shown once, when it is made, and kept nowhere."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchard.core.errors import Conflict, InvalidArgument, Unauthorized
from orchard.sandbox.types import check_labels

TENANT_LABEL = "orchard/tenant"
KEY_LABEL = "orchard/key"
"""Holds the create's key, scoped to its tenant, so that a restarted service finds what it made under it."""
_RELOAD_AFTER = 1.0  # seconds for which a read of the keys file counts
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_HEADER = "# API keys of `orchard serve`: only hashes are kept here. Make one with `orchard keys new NAME`.\n"


class ApiKey(BaseModel):
    """One entry of the keys file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: str = Field(pattern=r"[0-9a-f]{64}")
    """Of the key's UTF-8 text."""
    tenant: str
    """Whose sandboxes it sees: those of all keys of the same tenant, and no others."""
    quota: int | None = Field(None, ge=0)
    """Most sandboxes alive at once for the tenant; None: no limit."""
    rate: float | None = Field(None, gt=0)
    """Most requests a second on average, with bursts of two seconds' worth; None: no limit."""


@dataclass(frozen=True)
class Caller:
    """Who asks: the key that was shown, or the one tenant of a service without keys."""

    key_name: str
    tenant: str
    quota: int | None = None
    rate: float | None = None


NO_AUTH = Caller(key_name="-", tenant="default")


class KeyRing:
    """The keys of a file, read again when the file has changed.

    Args:
        path: the TOML file; it may not exist yet, which means no key at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: list[ApiKey] = []
        self._stamp: tuple[int, int] | None = None
        self._checked = -_RELOAD_AFTER

    @property
    def keys(self) -> list[ApiKey]:
        """The present keys.

        Raises:
            InvalidArgument: the file is not one of keys.
        """
        now = time.monotonic()
        if now - self._checked >= _RELOAD_AFTER:
            self._reload()
            self._checked = now
        return self._keys

    def _reload(self) -> None:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._keys, self._stamp = [], None
            return
        stamp = (stat.st_mtime_ns, stat.st_size)
        if stamp != self._stamp:
            self._keys, self._stamp = _read(self.path), stamp

    @property
    def tenants(self) -> frozenset[str]:
        """Every tenant that has a key."""
        return frozenset(entry.tenant for entry in self.keys)

    def caller(self, key: str | None) -> Caller:
        """Return who holds ``key``. Every known hash is compared, each in constant time.

        Raises:
            Unauthorized: no key, or an unknown one.
        """
        if not key:
            raise Unauthorized("no API key was sent", hint="send 'Authorization: Bearer KEY' (CLI: ORCHARD_API_KEY)")
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
        found = [entry for entry in self.keys if hmac.compare_digest(entry.sha256, digest)]
        if not found:
            raise Unauthorized("the API key is not known here", hint="`orchard keys new NAME` makes one")
        entry = found[0]
        return Caller(entry.name, entry.tenant, entry.quota, entry.rate)

    def add(self, name: str, *, tenant: str | None = None, quota: int | None = None, rate: float | None = None) -> str:
        """Make a key, append its hash to the file, and return the key itself.

        Raises:
            Conflict: a key of that name exists.
            InvalidArgument: a name or tenant that is not 1-63 of A-Z a-z 0-9 . _ -
        """
        tenant = tenant or name
        for value, field in ((name, "name"), (tenant, "tenant")):
            if not _NAME.fullmatch(value):
                raise InvalidArgument(f"{field} must be 1-63 of A-Z a-z 0-9 . _ -, not {value!r}", field=field)
        check_labels({TENANT_LABEL: tenant})
        self._reload()
        if any(entry.name == name for entry in self._keys):
            raise Conflict(f"a key named {name!r} exists already", hint="choose another name")
        key = f"orchard-{secrets.token_urlsafe(32)}"
        digest = hashlib.sha256(key.encode()).hexdigest()
        try:
            entry = ApiKey(name=name, sha256=digest, tenant=tenant, quota=quota, rate=rate)
        except ValidationError as error:
            raise InvalidArgument("quota must be >= 0 and rate > 0", field="quota") from error
        _append(self.path, entry)
        self._checked = -_RELOAD_AFTER
        return key


def _read(path: Path) -> list[ApiKey]:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        return [ApiKey.model_validate(entry) for entry in raw.get("keys", [])]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ValidationError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            f"{path} is not a file of API keys", field="keys", hint="see `orchard keys --help` for its form"
        ) from error


def _append(path: Path, entry: ApiKey) -> None:
    """Append one table. The file is readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lines = [f'name = "{entry.name}"', f'sha256 = "{entry.sha256}"', f'tenant = "{entry.tenant}"']
    lines += [f"{field} = {value}" for field in ("quota", "rate") if (value := getattr(entry, field)) is not None]
    text = "\n[[keys]]\n" + "\n".join(lines) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as file:
        file.write(text if path.stat().st_size else _HEADER + text)
