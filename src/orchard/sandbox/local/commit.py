"""A stopped sandbox's layer of changes as an image layer over its image, by buildah on the same store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchard.core.disk import disk_full, met_full
from orchard.core.errors import Conflict, InternalError, NotFound, SandboxGone, Unsupported
from orchard.sandbox.local.ending import Endings
from orchard.sandbox.local.images import local_name
from orchard.sandbox.local.powers import Powers
from orchard.sandbox.local.process import Finished
from orchard.sandbox.local.records import Record, Store
from orchard.sandbox.local.storage import Storage

_COPY_SECONDS = 600.0
_CONTAINER = "commit-"
"""Put before a sandbox's id: the name of the container of its commit."""


class Committer:
    """Makes images out of sandboxes of one home."""

    def __init__(self, store: Store, storage: Storage, powers: Powers, endings: Endings) -> None:
        self._store, self._storage, self._powers, self._endings = store, storage, powers, endings

    def commit(self, sandbox_id: str, name: str) -> str:
        """End the sandbox and return the digest of the image that its changes make. The same again answers the same.

        Raises:
            NotFound: no such sandbox.
            SandboxGone: it has ended, and its changes with it.
            Conflict: another process makes or ends it at this moment.
            Unsupported: its image is a folder, which nothing can be laid over.
            MachineUnfit: the disk is full.
            InternalError: buildah failed, with its own words.
        """
        record, full = self._store.read(sandbox_id), local_name(name)
        if full in record.committed:
            return record.committed[full]
        if record.ended_at:
            raise SandboxGone(f"sandbox {sandbox_id} has ended", reason=record.reason, at=record.ended_at)
        if record.image_digest is None:
            raise Unsupported(
                f"the image {record.spec['image']!r} is a folder and has no layers to add one to",
                hint="make an image of it first: orchard.sandbox.local.rootfs.import_tar",
            )
        with self._store.lock(sandbox_id) as held:
            if not held:
                raise Conflict(f"sandbox {sandbox_id} is being made or ended by another process")
            self._endings.stop(record, f"committed as {full}")
            try:
                digest = self._build(record, record.image_digest, full)
                self._store.end(replace(self._store.read(sandbox_id), committed={full: digest}))
            finally:
                self._endings.finish(record)
        return digest

    def _build(self, record: Record, base: str, full: str) -> str:
        stored = self._storage.find([base])
        if stored is None:
            raise NotFound(f"the image {base} of sandbox {record.id} is no longer in the store")
        self._clear()
        container = _CONTAINER + record.id
        self._buildah("from", "--pull-never", "--name", container, stored.id)
        try:
            self._lay(self._store.folder(record.id) / "upper", self._storage.layer_of(container))
            self._buildah("commit", "--quiet", "--format", "oci", container, full)
        finally:
            self._buildah("rm", container)
        made = self._storage.find([full])
        if made is None:
            raise InternalError(f"buildah made no image {full}")
        return made.digest

    def _clear(self) -> None:
        """Remove the containers of commits whose process was killed: their sandboxes' folders are gone."""
        for name in self._storage.containers():
            sandbox_id = name.removeprefix(_CONTAINER)
            if name.startswith(f"{_CONTAINER}sb-") and not self._store.folder(sandbox_id).exists():
                self._storage.buildah("rm", name)  # where it fails, another commit was first or the next tries again

    def _lay(self, upper: Path, layer: Path) -> None:
        """Put the changes where buildah keeps those of its container: both have overlay's own form."""
        script = 'rmdir "$2" && { mv -T "$1" "$2" 2>/dev/null || cp -a "$1" "$2"; }'
        done = self._powers.call(["sh", "-c", script, "sh", str(upper), str(layer)], timeout=_COPY_SECONDS)
        _done("lay", done, self._storage.root)

    def _buildah(self, step: str, *arguments: str) -> None:
        _done(step, self._storage.buildah(step, *arguments), self._storage.root)


def _done(step: str, finished: Finished, folder: Path) -> None:
    if finished.code and met_full(finished.output, folder):
        raise disk_full(folder, finished.output.strip()[-500:])
    if finished.code:
        raise InternalError(f"committing failed at {step}: {finished.output.strip()[-500:]}")
