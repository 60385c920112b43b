"""Starting one sandbox: its overlay in a private mount namespace, and the runtime from there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchard.core.config import cache_dir
from orchard.core.disk import disk_full, met_full
from orchard.core.errors import CreateFailed, MachineUnfit, Unavailable
from orchard.sandbox.local import daemon
from orchard.sandbox.local.cgroups import Cgroups
from orchard.sandbox.local.hostroot import bare_layer, hiding_layers
from orchard.sandbox.local.images import Image
from orchard.sandbox.local.powers import Powers
from orchard.sandbox.local.process import DIE_WITH_US, Target, target
from orchard.sandbox.local.records import Record
from orchard.sandbox.local.runtime_spec import HOST_FILES, Plan, cpu_list, runtime_spec
from orchard.sandbox.local.settings import LocalSettings
from orchard.sandbox.local.toolmounts import find_tools, write_mount_points
from orchard.sandbox.types import SandboxSpec

_SKELETON = "skeleton-1"
_SKELETON_FOLDERS = ("proc", "sys", "dev", "tmp", "run", "etc")
_OVERLAY = "index=off,redirect_dir=off,metacopy=off"
"""Whatever the kernel's defaults: the layer of changes is to stand for itself, since it may become an image's.
``userxattr`` implies the same."""
_SOCKET_BACKLOG = 512
_SOCKET_TRIES = 20
_FIRST_FD = 3
_CONFIG, _STATE, _BINARY = 1, 2, 3
"""Places, after the socket's, in the list of handed-in descriptors."""


@dataclass(frozen=True)
class Launch:
    """Everything that starting one sandbox takes."""

    settings: LocalSettings
    powers: Powers
    cgroups: Cgroups | None
    spec: SandboxSpec
    record: Record
    image: Image
    folder: Path
    token: str
    timeout: float
    """Seconds until a command must work."""

    def run(self) -> Target:
        """Start it and return its PID 1 once sandboxd answers. The caller removes what is left when this raises.

        Raises:
            CreateFailed: start_failed or start_timeout, with the runtime's own words.
        """
        overlay = self._overlay()
        self._write_bundle()
        with contextlib.ExitStack() as stack:
            fds = [self._listen(stack), -1, -1, -1]
            fds[_STATE] = _open(stack, self.folder / "state", os.O_DIRECTORY)
            fds[_BINARY] = _open(stack, self.settings.sandboxd, 0)
            groups: dict[str, int] = {}
            if self.cgroups is not None:
                groups = stack.enter_context(self.cgroups.open_commands(self.record.id))
            places = {name: _FIRST_FD + len(fds) + place for place, name in enumerate(groups)}
            fds[_CONFIG] = _sealed(stack, json.dumps(self._config(places)).encode())
            fds += groups.values()
            script = self._script(overlay, len(fds))
            done = self.powers.call(
                [*DIE_WITH_US, "unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                timeout=self.timeout,
                fds=fds,
                log=self.folder / "state" / "log",
            )
        if done.code:
            raise self._failure(done.code, done.output)
        process = target(int((self.folder / "pid").read_text()))
        self._greet(process)
        assert process is not None
        return process

    def _overlay(self) -> str:
        """Make the folders of the overlay; return its options."""
        for name in ("rootfs", "upper", "work"):
            (self.folder / name).mkdir(mode=0o755)
        top = self.image.layers[0].stat() if self.image.layers else None
        # The root's own mode; its owner may write, whatever the store gave a layer without an entry for its root.
        (self.folder / "upper").chmod(stat.S_IMODE(top.st_mode) | stat.S_IWUSR if top else 0o755)
        options = "userxattr" if self.powers.rootless else _OVERLAY
        return f"lowerdir={':'.join(self._lower())},upperdir=upper,workdir=work,{options}"

    def _write_bundle(self) -> None:
        (self.folder / "state").mkdir(mode=0o700)
        cpus = self.cgroups.pick_cpus(self.spec.cpu) if self.cgroups else None
        if self.cgroups is not None:
            self.cgroups.make_commands(self.spec, self.record.id)
            if cpus is not None:
                self.cgroups.set_cpus_v2(self.record.id, cpus)
        if cpus is not None:
            (self.folder / "cpus-online").write_text(cpu_list(cpus))
        (self.folder / "hosts").write_text("127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost\n")
        (self.folder / "hostname").write_text("sandbox\n")
        (self.folder / "resolv.conf").write_text("# no network: every look-up fails at once\noptions attempts:1\n")
        tools = find_tools(self.spec.tools)
        bare_host = self.image.is_host and self.powers.rootless
        plan = Plan(
            sandbox_id=self.record.id,
            argv=(f"/proc/self/fd/{_FIRST_FD + _BINARY}", "--config-fd", str(_FIRST_FD + _CONFIG)),
            host_files=[name for name in HOST_FILES if self._may_cover(name)],
            host_folders=bare_layer(self.folder / "host", tools=list(tools)) if bare_host else (),
            tools=tools,
            cgroups_path=self.cgroups.runtime_path(self.record.id) if self.cgroups else None,
            cpus=cpus,
            set_cpus=self.cgroups is not None and self.cgroups.version == 1,
        )
        (self.folder / "config.json").write_text(json.dumps(runtime_spec(plan)))

    def _may_cover(self, name: str) -> bool:
        if self.image.is_host:
            path = Path("/etc") / name
            return not self.powers.rootless or (path.is_file() and not path.is_symlink())
        return self.image.may_cover(f"etc/{name}")

    def _lower(self) -> list[str]:
        """Name the lower layers relative to the folder: many must fit into one page of options."""
        points = list(find_tools(self.spec.tools))
        if self.image.is_host and self.powers.rootless:
            return ["host"]  # filled by the bundle, which mounts the shown folders on it
        if self.image.is_host:
            (self.folder / "host").mkdir()
            (self.folder / "host.tar").write_bytes(hiding_layers([self.settings.home, cache_dir()], tools=points))
            return ["host/fresh", "host/masks", "/"]
        names = ["t"] if points else []
        write_mount_points(self.folder / "t", points, self.image)
        links = self.settings.home / "storage" / "overlay" / "l"
        (self.folder / "l").symlink_to(links)
        for place, layer in enumerate(self.image.layers):
            if layer.parent == links:
                names.append(f"l/{layer.name}")
            else:  # a path may hold the characters that separate options
                (self.folder / f"d{place}").symlink_to(layer)
                names.append(f"d{place}")
        (self.folder / "k").symlink_to(skeleton(self.settings.home))
        return [*names, "k"]

    def _script(self, overlay: str, fds: int) -> str:
        runtime = [self.settings.runtime, "--root", str(self.settings.home / "runtime"), "run", "--detach"]
        runtime += ["--no-new-keyring", "--pid-file", "pid", "--preserve-fds", str(fds), "--bundle", "."]
        lines = [
            "set -e",
            f"cd {shlex.quote(str(self.folder))}",
            f"mount -t overlay overlay -o {shlex.quote(overlay)} rootfs",
            f"exec {shlex.join([*runtime, self.record.id])}",
        ]
        if self.image.is_host and not self.powers.rootless:
            lines[2:2] = ["mount -t tmpfs -o mode=755 tmpfs host", "tar -xf host.tar -C host --numeric-owner"]
        return "\n".join(lines)

    def _listen(self, stack: contextlib.ExitStack) -> int:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        for _ in range(_SOCKET_TRIES):
            Path(self.record.socket).parent.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # the last socket's end took the short folder with it
                listener.bind(self.record.socket)
                break
        listener.listen(_SOCKET_BACKLOG)
        return listener.fileno()

    def _config(self, groups: dict[str, int]) -> dict[str, Any]:
        spec, record = self.spec, self.record
        config: dict[str, Any] = {
            "id": record.id,
            "token_sha256": hashlib.sha256(self.token.encode()).hexdigest(),
            "listen": {"fd": _FIRST_FD},
            "env": record.env,
            "user": record.user,
            "workdir": record.workdir,
            "lease": {
                "ttl_s": spec.ttl, "max_ttl_s": spec.max_ttl, "idle_s": spec.idle, "heartbeat_s": spec.heartbeat,
            },
            "state_fd": _FIRST_FD + _STATE,
            "entrypoint": self._entrypoint(),
        }  # fmt: skip
        if groups:
            assert self.cgroups is not None
            config["cgroup"] = {"version": self.cgroups.version, "fds": groups}
        return config

    def _entrypoint(self) -> Sequence[str] | None:
        if self.spec.entrypoint is True:
            return list(self.image.entrypoint) or None
        return list(self.spec.entrypoint) if self.spec.entrypoint else None

    def _greet(self, process: Target | None) -> None:
        """Return once sandboxd answers; its socket has been listening from the start, so nobody polls."""
        try:
            sent = daemon.headers(self.record.id, self.token)
            health = daemon.ask(self.record.socket, "/v1/health", sent, self.timeout)
        except Unavailable as error:
            words = self._log()
            alive = process is not None and process.alive()
            reason = "start_timeout" if alive else "start_failed"
            raise CreateFailed(f"sandboxd did not answer: {error.message} {words}".strip(), reason=reason) from error
        if self.cgroups is not None and health.get("commands_mark") != "cgroup":  # it goes on without; limits do not
            raise CreateFailed(f"the limits cannot take hold: {self._log()}".strip(), reason="start_failed")

    def _log(self) -> str:
        log = self.folder / "state" / "log"
        return log.read_text(errors="replace")[-500:] if log.exists() else ""

    def _failure(self, code: int, output: str) -> Exception:
        words = output.strip()[-800:]
        if met_full(words, self.folder):
            return disk_full(self.folder.parent, words)
        if code == -9:
            return CreateFailed(f"starting took more than {self.timeout:g} s: {words}", reason="start_timeout")
        if code == 127:  # the shell's own word for: no such program
            return MachineUnfit(f"a program is missing: {words}", hint="sudo apt-get install runc util-linux")
        return CreateFailed(f"the runtime could not start it: {words}", reason="start_failed")


def skeleton(home: Path) -> Path:
    """Return the lowest layer of every sandbox: mount points alone. Made on first use."""
    folder = home / _SKELETON
    if folder.exists():
        return folder
    draft = home / f".{_SKELETON}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        for name in _SKELETON_FOLDERS:
            (draft / name).mkdir(parents=True)
        (draft / "tmp").chmod(0o1777)
        for name in HOST_FILES:
            (draft / "etc" / name).touch(0o644)
        draft.rename(folder)
    except OSError:
        Powers().remove_tree(draft)
        if not folder.exists():  # else another process was first
            raise
    return folder


def _open(stack: contextlib.ExitStack, path: Path, flags: int) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    stack.callback(os.close, fd)
    return fd


def _sealed(stack: contextlib.ExitStack, content: bytes) -> int:
    fd = os.memfd_create("config")
    stack.callback(os.close, fd)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
