"""Limits, OOM, kill and life on a kernel with pure cgroup v2, where the machine at hand has v1 or gives no rights."""

import re

import pytest
from tests.system.vm.lane import boot, missing_tools

LINES = "test_limits.py or nothing_is_left or lease_ends or killed_from_outside or another_process_finds"

pytestmark = [
    pytest.mark.vm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing_tools()), reason=f"missing: {', '.join(missing_tools())}"),
]


def test_the_local_backend_on_cgroup_v2():
    files = "tests/contract/local/test_limits.py tests/contract/local/test_life.py"
    command = f"python3 -m pytest -p no:cacheprovider --color=no -q --timeout 120 -k '{LINES}' {files}"
    code, console = boot(f"head -1 /proc/self/cgroup; {command}", timeout=600)
    assert code == 0, console[-6000:]
    assert "0::/" in console  # v2 alone
    assert "skipped" not in console
    passed = re.search(r"(\d+) passed", console)
    assert passed is not None
    assert int(passed[1]) >= 12
