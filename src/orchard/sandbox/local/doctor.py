"""What this machine can and cannot do for the local backend, why, and the one command that mends it."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from orchard.core.errors import MachineUnfit
from orchard.sandbox.local.cgroups import find_cgroups
from orchard.sandbox.local.powers import Powers, find_powers
from orchard.sandbox.local.process import QUIET_ENV
from orchard.sandbox.local.settings import LocalSettings

_TRIAL_SECONDS = 20.0
_TRIAL = """
cd "$1" && mkdir lower upper work root &&
mount -t overlay overlay -o "lowerdir=lower,upperdir=upper,workdir=work$2" root
"""
_FORBIDS = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
)
"""Setting, the value with which it forbids user namespaces to ordinary users, one with which it does not."""


@dataclass(frozen=True)
class Check:
    """One finding about this machine."""

    name: str
    ok: bool
    meaning: str
    """What it is for, and what was found."""
    mend: str | None = None
    """The one command, or step, that mends it."""
    required: bool = True
    """Without it no sandbox can be made; else only what ``meaning`` names is missing."""


def require_fit(settings: LocalSettings, powers: Powers) -> None:
    """Make sure, in a few milliseconds and before anything is made, that a sandbox can be made at all.

    Raises:
        MachineUnfit: what is missing in the first line, and the one command as the hint.
    """
    for check in (_architecture, _sandboxd, _runtime, _util_linux, _home):
        _insist(check(settings))
    _insist(_overlay(settings, powers))


def examine(settings: LocalSettings | None = None) -> list[Check]:
    """Return every check, those of what is required first; nothing is left behind."""
    settings = settings or LocalSettings()
    found = [check(settings) for check in (_architecture, _sandboxd, _runtime, _util_linux, _home)]
    housed = found[-1].ok
    try:
        powers = find_powers()
    except MachineUnfit as error:
        found.append(Check("rights", False, error.message, error.hint))
    else:
        kind = "an ordinary user with sub-uids" if powers.rootless else "root"
        found.append(Check("rights", True, f"sandboxes are made as {kind}"))
        if housed:
            found.append(_overlay(settings, powers))
    found.append(_limits())
    for tool, purpose in (("skopeo", "fetching images"), ("buildah", "making images of sandboxes")):
        found.append(_tool(tool, purpose))
    found.append(_tool("git", "diffs and patches of work trees"))
    found.append(_tool("mmdebstrap", "building a small Debian for tests and the demo"))
    return found


def _insist(check: Check) -> None:
    if not check.ok:
        raise MachineUnfit(check.meaning, hint=check.mend)


def _architecture(settings: LocalSettings) -> Check:
    ok = platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")
    found = f"{platform.system()} on {platform.machine()}"
    return Check("machine", ok, f"sandboxes need Linux on x86_64 or aarch64; this is {found}")


def _sandboxd(settings: LocalSettings) -> Check:
    ok = os.access(settings.sandboxd, os.X_OK)
    place = "there" if ok else f"missing at {settings.sandboxd}"
    words = f"sandboxd, the daemon for the inside of sandboxes, is {place}"
    return Check("sandboxd", ok, words, None if ok else "make sandboxd")


def _runtime(settings: LocalSettings) -> Check:
    return _program(settings.runtime, "starting sandboxes", "runc")


def _util_linux(settings: LocalSettings) -> Check:
    missing = next((name for name in ("unshare", "setpriv", "mount", "sh") if not _which(name)), None)
    return _program(missing or "unshare", "mounting the layers of a sandbox", "util-linux")


def _home(settings: LocalSettings) -> Check:
    home, mend = settings.home, "export ORCHARD_HOME=…"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        return Check("home", False, f"no state can be kept in {home}: {why}", mend)
    if not os.access(home, os.W_OK | os.X_OK):
        return Check("home", False, f"no state can be kept in {home}: it cannot be written", mend)
    return Check("home", True, f"state is kept in {home}")


def _program(name: str, purpose: str, package: str, *, required: bool = True) -> Check:
    ok = _which(name) is not None
    words = f"{name} is {'there' if ok else 'missing'}; it is for {purpose}"
    return Check(package, ok, words, None if ok else f"sudo apt-get install {package}", required)


def _tool(name: str, purpose: str) -> Check:
    return _program(name, purpose, name, required=False)


def _which(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=QUIET_ENV["PATH"])


def _overlay(settings: LocalSettings, powers: Powers) -> Check:
    """Mount an overlay in a private mount namespace, as every sandbox does."""
    with tempfile.TemporaryDirectory(dir=settings.home, prefix=".trial-") as folder:
        options = ",userxattr" if powers.rootless else ""
        script = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _TRIAL, "sh", folder, options]
        try:
            done = powers.call(script, timeout=_TRIAL_SECONDS)
        except MachineUnfit as error:
            return Check("overlay", False, error.message, error.hint)
        powers.remove_tree(Path(folder) / "work")
    if done.code == 0:
        return Check("overlay", True, f"an overlay can be mounted below {settings.home}")
    said = done.output.strip().splitlines()[0] if done.output.strip() else f"exit code {done.code}"
    words, mend = f"no overlay can be mounted below {settings.home}", "export ORCHARD_HOME=…"
    if setting := _forbidding():
        words, mend = "this system forbids user namespaces to ordinary users", f"sudo sysctl -w {setting}"
    elif _in_container():
        words, mend = "this container may not mount what a sandbox needs", "docker run --privileged …"
    return Check("overlay", False, f"{words}: {said}", mend)


def _in_container() -> bool:
    marks = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
    return any(Path(mark).exists() for mark in marks)


def _forbidding() -> str | None:
    """Return, as ``NAME=VALUE``, the setting that would allow user namespaces to this ordinary user."""
    for name, forbids, allows in _FORBIDS if os.getuid() else ():
        path = Path("/proc/sys", *name.split("."))
        if path.exists() and path.read_text().strip() == forbids:
            return f"{name}={allows}"
    return None


def _limits() -> Check:
    groups = find_cgroups()
    missing = {"cpu", "memory", "pids"} - (groups.controllers if groups else frozenset[str]())
    mend = "systemd-run --user --scope -p Delegate=yes COMMAND" if os.getuid() else "sudo COMMAND"
    if missing:
        words = f"no control group that we may write to limits {', '.join(sorted(missing))}"
        return Check("limits", False, words, mend, required=False)
    assert groups is not None
    return Check("limits", True, f"cgroup v{groups.version} limits cpu, memory and pids", required=False)
