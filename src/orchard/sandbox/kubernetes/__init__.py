"""Sandboxes as Pods of a Kubernetes cluster, which is the only store."""

from orchard.sandbox.kubernetes.backend import KubernetesBackend
from orchard.sandbox.kubernetes.settings import Ingress, KubernetesSettings, NodeSize, load_settings

__all__ = ["Ingress", "KubernetesBackend", "KubernetesSettings", "NodeSize", "load_settings"]
