"""The store of unpacked images: a containers-storage folder, filled by skopeo (and buildah) and read here.

``overlay-images/images.json`` names the images, ``overlay-layers/layers.json`` their chains of layers, and
``overlay/l/SHORT`` leads to what a layer holds, in overlay's own form.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from orchard.core.config import base_env
from orchard.core.errors import InternalError, MachineUnfit
from orchard.sandbox.local.powers import Powers
from orchard.sandbox.local.process import DIE_WITH_US, Finished

_COPY_SECONDS = 3600.0
Json = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """One image of the store."""

    id: str
    digest: str
    names: Sequence[str]
    layers: Sequence[Path]
    """Lower layers as overlay's short links, topmost first."""
    config: Json
    """The image's configuration, with ``architecture`` and ``config``."""


class Storage:
    """The store of one home; safe across threads and processes, as skopeo's own locks are."""

    def __init__(self, home: Path, powers: Powers) -> None:
        self.root = home / "storage"
        self._run, self._locks = home / "storage-run", home / "pulls"
        self._powers = powers
        self._mutex = threading.Lock()
        self._index: tuple[object, list[Json], dict[str, Json]] | None = None

    def place(self, name: str) -> str:
        """Return what skopeo calls ``name`` in this store."""
        return f"containers-storage:[overlay@{self.root}+{self._run}]{name}"

    def find(self, wanted: Sequence[str]) -> Stored | None:
        """Return the first image whose digest or one of whose names is in ``wanted``."""
        images, layers = self._read()
        for each in wanted:
            for image in images:
                if each == image.get("digest") or each in image.get("names", ()):
                    return self._stored(image, layers)
        return None

    @contextmanager
    def only_one(self, name: str) -> Generator[None]:
        """Let one process at a time bring ``name`` into the store; others wait."""
        self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._locks / sha256(name.encode()).hexdigest(), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def run(
        self, tool: str, arguments: Sequence[str], *, timeout: float = _COPY_SECONDS, env: Mapping[str, str] = {}
    ) -> Finished:
        """Run skopeo or buildah with the rights that the store takes, its trial mounts kept off the host's table.

        Raises:
            MachineUnfit: the tool is not there.
        """
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole = {**base_env(), "LC_ALL": "C", **env}
        if self._powers.rootless:  # else these tools would nest a namespace of their own; as root it loses opaque marks
            whole["_CONTAINERS_USERNS_CONFIGURED"] = "done"
        argv = [*DIE_WITH_US, "unshare", "--mount", "--propagation", "private", tool, *arguments]
        done = self._powers.call(argv, timeout=timeout, env=whole)
        if done.code == 127:  # unshare's own word for: no such program
            raise MachineUnfit(f"{tool} is missing, and images need it", hint=f"sudo apt-get install {tool}")
        return done

    def buildah(self, *arguments: str, timeout: float = _COPY_SECONDS) -> Finished:
        """Run buildah on this store."""
        store = ["--root", str(self.root), "--runroot", str(self._run), "--storage-driver", "overlay"]
        return self.run(
            "buildah", [*store, *arguments], timeout=timeout, env={"CONTAINERS_CONF": str(self._settings())}
        )

    def _settings(self) -> Path:
        """Return settings for buildah: newer ones (Debian 13) insist on a network program, to which we give no work."""
        folder = self.root.parent / "buildah"
        path = folder / "containers.conf"
        if not path.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                (folder / "netavark").symlink_to("/bin/true")
            draft = folder / f".{os.getpid()}-{threading.get_ident()}"
            draft.write_text(f"[engine]\nhelper_binaries_dir = [{json.dumps(str(folder))}]\n")
            draft.rename(path)
        return path

    def layer_of(self, container: str) -> Path:
        """Return the folder in which the store keeps the changes of a container of buildah's."""
        for each in self._containers():
            if container in each.get("names", ()):
                return self.root / "overlay" / str(each["layer"]) / "diff"
        raise InternalError(f"buildah tells of no container {container} in {self.root}")

    def containers(self) -> list[str]:
        """Return the names of buildah's containers in this store."""
        return [str(name) for each in self._containers() for name in each.get("names", ())]

    def _containers(self) -> list[Json]:
        found: list[Json] = []
        for name in ("containers.json", "volatile-containers.json"):  # older ones keep all in the first
            path = self.root / "overlay-containers" / name
            found += cast("list[Json]", json.loads(path.read_text() or "[]")) if path.exists() else []
        return found

    def _read(self) -> tuple[list[Json], dict[str, Json]]:
        """Return images and layers, parsed again only after a change."""
        paths = [self.root / "overlay-images" / "images.json", self.root / "overlay-layers" / "layers.json"]
        try:
            stamp = [(path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_ino) for path in paths]
        except FileNotFoundError:
            return [], {}
        with self._mutex:
            if self._index is None or self._index[0] != stamp:
                images = cast("list[Json]", json.loads(paths[0].read_text() or "[]"))
                layers = cast("list[Json]", json.loads(paths[1].read_text() or "[]"))
                self._index = (stamp, images, {layer["id"]: layer for layer in layers})
            return self._index[1], self._index[2]

    def _stored(self, image: Json, layers: Mapping[str, Json]) -> Stored | None:
        chain: list[Path] = []
        layer = image.get("layer", "")
        while layer:
            if layer not in layers:  # being written this moment
                return None
            link = (self.root / "overlay" / layer / "link").read_text().strip()
            chain.append(self.root / "overlay" / "l" / link)
            layer = layers[layer].get("parent", "")
        folder = self.root / "overlay-images" / image["id"]
        encoded = base64.b64encode(f"sha256:{image['id']}".encode()).decode()
        config = cast("Json", json.loads((folder / f"={encoded}").read_text()))
        return Stored(str(image["id"]), str(image["digest"]), image.get("names", ()), chain, config)
