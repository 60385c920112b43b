"""The blocks of docs/kubernetes.md that want a cluster, one after the other, in one shell."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import WITHIN
from tests.system.test_snippets import compare, snippets, steps

from orchard.sandbox.kubernetes import KubernetesSettings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kubernetes.md"


@pytest.fixture
def cleared(cluster: Cluster) -> Iterator[None]:
    """The namespace of the page is gone before and after."""

    def clear() -> None:
        cluster.helm("uninstall", "orchard", "--namespace", "orchard", "--ignore-not-found")
        cluster.kubectl("delete", "namespace", "orchard", "orchard-sandboxes", "--ignore-not-found", WITHIN)

    clear()
    yield
    clear()


@pytest.mark.timeout(1500)  # the images may have to be built first
@pytest.mark.usefixtures("cleared")
def test_page_is_true_from_install_to_uninstall(cluster: Cluster, tmp_path: Path) -> None:
    code = "".join(snippet.code for snippet in snippets() if snippet.page == PAGE and snippet.lane == "cluster")
    commands = steps(code.replace("debian:12", cluster.image("debian")))
    assert len(commands) >= 10
    script = "set -e\n" + "".join(f"{command}\necho '<<{number}>>'\n" for number, (command, _) in enumerate(commands))
    env = {
        **os.environ, "KUBECONFIG": str(cluster.kubeconfig), "KUBECACHEDIR": str(tmp_path / "kube"),
        "REGISTRY": cluster.registry, "PLAIN_HTTP": "1" if cluster.plain else "",
        "PATH": f"{Path(sys.executable).parent}:{cluster.programs}:{os.environ['PATH']}",
        **{f"HELM_{kind}_HOME": str(tmp_path / "helm") for kind in ("CACHE", "CONFIG", "DATA")},
    }  # fmt: skip
    log = tmp_path / "output"
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            shell.wait(800)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)
            shell.wait(10)
    compare(commands, log.read_text())


def test_every_setting_is_told_of() -> None:
    told = {
        name for row in re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.M) for name in re.findall(r"`(\w+)`", row)
    }
    assert vars(KubernetesSettings()).keys() <= told
