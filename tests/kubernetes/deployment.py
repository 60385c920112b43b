"""The chart, installed on the cluster by the real Helm, with images built from this checkout."""

import base64
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from deploy.images.build import build, push
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import WITHIN
from tests.kubernetes.daemon import our_address

CHART = Path(__file__).parents[2] / "deploy" / "chart"
RELEASE = "orchard"


@cache
def images(registry: str, plain: bool) -> dict[str, str]:
    """Build and push both images under a tag of their content; return their references by name."""
    return {name: push(built, registry, built.tag, plain=plain) for name, built in build().items()}


@dataclass(frozen=True)
class Deployment:
    """One release in one namespace."""

    cluster: Cluster
    namespace: str

    @property
    def sandboxes(self) -> str:
        """The namespace of its sandboxes."""
        return f"{self.namespace}-sandboxes"

    def values(self) -> dict[str, Any]:
        """Return what every installation here is told."""
        told = images(self.cluster.registry, self.cluster.plain)
        return {
            "images": {"service": told["orchard-service"], "sandboxd": told["orchard-sandboxd"]},
            "reap": {"schedule": "0 0 1 1 *"},  # but at New Year not by itself: tests tell what they reaped
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
            "settings": {
                "insecure_registries": [self.cluster.registry] if self.cluster.plain else [],
                "requests": {"cpu": "10m", "memory": "16Mi"},
                "ingress": {"cidrs": [f"{our_address(self.cluster)}/32"]},
            },
        }

    def helm(self, verb: str, folder: Path, **given: Any) -> str:
        """Install or upgrade with ``given`` values beside the usual ones, and wait until it is ready."""
        file, usual = folder / "values.json", self.values()
        settings = usual["settings"] | given.pop("settings", {})
        file.write_text(json.dumps({**usual, **given, "settings": settings}))
        return self.cluster.helm("-n", self.namespace, verb, RELEASE, CHART, "-f", file, "--wait", "--timeout=240s")

    def uninstall(self) -> None:
        """Remove it, and wait for all of it to be gone."""
        self.cluster.helm("-n", self.namespace, "uninstall", RELEASE, "--wait", WITHIN)

    def secret(self, name: str, namespace: str | None = None) -> dict[str, bytes]:
        """Return the data of a Secret."""
        data = self.cluster.get("-n", namespace or self.namespace, "secret", name)["data"]
        return {field: base64.b64decode(value) for field, value in data.items()}

    @property
    def api_key(self) -> str:
        """The key that the chart has made."""
        return self.secret(f"{RELEASE}-keys")["api-key"].decode()

    def pods(self) -> list[dict[str, Any]]:
        """Return the Pods of the service."""
        return self.cluster.get("-n", self.namespace, "pods", "-l", "app.kubernetes.io/component=service")["items"]

    def get(self, *words: str) -> Any:
        """Return ``kubectl get WORDS`` of its namespace."""
        return self.cluster.get("-n", self.namespace, *words)

    @property
    def replicas(self) -> int:
        """The number of replicas that is asked for."""
        return self.get("deployment", RELEASE)["spec"]["replicas"]

    def whole(self) -> bool:
        """Whether as many replicas as are asked for are ready, and no others are there."""
        deployment = self.get("deployment", RELEASE)
        ready = deployment["status"].get("readyReplicas", 0)
        return deployment["spec"]["replicas"] == ready == len(self.pods())

    def scaler(self) -> dict[str, tuple[str, str]]:
        """Return what the scaler says of itself: status and reason by type."""
        told = self.get("hpa", RELEASE)["status"].get("conditions", ())
        return {each["type"]: (each["status"], each["reason"]) for each in told}

    def budget(self) -> tuple[int, ...]:
        """Return how many Pods the budget of disruptions expects, wants, sees healthy and lets go."""
        status = self.get("pdb", RELEASE)["status"]
        return tuple(
            status[name] for name in ("expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed")
        )

    def urls(self) -> list[str]:
        """Return the addresses of its replicas."""
        return [f"http://{pod['status']['podIP']}:8420" for pod in self.pods()]

    def variables(self) -> dict[str, str]:
        """Return what a client in the cluster has in its environment."""
        return {"ORCHARD_URL": f"http://{RELEASE}.{self.namespace}.svc", "ORCHARD_API_KEY": self.api_key}

    def inside(self, *words: str) -> str:
        """Return what a command says in a Pod of the service, where the service is known by its name."""
        named = [f"{name}={value}" for name, value in self.variables().items()]
        return self.cluster.kubectl("-n", self.namespace, "exec", f"deploy/{RELEASE}", "--", "env", *named, *words)

    def client(self, *words: str) -> dict[str, Any]:
        """Return a Pod ``client`` that runs a command beside the service, once."""
        may: dict[str, Any] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
        }
        container = {
            "name": "client", "image": self.values()["images"]["service"], "command": list(words),
            "env": [{"name": name, "value": value} for name, value in self.variables().items()],
            "securityContext": {**may, "seccompProfile": {"type": "RuntimeDefault"}},
        }  # fmt: skip
        spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
        about = {"name": "client", "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


@contextmanager
def deployed(cluster: Cluster, folder: Path, **given: Any) -> Generator[Deployment]:
    """A release in a namespace that PodSecurity guards at ``restricted``; gone afterwards."""
    with cluster.namespace("restricted", prefix="orchard") as namespace:
        release = Deployment(cluster, namespace)
        try:
            release.helm("install", folder, **given)
            yield release
        finally:
            cluster.helm("-n", namespace, "uninstall", RELEASE, "--ignore-not-found")
