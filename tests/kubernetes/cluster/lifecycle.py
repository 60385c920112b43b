"""Up, down, status: a real Kubernetes of two nodes on this machine, and nothing of it left afterwards."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.kubernetes.cluster import network, nodes, parts, pki, processes, registry
from tests.kubernetes.cluster.build import locked, programs
from tests.kubernetes.cluster.images import layouts
from tests.kubernetes.cluster.place import (
    BRIDGE,
    KUBECONFIG,
    LOGS,
    NODES,
    PIDS,
    PKI,
    PRIVATE_REGISTRY,
    REGISTRY,
    RUN,
    Node,
)
from tests.kubernetes.cluster.processes import PATIENCE, WITHIN, Part, run, wait_until
from tests.kubernetes.cluster.say import say

from orchard.core.errors import MachineUnfit

_WHOLE = RUN / "whole"
"""Exists once the cluster has been up."""


def up() -> Path:
    """Bring the cluster up, or mend the one that is there, and return its kubeconfig.

    Raises:
        MachineUnfit: not root, a program is missing or does not start.
        TimeoutError: a part did not become ready; names it.
    """
    if os.getuid() != 0:
        raise MachineUnfit("a cluster of its own needs root", hint="sudo make cluster, or set KUBECONFIG to another")
    path = programs()
    images = layouts(path)
    with locked("cluster"):
        started = time.monotonic()
        bridge = Path(f"/sys/class/net/{BRIDGE}")  # gone where the machine was restarted
        if not _WHOLE.exists() or not bridge.exists():
            _remove()
            _make(path, images)
            _WHOLE.touch()
        else:
            _undo_faults()
            if not (dead := missing()):
                say("already up")
                return KUBECONFIG
            say(f"mending: {', '.join(dead)} did not run")
            _start(path)
        say(f"two nodes Ready after {time.monotonic() - started:.1f} s")
    return KUBECONFIG


def down() -> None:
    """Remove every process, mount, namespace, cgroup, link and file of the cluster; what is not there is no error.

    Raises:
        TimeoutError: something of it stays; names it.
    """
    with locked("cluster"):
        if not left():
            say("not up")
            return
        started = time.monotonic()
        _remove()
        try:
            wait_until(lambda: not left(), "the end of the cluster", 30)
        except TimeoutError as error:
            raise TimeoutError(f"{error}, of which there is: {', '.join(left())}") from None
        say(f"gone after {time.monotonic() - started:.1f} s")


def left() -> list[str]:
    """Return what of a cluster there is on this machine: as long as one is up, much of each kind."""
    mounts = [mount for mount in _mounts() if mount.startswith(f"{RUN}/")]
    return [*nodes.left(), *network.left(), *mounts, *([str(RUN)] if RUN.exists() else [])]


def missing() -> list[str]:
    """Return the names of the parts that should run and do not."""
    return [name for name, part in parts.all_parts().items() if not part.running()]


def kubectl(*words: str | Path, stdin: str | None = None) -> str:
    """Return what kubectl says, as the cluster's administrator."""
    return processes.kubectl(programs(), KUBECONFIG, *words, stdin=stdin)


def _make(path: Path, images: dict[str, Path]) -> None:
    for folder in (LOGS, PIDS, PKI):
        folder.mkdir(parents=True)
    network.make()
    pki.make()
    registry.write_configuration()
    (RUN / "outside").mkdir()
    (RUN / "outside" / "passwd").write_text("outside\n")
    nodes.keep_kernel()
    for node in NODES:
        nodes.prepare(node)
    for part in parts.registries():
        part.start(path)
    parts.etcd().start(path)
    parts.apiserver().start(path)
    for name, layout in images.items():
        eventually(lambda name=name, layout=layout: registry.push(layout, f"{REGISTRY}/{name}:1"), f"a push of {name}")
    _start(path)
    dns = (Path(__file__).parent / "dns.yaml").read_text().replace("REGISTRY", REGISTRY)
    kubectl("apply", "-f", "-", stdin=dns)
    kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", WITHIN)
    eventually(lambda: kubectl("get", "serviceaccount", "default"), "the default service account")


def _undo_faults() -> None:
    """Whatever a test that was killed left frozen goes on, and every cable is plugged in."""
    for part in parts.all_parts().values():
        part.signal(signal.SIGCONT)
    for node in NODES:
        network.plug(node, into=True)


def _start(path: Path) -> None:
    """Start every part that does not run, each when what it needs is there."""
    for part in (parts.outside(), *parts.registries(), parts.etcd(), parts.apiserver()):
        part.start(path)
    eventually(lambda: kubectl("get", "--raw", "/readyz"), "the API server")
    needed = ("-n", "kube-system", "get", "configmap", "extension-apiserver-authentication")
    eventually(lambda: kubectl(*needed), "the API server's configmap, without which the managers exit")
    parts.controller_manager().start(path)
    parts.scheduler().start(path)
    for node in NODES:
        containerd, kubelet, *_ = parts.node_parts(node)
        containerd.start(path)
        eventually(lambda node=node: ctr(node, "version"), f"containerd of {node.name}")
        kubelet.start(path)
    names = [f"node/{node.name}" for node in NODES]
    eventually(lambda: kubectl("wait", "--for=condition=Ready", *names, WITHIN), "nodes to be Ready")
    for part in (part for node in NODES for part in parts.node_parts(node)):
        part.start(path)  # kube-router ends where its node is not known yet


def ctr(node: Node, *words: str) -> str:
    """Return what ``ctr`` says about the node's pods and images."""
    return run(programs() / "ctr", "-a", node.socket, "-n", "k8s.io", *words)


def eventually(act: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Do ``act`` until it succeeds, ``seconds`` at most."""

    def done() -> bool:
        try:
            act()
        except MachineUnfit:
            return False
        return True

    wait_until(done, f"{what}; logs are in {LOGS}", seconds)


def _remove() -> None:
    """Everything is thrown away, so nothing is asked to end: it is killed. Kubelets first, they start pods anew."""
    left = sorted(PIDS.iterdir() if PIDS.exists() else [], key=lambda path: "kubelet" not in path.name)
    for path in left:
        Part(path.name, []).stop(grace=0)
    for node in NODES:
        nodes.clear(node)
    for mount in sorted((path for path in _mounts() if path.startswith(f"{RUN}/")), reverse=True):
        run("umount", "--lazy", mount)
    network.remove()
    nodes.clear_machine()
    nodes.restore_kernel()
    if RUN.exists():
        shutil.rmtree(RUN)


def _mounts() -> list[str]:
    return [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]


def status() -> str:
    """Return what there is: parts with pid, memory and log; nodes and pods; where to reach what."""
    if not RUN.exists():
        return "no cluster is up; `make cluster` brings one up"
    lines = [
        f"export KUBECONFIG={KUBECONFIG}",
        f"registry          {REGISTRY}",
        f"private registry  {PRIVATE_REGISTRY}",
        "",
    ]
    lines.append(f"{'part':<24}{'pid':>8}{'MiB':>7}  log")
    total = 0
    for part in (Part(path.name, []) for path in sorted(PIDS.iterdir())):
        process = part.running()
        memory = _memory(process.pid) if process else 0
        total += memory
        lines.append(f"{part.name:<24}{process.pid if process else 'dead':>8}{memory:>7}  {part.log}")
    lines.append(f"{'together':<32}{total:>7}")
    answer = [part for part in ("etcd", "apiserver") if part in missing()]
    if answer:
        return "\n".join([*lines, f"\nnodes and pods are unknown: {', '.join(answer)} does not run"])
    told = (kubectl("get", "nodes", "-o", "wide"), kubectl("get", "pods", "-A", "-o", "wide"))
    return "\n".join([*lines, "", *told]).rstrip()


def _memory(pid: int) -> int:
    """Resident memory in MiB."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE") // 2**20
