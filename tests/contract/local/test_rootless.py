"""The same tests once more as an ordinary user with sub-uids; run as one already, they are that themselves."""

import os
import pwd
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.users import REPOSITORY, needs_open_checkout

from orchard.core.config import cache_dir

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(
        os.getuid() != 0, reason="only root can make a user; as an ordinary user the suite is this test"
    ),
    pytest.mark.skipif(not shutil.which("newuidmap"), reason="newuidmap is missing (package uidmap)"),
    needs_open_checkout,
]


@pytest.fixture(scope="module")
def user(debian_image: str) -> Iterator[pwd.struct_passwd]:
    """An ordinary user with sub-uids, who has the small Debian's root in his cache."""
    name = f"orchard-{secrets.token_hex(4)}"
    run("useradd", "--create-home", "--shell", "/bin/sh", name)
    try:
        if f"{name}:" not in Path("/etc/subuid").read_text():
            run("usermod", "--add-subuids", "700000-765535", "--add-subgids", "700000-765535", name)
        entry = pwd.getpwnam(name)
        roots = Path(entry.pw_dir) / ".cache" / "orchard" / "roots"
        shutil.copytree(cache_dir() / "roots", roots)
        run("chown", "-R", name, f"{entry.pw_dir}/.cache")
        yield entry
    finally:
        run("userdel", "--remove", name)


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


@pytest.mark.timeout(1200)  # a whole file of tests, each of which has its own
@pytest.mark.parametrize("name", ["test_life.py", "test_images.py", "test_tools.py"])
def test_as_an_ordinary_user(user: pwd.struct_passwd, name: str):
    # Left out is one that compiles Go's library, half a minute with this user's empty cache.
    pytest_command = f"{sys.executable} -m pytest -p no:cacheprovider -q --timeout 300 -k 'not static_binary'"
    done = subprocess.run(
        [
            "runuser",
            "-u",
            user.pw_name,
            "--",
            "sh",
            "-c",
            f"cd {REPOSITORY} && exec {pytest_command} tests/contract/local/{name}",
        ],
        env={"HOME": user.pw_dir, "PATH": os.environ["PATH"], "GOCACHE": f"{user.pw_dir}/.cache/go"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
