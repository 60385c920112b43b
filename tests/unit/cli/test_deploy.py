"""How `orchard deploy check` and `orchard reap` end and what they print; what they find is in tests/kubernetes."""

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import orchard

from orchard.core.errors import Unavailable
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.kubernetes.checks import Finding
from orchard.sandbox.kubernetes.reap import Reaped

MADE, SHUT = Finding("sandbox", "ok", "made"), Finding("network-policy", "ok", "shut")
UNTRIED = Finding("sandbox", "unknown", "not reached", "run it in the cluster", "no_witness")
LACK = Finding("admission", "missing", "refused", None, "Forbidden")
CONFIG = """{"kind": "Config", "apiVersion": "v1", "current-context": "a",
"contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}], "users": [{"name": "a", "user": {}}],
"clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}]}"""


@pytest.mark.parametrize(
    ("findings", "code", "fit", "last"),
    [
        ([MADE, SHUT], 0, True, "sandboxes can be made here"),
        ([UNTRIED], 7, None, "not seen whether sandboxes can be made here, and are shut: run it in the cluster"),
        ([], 7, None, "not seen whether sandboxes can be made here, and are shut: run it in the cluster"),
        ([LACK, UNTRIED], 8, False, "sandboxes cannot be made here, or are not shut"),
    ],
)
def test_the_last_line_and_the_exit_code_say_what_was_seen(
    findings: list[Finding], code: int, fit: bool | None, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def examine(*, probe: bool) -> AsyncIterator[Finding]:
        assert probe
        for each in findings:
            yield each

    monkeypatch.setattr("orchard.sandbox.kubernetes.checks.examine", examine)
    done = orchard("deploy", "check", env={})
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, lines[-1].startswith(last)) == (code, True), lines
    assert [each.reason for each in findings if each.reason and f"({each.reason})" not in "\n".join(lines)] == []
    told = orchard("deploy", "check", "--json", env={})
    answer = json.loads(told.stdout)
    assert (told.returncode, answer["fit"]) == (code, fit)
    assert [each["reason"] for each in answer["findings"]] == [each.reason for each in findings]


@pytest.mark.parametrize("every", ["0", "-5", "0.5", "nan", "inf"])
def test_reaping_without_a_pause_is_refused(every: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reap(_: KubernetesBackend) -> Any:
        raise AssertionError("it looked")

    monkeypatch.setattr(KubernetesBackend, "reap", reap)
    done = orchard("reap", "--every", every, env={})
    assert (done.returncode, "--every must be 1 s or more" in done.stderr.decode()) == (2, True), done.stderr


def test_reaping_again_and_again_outlives_a_look_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    looks = list[int]()

    async def reap(_: KubernetesBackend) -> list[Reaped]:
        looks.append(len(looks))
        if len(looks) == 1:
            raise Unavailable("the API server does not answer")
        os.kill(os.getpid(), signal.SIGTERM)
        return [Reaped("sb-1", "pod", "ended", "ttl")]

    (tmp_path / "config").write_text(CONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(KubernetesBackend, "reap", reap)
    done = orchard("reap", "--every", "1", env={})
    assert done.stderr.decode().splitlines() == ["error: the API server does not answer"]
    assert (done.returncode, done.stdout) == (143, b"sb-1\tended\tttl\n")
    assert looks == [0, 1]


def test_reaping_a_cluster_that_nobody_has_named_ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    done = orchard("reap", "--every", "1", env={})
    assert (done.returncode, "KUBECONFIG" in done.stderr.decode()) == (2, True), done.stderr
