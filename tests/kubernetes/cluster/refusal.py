"""An API server that answers 429, by its own priority and fairness: a level of one seat, and that one is taken."""

import contextlib
import socket
import ssl
from collections.abc import Generator
from typing import Any

from tests.kubernetes.cluster.place import CONTROL, PKI
from tests.kubernetes.cluster.processes import wait_until

_API = "flowcontrol.apiserver.k8s.io/v1"
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
"""Every account may ask here, so that the API server reads the body, which never comes."""


def objects(name: str, namespace: str) -> list[dict[str, Any]]:
    """Return a priority level of no share and the schema that puts all accounts of ``namespace`` on it."""
    none = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0}
    level = {"type": "Limited", "limited": {**none, "limitResponse": {"type": "Reject"}}}
    resources = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
    rule = {
        "subjects": [{"kind": "Group", "group": {"name": f"system:serviceaccounts:{namespace}"}}],
        "resourceRules": [resources],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }
    schema = {"priorityLevelConfiguration": {"name": name}, "matchingPrecedence": 10, "rules": [rule]}
    return [
        {"apiVersion": _API, "kind": "PriorityLevelConfiguration", "metadata": {"name": name}, "spec": level},
        {"apiVersion": _API, "kind": "FlowSchema", "metadata": {"name": name}, "spec": schema},
    ]


@contextlib.contextmanager
def seat_taken(token: str) -> Generator[None]:
    """Take the one seat that a level without a share still has; a minute at most, then the API server lets go."""
    with contextlib.ExitStack() as stack:

        def taken() -> bool:
            stack.close()  # one that came before the level was known sits elsewhere
            stack.enter_context(_ask(token, f"POST {_REVIEW}", "Content-Type: application/json\r\nContent-Length: 999"))
            with _ask(token, "GET /version", "Connection: close") as other:
                return b" 429 " in other.recv(64)

        wait_until(taken, "the API server to refuse")
        yield


def _ask(token: str, what: str, headers: str) -> ssl.SSLSocket:
    """Send the head of a request over a connection of its own."""
    plain = socket.create_connection((CONTROL.address, 6443), timeout=10)
    context = ssl.create_default_context(cafile=PKI / "ca.crt")
    connection = context.wrap_socket(plain, server_hostname=CONTROL.address)
    head = f"{what} HTTP/1.1\r\nHost: {CONTROL.address}\r\nAuthorization: Bearer {token}\r\n{headers}\r\n\r\n"
    connection.sendall(head.encode())
    return connection
