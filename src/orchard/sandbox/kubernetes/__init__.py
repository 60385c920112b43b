"""Sandboxes as Pods of a Kubernetes cluster, which is the only store."""

from orchard.sandbox.kubernetes.backend import KubernetesBackend
from orchard.sandbox.kubernetes.settings import Egress, Ingress, KubernetesSettings, NodeSize, load_settings

__all__ = ["Egress", "Ingress", "KubernetesBackend", "KubernetesSettings", "NodeSize", "load_settings"]
