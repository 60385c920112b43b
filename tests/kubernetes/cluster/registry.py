"""The registries: Debian's docker-registry twice over one store, plain HTTP on the cluster's bridge; how to push."""

import base64
import json
from pathlib import Path

from tests.kubernetes.cluster.place import HOST, PRIVATE_PASSWORD, PRIVATE_REGISTRY, PRIVATE_USER, RUN
from tests.kubernetes.cluster.processes import run

_HASH = "$2b$04$8poX7AKApO4JkxZVXOrpLOTzoGjIiwUO8dADoiqhIH4hU1/YKzUXG"
"""bcrypt of the private registry's password."""


def write_configuration() -> None:
    """Write both registries' configuration."""
    (RUN / "htpasswd").write_text(f"{PRIVATE_USER}:{_HASH}\n")
    password = {"auth": {"htpasswd": {"realm": "orchard", "path": str(RUN / "htpasswd")}}}
    (RUN / "registry.yaml").write_text(json.dumps(_configuration(5000)))
    (RUN / "private-registry.yaml").write_text(json.dumps({**_configuration(5002), **password}))


def pull_secret() -> str:
    """Return the ``.dockerconfigjson`` that opens the private registry."""
    both = base64.b64encode(f"{PRIVATE_USER}:{PRIVATE_PASSWORD}".encode()).decode()
    login = {"username": PRIVATE_USER, "password": PRIVATE_PASSWORD, "auth": both}
    return json.dumps({"auths": {PRIVATE_REGISTRY: login}})


def push(layout: Path, reference: str, *, plain: bool = True) -> None:
    """Push the image ``latest`` of an OCI layout to ``reference``, e.g. ``HOST:PORT/name:1``; ``plain`` is HTTP."""
    way = (f"--dest-tls-verify={str(not plain).lower()}", f"oci:{layout}:latest", f"docker://{reference}")
    run("skopeo", "--insecure-policy", "copy", "--quiet", *way)


def _configuration(port: int) -> dict[str, object]:
    return {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(RUN / "registry")}, "delete": {"enabled": True}},
        "http": {"addr": f"{HOST}:{port}", "relativeurls": True},
    }
