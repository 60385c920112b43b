"""The OCI runtime's configuration of one sandbox."""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_CAPABILITIES = [
    "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETUID", "CAP_SETGID",
    "CAP_SETPCAP", "CAP_SETFCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT",
]  # fmt: skip
"""Enough for apt, chown, su and sudo inside; nothing that reaches beyond the sandbox's namespaces."""
_MASKED = [
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
    "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
]  # fmt: skip
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}
_AF_VSOCK = 40
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_ENOSYS, _EPERM = 38, 1
_CAP_SYS_RESOURCE = 24
HOST_FILES = ("hosts", "hostname", "resolv.conf")
"""Files of /etc that the sandbox gets from its state folder, never from its layers."""


@dataclass(frozen=True)
class Plan:
    """What of a sandbox the runtime must know."""

    sandbox_id: str
    argv: Sequence[str]
    host_files: Sequence[str] = HOST_FILES
    """Those of ``HOST_FILES`` whose mount point exists."""
    host_folders: Sequence[str] = ()
    """Folders of the host's root that are mounted read-only under their own names."""
    tools: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Mount point of each tool layer -> its folder."""
    cgroups_path: str | None = None
    """None: no control groups."""
    cpus: str | None = None
    """CPUs that ``nproc`` is to show."""
    set_cpus: bool = False
    """Let the runtime bind the sandbox to ``cpus``."""


def runtime_spec(plan: Plan) -> dict[str, Any]:
    """Return ``config.json`` for the bundle."""
    linux: dict[str, Any] = {
        "namespaces": [{"type": name} for name in ("pid", "ipc", "uts", "mount", "network")],
        "maskedPaths": _MASKED,
        "readonlyPaths": _READ_ONLY,
    }
    seccomp = _seccomp(platform.machine())
    if seccomp is not None:
        linux["seccomp"] = seccomp
    if plan.cgroups_path is not None:
        linux["cgroupsPath"] = plan.cgroups_path
        if plan.cpus is not None and plan.set_cpus:
            linux["resources"] = {"cpu": {"cpus": plan.cpus}}
    process: dict[str, Any] = {
        "terminal": False, "user": {"uid": 0, "gid": 0}, "args": list(plan.argv), "env": [], "cwd": "/",
        "capabilities": {name: _CAPABILITIES for name in ("bounding", "effective", "permitted")},
    }  # fmt: skip
    if _may_lower_oom_score():
        process["oomScoreAdj"] = -500
    return {
        "ociVersion": "1.0.2", "process": process, "root": {"path": "rootfs"}, "hostname": "sandbox",
        "mounts": _mounts(plan), "linux": linux,
    }  # fmt: skip


def _mounts(plan: Plan) -> list[dict[str, Any]]:
    def mount(point: str, kind: str, *options: str, source: str | None = None) -> dict[str, Any]:
        return {"destination": point, "type": kind, "source": source or kind, "options": list(options)}

    found = [
        mount("/proc", "proc", "nosuid", "noexec", "nodev"),
        mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777"),
        mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
    ]
    found += [mount(f"/{name}", "bind", "rbind", "ro", source=f"/{name}") for name in plan.host_folders]
    found += [mount(point, "bind", "bind", "ro", "nosuid", "nodev", source=str(at)) for point, at in plan.tools.items()]
    found += [mount(f"/etc/{name}", "bind", "bind", "nosuid", "nodev", source=name) for name in plan.host_files]
    if plan.cpus is not None:
        found.append(mount("/sys/devices/system/cpu/online", "bind", "bind", "ro", source="cpus-online"))
    return found


def cpu_list(cpus: str) -> str:
    """Return what /sys/devices/system/cpu/online says for as many CPUs as ``cpus`` names."""
    count = len(cpus.split(","))
    return "0\n" if count == 1 else f"0-{count - 1}\n"


@functools.cache
def _may_lower_oom_score() -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return os.getuid() == 0 and bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


@functools.cache
def _seccomp(machine: str) -> dict[str, Any] | None:
    architecture = _ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    names = json.loads((Path(__file__).parent / "seccomp.json").read_text())
    # One rule for one value: rules of one system call are alternatives.
    rules: list[dict[str, Any]] = [
        {"names": names["allow"], "action": "SCMP_ACT_ALLOW"},
        {"names": names["deny"], "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
        {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [_argument("SCMP_CMP_NE", _AF_VSOCK)]},
    ]
    rules += [
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_argument("SCMP_CMP_EQ", value)]}
        for value in _PERSONALITIES
    ]
    return {
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": _ENOSYS, "architectures": [architecture],
        "syscalls": rules,
    }  # fmt: skip


def _argument(comparison: str, value: int) -> dict[str, Any]:
    return {"index": 0, "value": value, "valueTwo": 0, "op": comparison}
