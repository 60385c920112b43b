"""Rules of the cluster's own, by which its API server refuses what is done with Pods of one namespace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import wait_until

from orchard.core.errors import MachineUnfit

_GROUP = "admissionregistration.k8s.io/v1"
WORDS = "it is guarded"


@contextmanager
def refused(
    cluster: Cluster, namespace: str, operation: str, unless: str, attempt: Callable[[], object]
) -> Iterator[None]:
    """In the block ``operation`` on Pods is refused ``unless`` an expression holds; ``attempt`` tries it, dry."""
    about = {"name": f"guard-{namespace}"}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["pods"]}
    where = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule], "namespaceSelector": where},
        "validations": [{"expression": unless, "message": WORDS}],
    }  # fmt: skip
    bound = {"policyName": about["name"], "validationActions": ["Deny"]}

    def bites() -> bool:
        try:
            attempt()
        except MachineUnfit as error:
            return WORDS in str(error)
        return False

    try:
        cluster.apply({"apiVersion": _GROUP, "kind": "ValidatingAdmissionPolicy", "metadata": about, "spec": spec})
        cluster.apply(
            {"apiVersion": _GROUP, "kind": "ValidatingAdmissionPolicyBinding", "metadata": about, "spec": bound}
        )
        wait_until(bites, "the rule to bite")
        yield
    finally:
        for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
            cluster.kubectl("delete", kind, about["name"], "--ignore-not-found")
