"""What a node needs before its parts start: files of configuration and a cgroup; and what its end leaves to clear."""

import contextlib
import json
import os
import signal
from pathlib import Path

from tests.kubernetes.cluster.place import DNS, NODES, PKI, PRIVATE_REGISTRY, REGISTRY, RUN, Node
from tests.kubernetes.cluster.processes import CGROUPS, unified, wait_until

PAUSE = f"{REGISTRY}/pause:1"
_NETWORK = "orchard-test-pods"
_DEVICES = Path("/var/lib/kubelet/device-plugins")
_FIXED = [
    *map(Path, ("/run/containerd/s", "/run/containerd", "/var/lib/cni/results", "/var/lib/cni", "/var/log/containers")),
    _DEVICES,
    _DEVICES.parent,
]
"""Folders that containerd and the kubelet make where no option moves them, inner ones first."""
_KERNEL = Path("/proc/sys")
_TUNED = (
    "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)  # fmt: skip
"""What a kubelet changes for the whole machine, where it may."""
_KEPT = RUN / "kernel.json"
_CONTAINERD = """\
version = 3
root = "{folder}/containerd"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{socket}"
[plugins."io.containerd.cri.v1.images"]
  max_concurrent_downloads = 10
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{folder}/registries"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  Root = "{folder}/runc"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{folder}/cni"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""
_PLAIN_HTTP = """\
server = "http://{registry}"
[host."http://{registry}"]
  capabilities = ["pull", "resolve"]
"""


def keep_kernel() -> None:
    """Note how the machine's kernel is set, before a kubelet sets it."""
    _KEPT.write_text(json.dumps({name: (_KERNEL / name).read_text() for name in _TUNED}))


def restore_kernel() -> None:
    """Set the kernel as it was noted; where nothing was, it is left as it is."""
    if not _KEPT.exists():
        return
    for name, value in json.loads(_KEPT.read_text()).items():
        if (_KERNEL / name).read_text() != value:
            (_KERNEL / name).write_text(value)


def prepare(node: Node) -> None:
    """Write the node's files and make its cgroup."""
    for folder in ("cni", "kubelet", "ipam"):
        (node.folder / folder).mkdir(parents=True)
    text = _CONTAINERD.format(folder=node.folder, socket=node.socket, pause=PAUSE)
    (node.folder / "containerd.toml").write_text(text)
    for registry in (REGISTRY, PRIVATE_REGISTRY):
        hosts = node.folder / "registries" / registry / "hosts.toml"
        hosts.parent.mkdir(parents=True)
        hosts.write_text(_PLAIN_HTTP.format(registry=registry))
    (node.folder / "cni" / "10-pods.conflist").write_text(json.dumps(_pod_network(node)))
    (node.folder / "kubelet.json").write_text(json.dumps(_kubelet(node), indent=1))
    (RUN / "resolv.conf").write_text("# pods with dnsPolicy Default find no name server\n")
    for hierarchy in _hierarchies():
        (hierarchy / node.cgroup).mkdir(exist_ok=True)
    for limit in ("cpus", "mems"):  # cgroup v1: a cpuset starts empty, and nothing runs in an empty one
        whole = CGROUPS / "cpuset" / f"cpuset.{limit}"
        if whole.exists():
            (whole.parent / node.cgroup / whole.name).write_text(whole.read_text())


def clear(node: Node) -> None:
    """Kill what is left of the node's pods and of their shims; remove sockets and cgroups."""
    for hierarchy in _hierarchies():
        root = hierarchy / node.cgroup
        wait_until(lambda root=root: not _kill(_members(root)), f"the end of the processes in {root}")
    shim = f"{node.socket}".encode()
    wait_until(lambda: not _kill(_shims(shim)), f"the end of the shims of {node.name}")
    for bundle in (node.folder / "state").glob("io.containerd.runtime.v2.task/*/*/bootstrap.json"):
        address = json.loads(bundle.read_text()).get("address", "")
        Path(address.removeprefix("unix://")).unlink(missing_ok=True)
    for hierarchy in _hierarchies():
        root = hierarchy / node.cgroup
        wait_until(lambda root=root: _removed(root), f"{root} to be empty")


def clear_machine() -> None:
    """Remove what containerd and the kubelet keep at fixed places, but for folders that others use too."""
    for result in Path("/var/lib/cni/results").glob(f"{_NETWORK}-*-eth0"):
        pod = result.name.removeprefix(f"{_NETWORK}-").removesuffix("-eth0")
        result.with_name(f"cni-loopback-{pod}-lo").unlink(missing_ok=True)
        result.unlink()
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(RUN):
            link.unlink()
    if _DEVICES.exists() and list(_DEVICES.parent.iterdir()) == [_DEVICES]:  # no kubelet but ours
        (_DEVICES / "kubelet.sock").unlink(missing_ok=True)
    for folder in _FIXED:
        with contextlib.suppress(OSError):  # not there, or not empty
            folder.rmdir()


def left() -> list[str]:
    """Return the nodes' cgroups and the containers' shims that there are."""
    groups = [hierarchy / node.cgroup for hierarchy in _hierarchies() for node in NODES]
    shims = [f"a shim of {node.name}, pid {pid}" for node in NODES for pid in _shims(f"{node.socket}".encode())]
    return [*(str(group) for group in groups if group.exists()), *shims]


def _hierarchies() -> list[Path]:
    if unified():
        return [CGROUPS]
    return [path for path in CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _removed(root: Path) -> bool:
    """Remove a cgroup with all below; return False while something in it still ends."""
    for folder in [*sorted(root.rglob("*/"), key=lambda path: len(path.parts), reverse=True), root]:
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _members(root: Path) -> list[int]:
    found: list[int] = []
    for file in root.rglob("cgroup.procs"):
        with contextlib.suppress(FileNotFoundError, OSError):
            found += map(int, file.read_text().split())
    return found


def _shims(address: bytes) -> list[int]:
    """Return the shims that report to ``address``; they live in no cgroup of the node's."""
    found: list[int] = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = file.read_bytes().split(b"\0")
            if b"containerd-shim" in words[0] and address in words:
                found.append(int(file.parent.name))
    return found


def _kill(pids: list[int]) -> bool:
    """Kill them; return whether there were any."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def _pod_network(node: Node) -> dict[str, object]:
    ranges = [[{"subnet": node.pods}]]
    ipam = {
        "type": "host-local",
        "dataDir": str(node.folder / "ipam"),
        "ranges": ranges,
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": "0.4.0", "name": _NETWORK, "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}


def _kubelet(node: Node) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(PKI / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(PKI / f"{node.name}.key"),
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "failCgroupV1": False,
        "featureGates": {"KubeletInUserNamespace": True, "ImageVolume": True},
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(RUN / "resolv.conf"),
        "maxPods": 500,
        "podPidsLimit": 4096,
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "registryPullQPS": 50,
        "registryBurst": 100,
        "kubeAPIQPS": 500,
        "kubeAPIBurst": 1000,
        "nodeLeaseDurationSeconds": 20,
        "volumePluginDir": str(node.folder / "volume-plugins"),
        "podLogsDir": str(node.folder / "pod-logs"),
    }
