"""What tests hold: the cluster's addresses, its tools, and handles to break its parts."""

import contextlib
import json
import secrets
import signal
from collections.abc import Generator
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import lifecycle, metrics, network, parts, refusal, registry, simulated
from tests.kubernetes.cluster.build import CACHE, programs
from tests.kubernetes.cluster.images import layouts
from tests.kubernetes.cluster.place import INTERNET, KUBECONFIG, METADATA, NODES, PRIVATE_REGISTRY, REGISTRY, Node
from tests.kubernetes.cluster.processes import WITHIN, Part, kubectl, run

from orchard.core.config import env
from orchard.core.errors import MachineUnfit


class Cluster:
    """The cluster of this machine, or the one that ``KUBECONFIG`` names; holds no state of its own."""

    def __init__(self) -> None:
        named = Path(env("KUBECONFIG") or KUBECONFIG)
        self.ours = named == KUBECONFIG
        """False where ``KUBECONFIG`` names another cluster, whose parts cannot be broken."""
        self.kubeconfig = named
        """Its administrator's."""
        told = env("ORCHARD_TEST_REGISTRY") or ""
        self.plain = self.ours or told.startswith("http://")
        """Whether the registry speaks plain HTTP."""
        self.registry = REGISTRY if self.ours else told.removeprefix("http://")
        """``HOST:PORT`` that takes pushes and that the nodes pull from."""
        self.private_registry = PRIVATE_REGISTRY
        """The same images behind a password (``pull_secret``), slowly; of our own cluster only."""

        self.internet, self.metadata = INTERNET, METADATA
        """Addresses outside our own cluster that answer ``/passwd`` on port 80 to every pod that may reach them."""

    def up(self) -> None:
        """Bring our own cluster up or mend it; push the images to another's registry."""
        if self.ours:
            lifecycle.up()
            return
        if not self.registry:
            raise MachineUnfit(
                "KUBECONFIG names a cluster, but ORCHARD_TEST_REGISTRY no registry that its nodes pull from",
                hint="HOST:PORT, or http://HOST:PORT where it speaks plain HTTP",
            )
        for name, layout in layouts(self.programs).items():
            self.push(layout, name)

    # -- tools

    @cached_property
    def programs(self) -> Path:
        """The folder of kubectl, helm, ctr, kwok and the cluster's other programs."""
        return programs()

    def kubectl(self, *words: str | Path, stdin: str | None = None) -> str:
        """Return what kubectl says, as the administrator.

        Raises:
            MachineUnfit: it failed; with its words.
        """
        return kubectl(self.programs, self.kubeconfig, *words, stdin=stdin)

    def get(self, *words: str) -> Any:
        """Return ``kubectl get WORDS`` as parsed JSON."""
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, *documents: dict[str, Any], namespace: str = "default") -> None:
        """Create or change objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        how = ("--server-side", "--force-conflicts", "--validate=ignore")  # a third of what it else costs
        self.kubectl("-n", namespace, "apply", *how, "-f", "-", stdin=json.dumps(items))

    def helm(self, *words: str | Path) -> str:
        """Return what helm says; its own folders are in the cache, not the user's."""
        env = {"PATH": "/usr/bin:/bin", "HOME": str(CACHE / "helm")}
        return run(self.programs / "helm", f"--kubeconfig={self.kubeconfig}", *words, env=env)

    def ctr(self, node: str, *words: str) -> str:
        """Return what ctr says about the pods and images of ``node``."""
        return lifecycle.ctr(self._node(node), *words)

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes, simulated ones left out."""
        if self.ours:
            return [node.name for node in NODES]
        return [item["metadata"]["name"] for item in self.get("nodes")["items"]]

    @property
    def tells_use(self) -> bool:
        """Whether it says what pods use (``metrics.k8s.io``), as scalers need it."""
        groups = json.loads(self.kubectl("get", "--raw", "/apis"))["groups"]
        return "metrics.k8s.io" in {each["name"] for each in groups}

    # -- images

    def image(self, name: str, *, private: bool = False) -> str:
        """Return the reference of one of ``images.IMAGES``, in the private registry where asked."""
        return f"{self.private_registry if private else self.registry}/{name}:1"

    def push(self, layout: Path, name: str, tag: str = "1") -> str:
        """Push the image ``latest`` of an OCI layout; return its reference."""
        reference = f"{self.registry}/{name}:{tag}"
        registry.push(layout, reference, plain=self.plain)
        return reference

    @property
    def pull_secret(self) -> str:
        """The ``.dockerconfigjson`` that opens the private registry."""
        return registry.pull_secret()

    # -- a place for a test

    @contextlib.contextmanager
    def namespace(self, level: str = "baseline", prefix: str = "test") -> Generator[str]:
        """A namespace that PodSecurity guards at ``level``; gone with all in it afterwards, without waiting for it."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        labels = {"pod-security.kubernetes.io/enforce": level}
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        try:
            self.kubectl("-n", name, "wait", "--for=create", "serviceaccount/default", WITHIN)
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")

    def token(self, namespace: str, account: str = "default") -> str:
        """Return a bearer token, of one hour, for a service account: API priority and RBAC bind it."""
        return self.kubectl("-n", namespace, "create", "token", account, "--duration=1h").strip()

    def write_kubeconfig(self, path: Path, namespace: str, account: str = "default") -> None:
        """Write a kubeconfig for a service account."""
        told = json.loads(self.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json"))
        told["users"][0]["user"] = {"token": self.token(namespace, account)}
        told["contexts"][0]["context"]["namespace"] = namespace
        path.touch(mode=0o600)
        path.write_text(json.dumps(told))

    # -- faults; every one is undone by its counterpart, and whatever stays dead by `up`

    def part(self, name: str) -> Part:
        """Return a part by name: ``apiserver``, ``etcd``, ``scheduler``, ``node2-kubelet``, ``registry``, …

        Raises:
            KeyError: there is no such part.
        """
        return parts.all_parts()[name]

    def stop(self, name: str, *, grace: float = 10.0) -> None:
        """End a part; ``grace=0`` is kill -9."""
        self.part(name).stop(grace=grace)

    def start(self, name: str) -> None:
        """Start a part that was stopped; returns before it is ready."""
        self.part(name).start(self.programs)

    @contextlib.contextmanager
    def stopped(self, name: str, *, grace: float = 10.0) -> Generator[None]:
        """A part does not run for a while; afterwards the API answers again."""
        self.stop(name, grace=grace)
        try:
            yield
        finally:
            self.start(name)
            self.wait_for_api()

    @contextlib.contextmanager
    def paused(self, name: str) -> Generator[None]:
        """A part stands still for a while (SIGSTOP): connections to it hang instead of breaking."""
        self.part(name).signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.part(name).signal(signal.SIGCONT)

    @contextlib.contextmanager
    def unplugged(self, node: str) -> Generator[None]:
        """A node is cut off for a while; after 20 s it counts as lost. Not node1: the control plane is there."""
        network.plug(self._node(node), into=False)
        try:
            yield
        finally:
            network.plug(self._node(node), into=True)
            self.wait_for_nodes()

    @contextlib.contextmanager
    def refusing(self, namespace: str) -> Generator[None]:
        """For up to a minute the API server answers every service account of ``namespace`` with 429."""
        name = f"refuse-{namespace}"
        token = self.token(namespace)
        self.apply(*refusal.objects(name, namespace))
        try:
            with refusal.seat_taken(token):
                yield
        finally:
            for kind in ("flowschema", "prioritylevelconfiguration"):
                self.kubectl("delete", kind, name, "--ignore-not-found")

    @contextlib.contextmanager
    def simulated(
        self, count: int, *, prefix: str = "simulated", addresses: str = simulated.ADDRESSES
    ) -> Generator[list[str]]:
        """``count`` nodes of kwok, tainted ``orchard.test/simulated`` and labelled so, whose pods run in name only.

        Their IPs are of the range ``addresses``.
        """
        with simulated.running(self.kubeconfig, self.programs, addresses):
            names = [f"{prefix}-{number}" for number in range(count)]
            self.apply(*(simulated.node(name) for name in names))
            try:
                yield names
            finally:
                self.kubectl("delete", "node", *names, "--ignore-not-found")

    @contextlib.contextmanager
    def measured(self) -> Generator[None]:
        """For a while our own cluster tells what each pod uses (``metrics.k8s.io``)."""
        with metrics.running():
            served = (f"--server={metrics.URL}", "get", "--raw", "/readyz")  # it has asked every kubelet
            lifecycle.eventually(lambda: self.kubectl(*served), "metrics-server")
            try:
                self.apply(*metrics.objects(), namespace=metrics.NAMESPACE)
                lifecycle.eventually(lambda: self.kubectl("get", "--raw", metrics.PODS), "what pods use")
                yield
            finally:  # first the word that it answers: an API that is known and silent holds up every namespace's end
                self.kubectl("delete", "apiservice", metrics.API, "--ignore-not-found")
                left = ("service/metrics-server", "endpointslice/metrics-server")
                self.kubectl("-n", metrics.NAMESPACE, "delete", *left, "--ignore-not-found")

    def wait_for_api(self, seconds: float = 60.0) -> None:
        """Return once the API server says it is ready."""
        lifecycle.eventually(lambda: self.kubectl("get", "--raw", "/readyz"), "the API server", seconds)

    def wait_for_nodes(self, seconds: float = 60.0) -> None:
        """Return once every node is Ready."""
        names = [f"node/{name}" for name in self.nodes]
        self.kubectl("wait", "--for=condition=Ready", *names, f"--timeout={seconds:.0f}s")

    def _node(self, name: str) -> Node:
        return next(node for node in NODES if node.name == name)
