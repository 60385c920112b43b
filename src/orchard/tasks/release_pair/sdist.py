"""Source distributions: fetched by hash, cached, unpacked in memory, never run."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

from orchard.core.config import cache_dir
from orchard.core.errors import TaskRefused, Unavailable
from orchard.core.scratch import publish
from orchard.tasks.tree import SourceFile, Tree
from orchard.tasks.uv import canonical, latest_facts

_MOST_BYTES = 256 << 20  # of an archive, and of what it unpacks to: a bomb ends here
_MOST_FILES = 50_000
_FETCH_SECONDS = 120.0


@dataclass(frozen=True)
class Sdist:
    """One release's source."""

    package: str
    version: str
    sha256: str
    uploaded: datetime | None
    """Aware; None where the index gives no dates."""
    tree: Tree = field(repr=False)


async def fetch(package: str, version: str) -> Sdist:
    """Return a release's source distribution; the second time from the cache, without network.

    Raises:
        TaskRefused: there is none, or it is damaged or unsafe; reason ``no_sdist``.
        Unavailable: the index cannot be reached.
    """
    folder = cache_dir() / "sdists"
    name = f"{canonical(package)}-{version}"
    facts_file, archive = folder / f"{name}.json", folder / f"{name}.archive"
    data = await asyncio.to_thread(_cached, facts_file, archive)
    if data is None:
        data = await _download(f"{package}=={version}", facts_file, archive)
    facts = json.loads(facts_file.read_text())
    tree = await asyncio.to_thread(unpack, data, name)
    uploaded = datetime.fromisoformat(facts["uploaded"]) if facts["uploaded"] else None
    return Sdist(canonical(package), version, facts["sha256"], uploaded, tree)


async def _download(requirement: str, facts_file: Path, archive: Path) -> bytes:
    facts = await latest_facts(requirement)
    if "sdist" not in facts:
        raise TaskRefused(f"{requirement} has no source distribution", reason="no_sdist")
    sdist: Mapping[str, Any] = facts["sdist"]
    data = await _get(sdist["url"])
    digest = sdist["hashes"]["sha256"]
    _check_hash(data, digest, requirement)
    uploaded = sdist.get("upload-time")
    record = {"sha256": digest, "uploaded": uploaded.isoformat() if uploaded else None}
    publish(archive, data)
    publish(facts_file, json.dumps(record).encode())
    return data


def _cached(facts_file: Path, archive: Path) -> bytes | None:
    """Return a whole archive of the cache; a damaged one counts as none."""
    try:
        expected, data = json.loads(facts_file.read_text())["sha256"], archive.read_bytes()
    except FileNotFoundError:
        return None
    return data if hashlib.sha256(data).hexdigest() == expected else None


async def _get(url: str) -> bytes:
    data = bytearray()
    try:
        async with httpx.AsyncClient(follow_redirects=True, timeout=_FETCH_SECONDS) as client:  # noqa: SIM117
            async with client.stream("GET", url) as answer:
                answer.raise_for_status()
                async for chunk in answer.aiter_bytes():
                    data += chunk
                    if len(data) > _MOST_BYTES:
                        raise TaskRefused(f"a source distribution of more than {_MOST_BYTES} bytes", reason="no_sdist")
    except httpx.HTTPError as error:
        raise Unavailable(f"a source distribution could not be fetched: {error}") from error
    return bytes(data)


def _check_hash(data: bytes, expected: str, name: str) -> None:
    if hashlib.sha256(data).hexdigest() != expected:
        raise TaskRefused(f"{name}: the archive's SHA-256 is not the index's", reason="no_sdist")


def unpack(data: bytes, name: str) -> Tree:
    """Return the regular files of a tar or zip archive, without its top folder.

    Links, special files and compiled Python are left out; a path that leads out, or too much content, is refused.

    Raises:
        TaskRefused: reason ``no_sdist``.
    """
    files: dict[str, SourceFile] = {}
    total = 0
    try:
        for path, mode, size, read in _members(data):
            total += size
            if total > _MOST_BYTES or len(files) >= _MOST_FILES:
                raise TaskRefused(f"{name} unpacks to too much", reason="no_sdist")
            inner = _inner(path, name)
            if inner:
                files[inner] = SourceFile(read(), bool(mode & 0o100))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise TaskRefused(f"{name} cannot be unpacked: {error}", reason="no_sdist") from error
    if not files:
        raise TaskRefused(f"{name} is empty", reason="no_sdist")
    return files


def _members(data: bytes) -> Iterator[tuple[str, int, int, Any]]:
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield entry.filename, entry.external_attr >> 16, entry.file_size, lambda e=entry: archive.read(e)
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            if member.isreg():
                yield member.name, member.mode, member.size, lambda m=member: _content(archive, m)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    return stream.read() if stream is not None else b""


def _inner(path: str, name: str) -> str:
    parts = [part for part in PurePosixPath(path).parts if part != "."]
    if path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise TaskRefused(f"{name} holds the unsafe path {path!r}", reason="no_sdist")
    cached = "__pycache__" in parts or path.endswith((".pyc", ".pyo"))
    return "" if cached else "/".join(parts[1:])
