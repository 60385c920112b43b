"""``scripts/setup`` names what keeps a machine from making sandboxes in its first line, and makes nothing then."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from orchard.sandbox.local.process import call

REPOSITORY = Path(__file__).parents[3]
BECOME = ("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "--")
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user, or give up the right to mount"),
]


@pytest.fixture
def checkout() -> Iterator[Path]:
    """What of the checkout the script reads, where every user may read it."""
    folder = Path(tempfile.mkdtemp(prefix="orchard-setup-"))
    folder.chmod(0o777)
    (folder / "scripts").mkdir()
    for name in ("scripts/setup", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder / name)
    yield folder
    shutil.rmtree(folder)


def refusal(checkout: Path, become: Sequence[str], **env: str) -> str:
    """Run ``scripts/setup demo``, which refuses; return its only line."""
    before = sorted(checkout.rglob("*"))
    done = subprocess.run(
        [*become, f"{checkout}/scripts/setup", "demo"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(checkout), **env},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert sorted(checkout.rglob("*")) == before, "something was made"
    (line,) = done.stderr.splitlines()
    return line


def test_a_user_is_told_all_that_root_must_do_in_one_command(checkout: Path):
    line = refusal(checkout, BECOME, DPKG_ADMINDIR=str(checkout))
    what, _, command = line.partition("; run once: ")
    assert what == "setup: missing system packages and sub-uids for 54321"
    found = re.fullmatch(
        r"sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends ([a-z0-9 -]+)"
        r" && usermod --add-subuids (\d+)-(\d+) --add-subgids \2-\3 54321'",
        command,
    )
    assert found, command
    assert {"runc", "skopeo", "buildah", "uidmap"} <= set(found[1].split())
    first, last = int(found[2]), int(found[3])
    assert last - first == 65535
    for table in (Path("/etc/subuid"), Path("/etc/subgid")):
        for entry in table.read_text().split() if table.exists() else ():
            _, start, count = entry.split(":")
            assert first >= int(start) + int(count), f"these ids are of {entry}"


def test_a_user_who_lacks_sub_uids_alone_is_told_that_command_alone(checkout: Path):
    line = refusal(checkout, BECOME)
    assert "packages" not in line
    assert "apt-get" not in line
    assert line.startswith("setup: missing sub-uids for 54321; run once: sudo sh -c 'usermod --add-subuids ")


def test_where_root_may_not_mount_the_line_says_so(checkout: Path):
    line = refusal(checkout, ("setpriv", "--bounding-set", "-sys_admin", "--"))
    assert "may not mount" in line or "does not let" in line
    assert "Operation not permitted" in line


def test_a_setting_that_forbids_user_namespaces_is_named_with_the_command(checkout: Path):
    def allow_all_ids(pid: int) -> None:
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text("0 0 65536")

    script = f"echo 0 > /proc/sys/user/max_user_namespaces && exec {' '.join(BECOME)} {checkout}/scripts/setup demo"
    env = {"PATH": os.environ["PATH"], "HOME": str(checkout)}
    done = call(["sh", "-c", script], timeout=120, env=env, gate=allow_all_ids)
    assert done.code == 3, done.output
    (line,) = done.output.splitlines()
    assert line.startswith("setup: this system forbids user namespaces to ordinary users (")
    assert line.endswith("; run once: sudo sysctl -w user.max_user_namespaces=15000")
