"""The image ``host``: this machine's own root, read-only below the overlay, without what is private.

Overlay shows one file system, so other mounts are not in it. Of the rest only what holds programs is shown: two layers
laid over the root hide everything else. ``masks`` holds a whiteout for each hidden name; ``fresh``, above it, brings
back empty folders. Both are unpacked from a tar onto a tmpfs that dies with the sandbox's mount namespace, since
overlay refuses layers that lie within one another.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_SHOWN = frozenset(("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "nix"))
_SHOWN_STATE = frozenset(("dpkg", "apt", "pam", "ucf", "python", "python3", "ca-certificates", "alternatives"))
"""Of /var/lib: what package tools need."""
_FRESH = {
    "proc": 0o755, "sys": 0o755, "dev": 0o755, "run": 0o755, "tmp": 0o1777, "home": 0o755, "root": 0o700,
    "mnt": 0o755, "media": 0o755, "srv": 0o755, "var/tmp": 0o1777, "var/cache": 0o755, "var/log": 0o755,
    "var/spool": 0o755, "var/mail": 0o775,
}  # fmt: skip
_PRIVATE = (
    "etc/shadow", "etc/shadow-", "etc/gshadow", "etc/gshadow-", "etc/ssh", "etc/ssl/private", "etc/sudoers",
    "etc/sudoers.d", "etc/kubernetes", "etc/rancher", "etc/docker", "etc/containers/auth.json", "etc/krb5.keytab",
    "etc/wireguard", "etc/openvpn", "etc/letsencrypt", "etc/NetworkManager", "etc/apt/auth.conf",
    "etc/apt/auth.conf.d", "etc/machine-id", "etc/environment", "etc/pip.conf",
)  # fmt: skip
"""Hidden by name, besides everything in /etc that not everybody may read."""


def hiding_layers(own: list[Path], root: Path = Path("/"), tools: Sequence[str] = ()) -> bytes:
    """Return a tar of ``masks/`` and ``fresh/``.

    Args:
        own: Orchard's folders (state, cache); hidden wherever they lie.
        root: the root that is shown.
        tools: mount points of tool layers.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        made: set[str] = set()
        for name in _outermost({*_hidden(root), *_own(own, root)}):
            _add_parents(tar, f"masks/{name}", made)
            whiteout = tarfile.TarInfo(f"masks/{name}")
            whiteout.type, whiteout.mode = tarfile.CHRTYPE, 0o600  # device 0:0 is overlay's mark
            tar.addfile(whiteout)
        for name, mode in _FRESH.items():
            _add_parents(tar, f"fresh/{name}", made)
            tar.addfile(_folder(f"fresh/{name}", mode))
        for point in tools:
            _add_parents(tar, f"fresh{point}/any", made)
        for name in ("hosts", "hostname", "resolv.conf"):
            _add_parents(tar, f"fresh/etc/{name}", made)
            tar.addfile(_file(f"fresh/etc/{name}"))
    return buffer.getvalue()


def bare_layer(folder: Path, root: Path = Path("/"), tools: Sequence[str] = ()) -> list[str]:
    """Fill ``folder`` with the names of the root's shown folders; return those that are to be mounted, read-only.

    For an ordinary user: the kernel refuses the root as a layer to him, since mounts lie below it. Private files need
    no hiding then, because he cannot read them.
    """
    for name, mode in _FRESH.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name).chmod(mode)
    for point in tools:
        (folder / point.lstrip("/")).mkdir(parents=True, exist_ok=True)
    shown: list[str] = []
    for name in _bare_names(root, opened=bool(tools)):
        path = root / name
        if path.is_symlink():
            (folder / name).symlink_to(path.readlink())
        elif path.is_dir():
            (folder / name).mkdir(exist_ok=True)
            shown.append(name)
    return shown


def _bare_names(root: Path, *, opened: bool) -> list[str]:
    """Return what to show; ``opened``: what /opt holds instead of /opt, where mount points are to be made."""
    if not opened or not (root / "opt").is_dir():
        return sorted(_SHOWN)
    within = {f"opt/{each.name}" for each in (root / "opt").iterdir()}
    return sorted((_SHOWN | within) - {"opt", "opt/orchard"})


def _outermost(names: set[str]) -> list[str]:
    return sorted(name for name in names if not any(str(parent) in names for parent in Path(name).parents))


def _hidden(root: Path) -> Iterator[str]:
    yield from (entry.name for entry in os.scandir(root) if entry.name not in _SHOWN and entry.name != "var")
    yield from _all_but(root, "var", frozenset(("lib",)))
    yield from _all_but(root, "var/lib", _SHOWN_STATE)
    yield from (name for name in _PRIVATE if os.path.lexists(root / name))
    for folder, names, files in os.walk(root / "etc"):
        for name in [*names, *files]:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            needed = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
            if not stat.S_ISLNK(mode) and mode & needed != needed:
                yield str(path.relative_to(root))


def _all_but(root: Path, folder: str, shown: frozenset[str]) -> Iterator[str]:
    if (root / folder).is_dir():
        yield from (f"{folder}/{entry.name}" for entry in os.scandir(root / folder) if entry.name not in shown)


def _own(own: list[Path], root: Path) -> Iterator[str]:
    for folder in own:
        real = folder.resolve()
        if real.is_relative_to(root) and real != root:
            yield str(real.relative_to(root))


def _add_parents(tar: tarfile.TarFile, name: str, made: set[str]) -> None:
    parents = [str(parent) for parent in reversed(Path(name).parents) if str(parent) != "."]
    for parent in parents:
        if parent not in made:
            made.add(parent)
            tar.addfile(_folder(parent, 0o755))


def _folder(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info


def _file(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    return info
