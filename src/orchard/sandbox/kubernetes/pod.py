"""From a specification to a Pod. Pure: nothing is asked, nothing is made."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta

from orchard.core.errors import InvalidArgument, Unsupported
from orchard.sandbox.kubernetes import identity, labels
from orchard.sandbox.kubernetes.identity import Identity
from orchard.sandbox.kubernetes.objects import Json, part
from orchard.sandbox.kubernetes.settings import KubernetesSettings
from orchard.sandbox.kubernetes.toolvolumes import add_tools
from orchard.sandbox.toolnames import parse_tools
from orchard.sandbox.types import DEFAULT_PIDS, SandboxSpec

PORT = 8421
CONTAINER = "sandbox"
INSTALLER = "sandboxd"
SPEC = "orchard/spec"
SPEC_HASH = "orchard/spec-sha256"
FACTS = "orchard/image-facts"
CREATED = "orchard/created"
DEADLINE = "orchard/create-deadline"
"""Annotation: a Pod that is still pending at this time was given up by whoever made it."""
CONFIG_ENV = "SANDBOXD"

HOME = "/.orchard"
"""Below it lie our mounts; nothing of it belongs to the image."""
_BIN = f"{HOME}/bin"
_STATE = f"{HOME}/state"
_DEATH = f"{HOME}/death"
_GRACE_SECONDS = 5
_SPOOLS = 4  # kept outputs together take up to so many times what one process may
_COMMAND_OOM_ADJUST = 1000  # the kernel picks a command before the daemon
_SEAL_SECONDS = 45.0  # from the first question, until a network that was to be shut and is not counts as never
_LONGEST_CONFIG = 120 << 10  # bytes; the kernel takes 128 KiB a variable
_LEAST_MEMORY = 16 << 20  # bytes
_MOST = 1 << 53  # of any resource: no node has it, schedulers add it up without overflow, and floats hold it
_UID = re.compile(r"0*([1-9][0-9]{0,9})", re.A)
_MOST_UID = (1 << 31) - 1  # Kubernetes takes no larger one
_POWERS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID")
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@dataclass(frozen=True)
class ImageFacts:
    """What an image's own configuration says."""

    reference: str
    """What goes into the Pod: ``repository@sha256:…``."""
    digest: str
    user: str = ""
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    entrypoint: tuple[str, ...] = ()
    """ENTRYPOINT and CMD."""
    architectures: tuple[str, ...] = ()
    """Where it must be kept off some of the nodes: those it runs on, in the words of images."""


@dataclass(frozen=True)
class Plan:
    """All that a Pod follows from."""

    spec: SandboxSpec
    who: Identity
    mac: str
    token_sha256: str
    created: datetime
    """Aware, UTC."""
    facts: ImageFacts | None
    """None: nobody asked the registry, and the container runtime finds out by itself."""


def check(spec: SandboxSpec) -> None:
    """Refuse what this backend cannot do, before anything is made.

    Raises:
        Unsupported: by name.
        InvalidArgument: an image that no node can pull, or less memory than the daemon takes.
    """
    if spec.pids != DEFAULT_PIDS:
        raise Unsupported(
            "pids: Kubernetes has no such limit for a Pod; the kubelet's podPidsLimit holds", hint="leave pids out"
        )
    if spec.memory is not None and spec.memory < _LEAST_MEMORY:
        raise InvalidArgument(
            f"memory must be at least {_LEAST_MEMORY >> 20}MiB on Kubernetes, not {spec.memory} bytes: a Pod's limit "
            "holds for its daemon too", field="memory",
        )  # fmt: skip
    kind = spec.image.partition(":")[0]
    if spec.image == "host" or kind in ("dir", "oci", "oci-archive", "docker-archive", "docker-daemon"):
        raise InvalidArgument(
            f"image {spec.image!r} lies on this machine, which the nodes of a cluster do not see", field="image",
            hint="push it to a registry",
        )  # fmt: skip


def plain_spec(spec: SandboxSpec) -> str:
    """Return the specification as JSON, the same for the same specification."""
    return json.dumps(asdict(spec), sort_keys=True, separators=(",", ":"), default=list)


def spec_hash(spec: SandboxSpec) -> str:
    """Return what tells whether two specifications are the same."""
    return hashlib.sha256(plain_spec(spec).encode()).hexdigest()


def manifest(plan: Plan, settings: KubernetesSettings) -> Json:
    """Return the Pod.

    Raises:
        InvalidArgument: its environment is too large, or a label cannot be kept.
        Unsupported: the image's ENTRYPOINT is wanted and nobody knows it.
    """
    spec, who = plan.spec, plan.who
    body: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostname": CONTAINER,
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        # The lease is sandboxd's; this holds should it fail. It counts during the pull too and can only be lowered.
        "activeDeadlineSeconds": math.ceil(spec.max_ttl + spec.create_timeout + settings.pull_timeout),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [_installer(plan, settings)] if settings.injection == "init" else [],
        "containers": [_sandbox(plan, settings)],
        "volumes": _volumes(settings),
        "nodeSelector": settings.nodes,
        "tolerations": _tolerations(settings),
        "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
    }
    if plan.facts is not None and plan.facts.architectures:
        body["affinity"] = _affinity(plan.facts.architectures)
    if settings.runtime_class:
        body["runtimeClassName"] = settings.runtime_class
    if settings.priority_class:
        body["priorityClassName"] = settings.priority_class
    body |= _names(spec, settings)
    add_tools(body, spec.tools, settings)
    marks = {labels.SANDBOX: "1", labels.NETWORK: spec.network, **({labels.TENANT: who.tenant} if who.tenant else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": who.name, "namespace": who.namespace,
            "labels": labels.to_pod(spec.labels) | marks, "annotations": _annotations(plan, settings),
        },
        "spec": body,
    }  # fmt: skip


def _tolerations(settings: KubernetesSettings) -> list[Json]:
    """Add how long a node may be out of reach; without a word of ours it is the cluster's default, five minutes."""
    given: list[Json] = [dict(each) for each in settings.tolerations]
    lost: list[Json] = [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute",
         "tolerationSeconds": settings.node_lost_after}
        for state in ("not-ready", "unreachable")
    ]  # fmt: skip
    return given + [each for each in lost if each["key"] not in {own.get("key") for own in given}]


def _affinity(architectures: Sequence[str]) -> Json:
    rule = {"key": "kubernetes.io/arch", "operator": "In", "values": list(architectures)}
    terms = [{"matchExpressions": [rule]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _names(spec: SandboxSpec, settings: KubernetesSettings) -> Json:
    if spec.network == "none":  # a query that a policy drops hangs for many seconds; this refuses it at once
        return {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}
    if settings.egress.resolvers:
        return {"dnsPolicy": "None", "dnsConfig": {"nameservers": list(settings.egress.resolvers)}}
    # Names of the world first: the cluster's search list would cost each four queries.
    return {"dnsPolicy": "ClusterFirst", "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]}}


def _annotations(plan: Plan, settings: KubernetesSettings) -> dict[str, str]:
    deadline = plan.created + timedelta(seconds=settings.pull_timeout + plan.spec.create_timeout)
    notes = {
        identity.ID: plan.who.id, identity.MAC: plan.mac, SPEC: plain_spec(plan.spec), SPEC_HASH: spec_hash(plan.spec),
        CREATED: plan.created.isoformat(), DEADLINE: deadline.isoformat(), _SAFE_TO_EVICT: "false",
    }  # fmt: skip
    if plan.facts is not None:
        notes[FACTS] = json.dumps(asdict(plan.facts))
    return notes


def _installer(plan: Plan, settings: KubernetesSettings) -> Json:
    return {
        "name": INSTALLER,
        "image": settings.daemon_image,
        "command": ["/sandboxd", "install", f"{_BIN}/sandboxd"],
        "volumeMounts": [{"name": "daemon", "mountPath": _BIN}],
        # The larger of this and the sandbox's own counts, so it costs nothing, and a quota finds all that it asks for.
        "resources": _resources(plan.spec, settings),
        "securityContext": _security(plan, settings),
    }


def _sandbox(plan: Plan, settings: KubernetesSettings) -> Json:
    spec = plan.spec
    # No workingDir: a runtime makes the folder where it is missing, which is the command's own error.
    return {
        "name": CONTAINER,
        "image": plan.facts.reference if plan.facts else settings.reference(spec.image),
        "imagePullPolicy": "IfNotPresent",
        "command": [f"{_BIN}/sandboxd", "--config-env", CONFIG_ENV],
        "env": [{"name": CONFIG_ENV, "value": _config(plan, settings)}],
        "ports": [{"name": "sandboxd", "containerPort": PORT}],
        "resources": _resources(spec, settings),
        "securityContext": _security(plan, settings),
        "terminationMessagePath": _DEATH,
        "volumeMounts": [
            {"name": "daemon", "mountPath": _BIN, "readOnly": True},
            {"name": "state", "mountPath": _STATE},
        ],
    }


def _volumes(settings: KubernetesSettings) -> list[Json]:
    daemon: Json = {"name": "daemon"}
    if settings.injection == "init":
        daemon["emptyDir"] = {"sizeLimit": "64Mi"}
    else:
        daemon["image"] = {"reference": settings.daemon_image, "pullPolicy": "IfNotPresent"}
    return [daemon, {"name": "state", "emptyDir": {"sizeLimit": str(settings.spool_bytes)}}]


def _config(plan: Plan, settings: KubernetesSettings) -> str:
    spec = plan.spec
    document: Json = {
        "id": plan.who.id,
        "token_sha256": plan.token_sha256,
        "listen": {"tcp": f":{PORT}"},
        "env_from_process": True,
        "env": dict(spec.env),
        "user": _command_user(plan, settings),
        "workdir": spec.workdir or ".",
        "lease": {"ttl_s": spec.ttl, "max_ttl_s": spec.max_ttl, "idle_s": spec.idle, "heartbeat_s": spec.heartbeat},
        "state_dir": _STATE,
        "death_file": _DEATH,
        "spool_limit_bytes": settings.spool_bytes // _SPOOLS,
        "entrypoint": _entrypoint(plan),
        "path_append": [f"{tool.mount}/bin" for tool in parse_tools(spec.tools)],
        "commands_oom_score_adj": _COMMAND_OOM_ADJUST,
        "seal": {"timeout_s": _SEAL_SECONDS, "asked_within_s": spec.create_timeout} if spec.network == "none" else None,
        "ipv6": _family(spec, settings),
    }
    # Kubernetes expands $(NAME) in values, and there is no $ in JSON but in texts.
    text = json.dumps(document, separators=(",", ":")).replace("$", "\\u0024")
    if len(text) > _LONGEST_CONFIG:
        words = f"env and entrypoint take {len(text)} bytes; a Pod has room for {_LONGEST_CONFIG}"
        raise InvalidArgument(words, field="env" if len(str(spec.env)) > len(text) // 2 else "entrypoint")
    return text


def _family(spec: SandboxSpec, settings: KubernetesSettings) -> str:
    if settings.egress.unfiltered_ipv6:
        return ""
    return "off" if spec.network == "none" else "if_assigned"


def _entrypoint(plan: Plan) -> list[str] | None:
    if plan.spec.entrypoint is not True:
        return list(plan.spec.entrypoint) if plan.spec.entrypoint else None
    if plan.facts is None:
        raise Unsupported("entrypoint=True needs the image's configuration, which is not known here", hint="name argv")
    return list(plan.facts.entrypoint) or None


def _resources(spec: SandboxSpec, settings: KubernetesSettings) -> Json:
    limits: dict[str, str] = dict(settings.limits)
    requests: dict[str, str] = dict(settings.requests)
    asked = {"cpu": (spec.cpu, 1000, "m"), "memory": (spec.memory, 1, "")}
    for name, (value, factor, unit) in asked.items():
        if value is not None:
            most = math.ceil(min(value * factor, _MOST))
            limits[name] = f"{most}{unit}"
            requests[name] = f"{math.ceil(most / settings.overcommit)}{unit}"
    if spec.disk is not None:
        disk = min(spec.disk, _MOST)
        limits["ephemeral-storage"] = str(disk + settings.spool_bytes)
        requests["ephemeral-storage"] = str(disk)
    return {"limits": limits, "requests": requests}


def _uid(plan: Plan, settings: KubernetesSettings) -> int | None:
    """Return the daemon's uid, or None: the image's own user.

    As root it runs commands as any user, the image's by default; so it is root wherever the profile lets it and the
    image's user is known.
    """
    if settings.run_as is not None:
        return settings.run_as
    users = [plan.spec.user, plan.facts.user if plan.facts else None]
    if settings.profile == "baseline":
        return 0 if plan.facts or plan.spec.user is not None else None
    for user in users:
        number = _UID.fullmatch((user or "").partition(":")[0])
        if number is not None and int(number[1]) <= _MOST_UID:
            return int(number[1])
    return None


def _command_user(plan: Plan, settings: KubernetesSettings) -> str:
    if settings.run_as is not None or settings.profile == "restricted":
        return ""  # the daemon's own: it has no power to change it
    if plan.spec.user is not None:
        return plan.spec.user
    return plan.facts.user if plan.facts else ""


def _security(plan: Plan, settings: KubernetesSettings) -> Json:
    restricted = settings.profile == "restricted"
    context: Json = {
        "allowPrivilegeEscalation": not restricted,
        "capabilities": {"drop": ["ALL"]} if restricted else {"drop": ["ALL"], "add": list(_POWERS)},
        "readOnlyRootFilesystem": settings.read_only_root,
    }
    if restricted:
        context["runAsNonRoot"] = True
    uid = _uid(plan, settings)
    return context | ({} if uid is None else {"runAsUser": uid})


def notes(pod: Json) -> dict[str, str]:
    """Return a Pod's annotations."""
    return part(pod, "metadata", "annotations")
