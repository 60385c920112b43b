"""What the Kubernetes backend is told: where the cluster is, and how Pods are to look."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from orchard.core.config import env
from orchard.core.errors import CreateFailed, InvalidArgument
from orchard.core.validation import first_fault

_LONGEST = 31_536_000.0  # seconds; a year
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Ingress:
    """Who may open connections to sandboxes: Pods with the label ``orchard/service=1`` or ``orchard/client=1`` here."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    namespaces: Sequence[str] = ()
    """Names of namespaces in which such Pods may, besides that of the sandboxes: that of the service, if another."""
    cidrs: Sequence[str] = ()
    """Address ranges, such as that of the machine a test runs on."""


@dataclass(frozen=True)
class Egress:
    """What ``network="open"`` means, beside: the world without private ranges and the cluster itself."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    resolvers: Sequence[str] = ()
    """Addresses of the name servers; empty: the cluster's DNS. A node-local cache is ``169.254.20.10``."""
    excepted: Sequence[str] = ()
    """Further address ranges that are not to be reached."""
    unfiltered_ipv6: bool = False
    """True leaves IPv6 to sandboxes whose Pods have link-local addresses only, and ``::1`` to those without network.
    Then set-user-ID programs (``sudo``) work in them too; but most clusters of IPv4 filter no IPv6, and a sandbox
    reaches its node, and others on a shared bridge, by these addresses."""


@dataclass(frozen=True)
class NodeSize:
    """What the largest node that an autoscaler may add can hold."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    cpu: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    memory: Annotated[int, Field(gt=0)]
    """Bytes."""


@dataclass(frozen=True)
class KubernetesSettings:
    """Settings of one Kubernetes backend. Any number of processes may use one namespace at the same time."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    namespace: str | None = None
    """Where the Pods live; None: that of the context, or of the Pod that this runs in."""
    kubeconfig: Path | None = None
    """None: ``KUBECONFIG``, ``~/.kube/config``, or the service account of the Pod that this runs in."""
    context: str | None = None
    daemon_image: str = ""
    """Image that holds ``/sandboxd`` and nothing else; see ``deploy/``."""
    injection: Literal["init", "image-volume"] = "init"
    """How the daemon gets into a Pod. ``image-volume`` is faster, and needs Kubernetes 1.35, or 1.33 with the
    feature gate ``ImageVolume``."""
    runtime_class: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels of the nodes that Pods may go to, beside ``kubernetes.io/os: linux``."""
    tolerations: Sequence[Mapping[str, str | int]] = ()
    """Of the Pods, as Kubernetes writes them. Seconds are whole: Helm reads numbers as 300.0, which it would refuse."""
    pull_secrets: Sequence[str] = ()
    """Names of ``kubernetes.io/dockerconfigjson`` secrets of the namespace."""
    insecure_registries: Sequence[str] = ()
    """``HOST`` or ``HOST:PORT`` of registries that are asked by plain HTTP, or whatever their certificate; the nodes
    have their own list."""
    commit_repository: str = ""
    """``HOST/PATH`` that images made of sandboxes are pushed to, and in which a bare ``sha256:…`` is looked for; the
    nodes pull from there. Empty: nothing can be committed."""
    tools_repository: str = ""
    """``HOST/PATH`` below which tool layers lie, each as ``NAME@sha256:…``; the nodes mount them from there, by image
    volumes. Empty: sandboxes get no tools."""
    push_secrets: Sequence[str] = ()
    """Names of such secrets that let the service push there, where ``pull_secrets`` do not."""
    commit_bytes: Annotated[int, Field(gt=0)] = 2 << 30
    """Most that the layer of a commit may hold, unpacked; the disk of the service holds it twice meanwhile."""
    commits: Annotated[int, Field(ge=1)] = 2
    """Most commits of one process at the same moment, each with its share of the disk; further ones wait their turn."""
    priority_class: str | None = None
    profile: Literal["baseline", "restricted"] = "baseline"
    """Level of PodSecurity that the Pods keep. ``restricted``: no root, no capabilities, no ``user=``."""
    run_as: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    """Uid of the daemon and of all commands, whatever the image says; ``restricted`` needs one where neither the image
    nor the caller names a number."""
    read_only_root: bool = False
    requests: Mapping[str, str] = field(default_factory=lambda: {"cpu": "100m", "memory": "128Mi"})
    """What the scheduler sets aside where a caller names no limit."""
    limits: Mapping[str, str] = field(default_factory=dict[str, str])
    """Limits where a caller names none."""
    overcommit: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Limits that callers name are this many times what is set aside."""
    spool_bytes: Annotated[int, Field(ge=1 << 20)] = 4 << 30
    """Size of the folder in which the output of commands is kept; beyond it the Pod is evicted."""
    ingress: Ingress = field(default_factory=Ingress)
    egress: Egress = field(default_factory=Egress)
    api_servers: Sequence[str] = ()
    """``ADDRESS:PORT`` of the API server as Pods see it; empty: the endpoints of the Service ``kubernetes.default``."""
    largest_node: NodeSize | None = None
    """With an autoscaler: only what not even this node could hold is unschedulable at once."""
    creates: Annotated[int, Field(ge=1)] = 32
    """Most sandboxes of one process in the making at the same moment; further ones wait their turn."""
    node_lost_after: Annotated[int, Field(ge=0)] = 60
    """Seconds that a node may be out of reach until its sandboxes are given up; the cluster counts them from when it
    finds out, which takes it up to a minute."""
    pull_timeout: Annotated[float, Field(gt=0, le=_LONGEST)] = 1800.0
    """Seconds until a pull counts as failed; ``create_timeout`` does not count meanwhile."""
    key_secret: str = "orchard-service-key"
    """Secret with the service key, from which all tokens are derived; made at the first use if absent."""

    @property
    def nodes(self) -> dict[str, str]:
        """Labels that a node must have: a cluster may have Windows nodes too, where no sandbox starts."""
        return {"kubernetes.io/os": "linux", **self.node_selector}

    def reference(self, image: str) -> str:
        """Return an image as a container runtime names it; a bare digest is that of a committed one.

        Raises:
            CreateFailed: nothing can be committed, so a bare digest names nothing.
            InvalidArgument: a digest that is none.
        """
        if not image.startswith("sha256:"):
            return image.removeprefix("docker://")
        if not _DIGEST.fullmatch(image):
            raise InvalidArgument(f"image {image!r} is no digest: sha256: and 64 of 0-9 a-f", field="image")
        if not self.commit_repository:
            raise CreateFailed(
                f"image {image!r}: a digest alone is looked for in commit_repository, which is not set",
                reason="image_not_found", hint="name the image as REPOSITORY@sha256:…",
            )  # fmt: skip
        return f"{self.commit_repository}@{image}"


_ADAPTER = TypeAdapter(KubernetesSettings)


def load_settings(path: Path | None = None) -> KubernetesSettings:
    """Return the settings of a TOML file with the names of ``KubernetesSettings``.

    Args:
        path: None: the file that ``ORCHARD_KUBERNETES`` names; without it the defaults.

    Raises:
        InvalidArgument: the file cannot be read, is no TOML, or has a name or value that is none.
    """
    named = env("ORCHARD_KUBERNETES")
    path = path or (Path(named) if named else None)
    if path is None:
        return KubernetesSettings()
    try:
        return _ADAPTER.validate_python(tomllib.loads(path.read_text()))
    except ValidationError as error:
        where, words = first_fault(error.errors())
        raise InvalidArgument(f"{path}: {where}: {words}", field=where) from error
    except (OSError, ValueError) as error:  # also what is no text
        raise InvalidArgument(f"settings of the Kubernetes backend: {path}: {error}", field="kubernetes") from error
