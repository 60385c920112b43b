"""A machine that lacks something says what and how to mend it, before anything is made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.users import needs_open_checkout

from orchard.core.errors import MachineUnfit
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.local.doctor import examine
from orchard.sandbox.types import SandboxSpec

_TRY = """
import asyncio, sys
from pathlib import Path
from orchard.core.errors import MachineUnfit
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.types import SandboxSpec

try:
    asyncio.run(LocalBackend(LocalSettings(home=Path(sys.argv[1]))).create(SandboxSpec(image="host"), "k"))
except MachineUnfit as error:
    print(error.message.splitlines()[0], "|", error.hint)
"""


def test_a_fit_machine_passes_what_is_required_and_keeps_nothing(local_home: Path):
    before = sorted(path.name for path in local_home.iterdir())
    checks = examine(LocalSettings(home=local_home))
    assert [check.name for check in checks if check.required and not check.ok] == []
    assert {"sandboxd", "runc", "overlay", "limits", "skopeo", "git"} <= {check.name for check in checks}
    assert sorted(path.name for path in local_home.iterdir()) == before


async def test_a_missing_part_is_named_with_its_command(local_home: Path):
    cases = (
        (LocalSettings(home=local_home, sandboxd=local_home / "none"), "sandboxd", "make sandboxd"),
        (LocalSettings(home=local_home, runtime="no-such-runtime"), "no-such-runtime", "sudo apt-get install runc"),
    )
    for settings, word, command in cases:
        with pytest.raises(MachineUnfit) as unfit:
            await LocalBackend(settings).create(SandboxSpec(image="host"), "k")
        assert unfit.value.hint == command
        found = [check for check in examine(settings) if not check.ok and check.required]
        assert [check.mend for check in found] == [command]
        assert word in found[0].meaning
    assert not (local_home / "sandboxes").exists()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give up the right to mount")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is missing (package util-linux)")
def test_where_mounts_are_forbidden_the_first_line_says_so(local_home: Path):
    forbid = ["setpriv", "--bounding-set", "-sys_admin", "--"]
    done = subprocess.run(
        [*forbid, sys.executable, "-c", _TRY, str(local_home)], capture_output=True, text=True, check=True
    )
    message, _, hint = done.stdout.partition(" | ")
    assert "unshare" in message or "mount" in message
    assert hint.strip()
    assert not (local_home / "sandboxes").exists()


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@needs_open_checkout
def test_a_user_without_sub_uids_is_told_the_command(tmp_path: Path):
    become = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "--"]
    done = subprocess.run(
        [*become, sys.executable, "-c", _TRY, str(tmp_path / "home")], capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"], "HOME": "/"},
    )  # fmt: skip
    assert "no ids of its own" in done.stdout
    assert "sudo usermod --add-subuids" in done.stdout
