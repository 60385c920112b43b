"""Limits, OOM, kill and life on a kernel with pure cgroup v2: as root, and as a user with a delegated subtree."""

import re

import pytest
from tests.system.vm.lane import boot, missing_tools

ROOT_LINES = (
    "test_limits.py or nothing_is_left or lease_ends or killed_from_outside or another_process_finds or never_shadows"
)
USER_LINES = "memory_bomb or fork_bomb or delete_ends or nothing_is_left"
FILES = "tests/contract/local/test_limits.py tests/contract/local/test_life.py tests/contract/local/test_tools.py"
PYTEST = "python3 -m pytest -p no:cacheprovider --color=no -q --timeout 120"

DELEGATE = """
useradd -m someone; chmod 1777 /tmp; here=/sys/fs/cgroup/user; mkdir -p $here/shell
for folder in /sys/fs/cgroup $here; do echo '+cpu +memory +pids +cpuset' > $folder/cgroup.subtree_control; done
for folder in $here $here/shell; do chown someone $folder $folder/cgroup.procs $folder/cgroup.subtree_control; done
echo 0 > $here/shell/cgroup.procs
export HOME=/home/someone ORCHARD_HOME=/home/someone/orchard
"""

pytestmark = [
    pytest.mark.vm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {', '.join(missing_tools())}"),
]


def test_the_local_backend_on_cgroup_v2():
    as_user = "setpriv --reuid someone --regid someone --clear-groups --"
    code, console = boot(
        f"cat /proc/self/cgroup; {PYTEST} -k '{ROOT_LINES}' {FILES} || exit 1\n{DELEGATE}\n"
        f"{as_user} {PYTEST} -k '{USER_LINES}' {FILES}",
        timeout=700,
    )
    assert code == 0, console[-6000:]
    assert "0::/\n" in console  # v2 …
    assert not re.search(r"\d:(memory|pids)", console)  # … alone
    assert "skipped" not in console
    passed = [int(count) for count in re.findall(r"(\d+) passed", console)]
    assert len(passed) == 2, console[-3000:]
    assert passed[0] >= 13
    assert passed[1] >= 4
