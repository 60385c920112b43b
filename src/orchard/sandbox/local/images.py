"""Images: what a reference stands for, as lower layers of an overlay and a configuration."""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from orchard.core.errors import CreateFailed, InvalidArgument, Unavailable
from orchard.sandbox.layout import ARCHITECTURE
from orchard.sandbox.local import daemon
from orchard.sandbox.local.failures import copy_failed
from orchard.sandbox.local.powers import Powers
from orchard.sandbox.local.settings import LocalSettings
from orchard.sandbox.local.storage import Storage, Stored

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FILES = ("oci", "oci-archive", "docker-archive")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REGISTRY_NAME = re.compile(r"[A-Za-z0-9][\w.:/-]*(@sha256:[0-9a-f]{64})?")
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?/")
_LOOK_SECONDS = 60.0
_DOCKER_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True)
class Image:
    """An image that lies unpacked on this machine."""

    layers: Sequence[Path]
    """Lower layers, topmost first."""
    digest: str | None = None
    env: Mapping[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    user: str = ""
    workdir: str = "/"
    entrypoint: Sequence[str] = ()
    """ENTRYPOINT and CMD."""
    is_host: bool = False

    def may_cover(self, name: str) -> bool:
        """Return True if a file can be mounted on ``name`` without leaving anything in the layer of changes.

        A link would be followed, perhaps to nowhere; a name that no layer has is in the skeleton.
        """
        for layer in self.layers:
            folder, path = (layer / name).parent, layer / name
            if folder.is_symlink():
                return False
            if path.is_symlink() or path.is_char_device():  # a whiteout hides the skeleton's too
                return False
            if path.exists():
                return path.is_file()
        return True


@dataclass(frozen=True)
class _Source:
    """Where an image may be: names in the store, and what skopeo would fetch."""

    wanted: Sequence[str]
    """Digest or names in the store, best first; the last one is given to what is fetched."""
    remote: str | None
    """skopeo's name of the source, or None: the store is the only place."""


class Images:
    """Images of one home."""

    def __init__(self, settings: LocalSettings, powers: Powers) -> None:
        self._settings = settings
        self.storage = Storage(settings.home, powers)

    def fetch(self, reference: str) -> Image:
        """Return the image, brought into the store if it is not there; what is there takes no network.

        Raises:
            CreateFailed: image_not_found, image_auth, image_invalid, wrong_arch, registry_unreachable.
            InvalidArgument: no reference, or a folder that cannot be a root.
        """
        folder = _folder_image(reference, self._settings.home)
        if folder is not None:
            return folder
        source = _source(reference)
        stored = self.storage.find(source.wanted)
        if stored is None:
            with self.storage.only_one(source.wanted[-1]):
                stored = self.storage.find(source.wanted) or self._copy(reference, source)
        return _image(reference, stored)

    def _copy(self, reference: str, source: _Source) -> Stored:
        if source.remote is None:
            raise CreateFailed(f"image {reference!r} is not in this machine's store", reason="image_not_found")
        options = self._options(source.remote)
        if source.remote.startswith("docker://"):  # learn of a wrong architecture before fetching all of it
            inspect = ["inspect", "--config", *(each.replace("--src-", "--") for each in options), source.remote]
            done = self.storage.run("skopeo", [*self._policy(), *inspect], timeout=_LOOK_SECONDS)
            if done.code:
                raise copy_failed(reference, done, self.storage.root, remote=True)
            _check_architecture(reference, _config_in(done.output))
        name = source.wanted[-1]
        arguments = [
            *self._policy(),
            "copy",
            "--quiet",
            "--remove-signatures",
            *options,
            source.remote,
            self.storage.place(name),
        ]
        done = self.storage.run("skopeo", arguments)
        stored = self.storage.find(source.wanted)
        if done.code or stored is None:
            remote = source.remote.startswith("docker:")
            raise copy_failed(reference, done, self.storage.root, remote=remote)
        return stored

    def _policy(self) -> list[str]:
        policy = self._settings.skopeo_policy
        return ["--insecure-policy"] if policy is None else ["--policy", str(policy)]

    @staticmethod
    def _options(remote: str) -> list[str]:
        return ["--src-tls-verify=false"] if _LOOPBACK.match(remote.removeprefix("docker://")) else []


def _folder_image(reference: str, home: Path) -> Image | None:
    if reference == "host":
        return Image([Path("/")], is_host=True)
    if not reference.startswith("dir:"):
        return None
    path = Path(reference.removeprefix("dir:"))
    if not path.is_absolute():
        raise InvalidArgument(f"image {reference!r}: the folder's path must be absolute", field="image")
    if not path.is_dir():
        raise CreateFailed(f"image {reference!r}: there is no such folder", reason="image_not_found")
    path = path.resolve()
    if home.resolve().is_relative_to(path):  # also "/": overlay refuses layers that lie within one another
        raise InvalidArgument(
            f"image {reference!r}: the folder holds Orchard's own state or is the machine's root",
            field="image", hint="use the image host for this machine's own programs",
        )  # fmt: skip
    return Image([path])


def _source(reference: str) -> _Source:
    if _DIGEST.fullmatch(reference):
        return _Source([reference], None)
    if reference.startswith("sha256:"):
        raise InvalidArgument(f"image {reference!r} is no digest: sha256: and 64 of 0-9 a-f", field="image")
    kind, colon, rest = reference.partition(":")
    if colon and kind in _FILES:
        return _file_source(reference, rest)
    if colon and kind == "docker-daemon":
        return _Source([_import_name(reference, _docker_image_id(reference, rest))], reference)
    name = rest.removeprefix("//") if kind == "docker" and rest.startswith("//") else reference
    if not _REGISTRY_NAME.fullmatch(name):
        raise InvalidArgument(f"image {reference!r} is not a reference to an image", field="image")
    full = full_name(name)
    digest = [full.partition("@")[2]] if "@" in full else []
    local = [] if kind == "docker" and rest.startswith("//") else [local_name(name)]
    return _Source([*digest, *local, full], f"docker://{full}")


def _file_source(reference: str, rest: str) -> _Source:
    path = Path(rest)
    while not path.exists() and ":" in path.name:  # PATH:TAG, and a path may hold colons too
        path = Path(str(path).rpartition(":")[0])
    if not path.is_absolute():
        raise InvalidArgument(f"image {reference!r}: the path must be absolute", field="image")
    if not path.exists():
        raise CreateFailed(f"image {reference!r}: there is no {path}", reason="image_not_found")
    seen = (path / "index.json" if (path / "index.json").exists() else path).stat()
    return _Source([_import_name(reference, f"{seen.st_mtime_ns} {seen.st_size} {seen.st_ino}")], reference)


def _import_name(reference: str, version: str) -> str:
    digest = hashlib.sha256(f"{reference} {version}".encode()).hexdigest()
    return f"localhost/orchard-import/{digest[:40]}:latest"


def _docker_image_id(reference: str, name: str) -> str:
    """Ask the Docker daemon what the name stands for now, so that a rebuilt image is fetched anew."""
    if not Path(_DOCKER_SOCKET).exists():
        raise CreateFailed(f"image {reference!r}: no Docker daemon runs here", reason="image_not_found")
    try:
        target = f"/images/{urllib.parse.quote(name, safe='')}/json"
        return str(daemon.ask_unnamed(_DOCKER_SOCKET, target, _LOOK_SECONDS)["Id"])
    except Unavailable as error:
        raise CreateFailed(f"image {reference!r}: {error.message}", reason="image_not_found") from error


def full_name(name: str) -> str:
    """Return a registry reference with its registry, its ``library/`` and its tag, as skopeo stores it."""
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not ("." in first or ":" in first or first == "localhost"):
        name = f"docker.io/{name}"
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


def local_name(name: str) -> str:
    """Return what the store calls an image that was made here under ``name``."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return full_name(name)
    return full_name(f"localhost/{name}")


def _image(reference: str, stored: Stored) -> Image:
    _check_architecture(reference, stored.config)
    config = cast("dict[str, Any]", stored.config.get("config") or {})
    pairs = (item.partition("=") for item in cast("list[str]", config.get("Env") or []))
    return Image(
        layers=stored.layers,
        digest=stored.digest,
        env={"PATH": DEFAULT_PATH} | {name: value for name, _, value in pairs},
        user=str(config.get("User") or ""),
        workdir=str(config.get("WorkingDir") or "/"),
        entrypoint=[*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])],
    )


def _check_architecture(reference: str, config: Mapping[str, Any]) -> None:
    ours = ARCHITECTURE
    theirs = str(config.get("architecture") or ours)
    if theirs != ours:
        raise CreateFailed(f"image {reference!r} is for {theirs}, this machine is {ours}", reason="wrong_arch")


def _config_in(output: str) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(output[output.index("{") : output.rindex("}") + 1]))
