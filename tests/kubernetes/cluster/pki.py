"""The cluster's certificates, and the kubeconfigs that carry them."""

import json
from pathlib import Path

from tests.kubernetes.cluster.place import API, CONTROL, KUBECONFIG, KUBERNETES, NODES, PKI, RUN
from tests.kubernetes.cluster.processes import run

_DAYS = ("-days", "3650")
_NEW_KEY = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make() -> None:
    """Write the authority, one certificate for each part, and kubeconfigs ``RUN/NAME.kubeconfig``."""
    _openssl(*_NEW_KEY, "-x509", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=orchard-test", *_DAYS)
    _openssl("ecparam", "-genkey", "-noout", "-name", "prime256v1", "-out", "sa.key")
    _openssl("ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    names = ("DNS:localhost", "DNS:kubernetes.default", "DNS:kubernetes.default.svc", "IP:127.0.0.1")
    _certificate("apiserver", "/CN=kube-apiserver", ",".join([*names, f"IP:{KUBERNETES}", f"IP:{CONTROL.address}"]))
    _certificate("admin", "/O=system:masters/CN=admin")
    _certificate("controller-manager", "/CN=system:kube-controller-manager")
    _certificate("scheduler", "/CN=system:kube-scheduler")
    for node in NODES:
        names = f"DNS:{node.name},IP:{node.address}"
        _certificate(node.name, f"/O=system:nodes/CN=system:node:{node.name}", names)


def kubeconfig(name: str) -> Path:
    """Return where the kubeconfig of ``name`` lies."""
    return KUBECONFIG if name == "admin" else RUN / f"{name}.kubeconfig"


def _certificate(name: str, subject: str, names: str = "DNS:none") -> None:
    (PKI / f"{name}.ext").write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    _openssl(*_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext", *_DAYS)
    _openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signed)
    user = {"client-certificate": str(PKI / f"{name}.crt"), "client-key": str(PKI / f"{name}.key")}
    _write_kubeconfig(kubeconfig(name), user)


def _write_kubeconfig(path: Path, user: dict[str, str]) -> None:
    cluster = {"server": API, "certificate-authority": str(PKI / "ca.crt")}
    context = {"cluster": "orchard", "user": "user"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "orchard", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "orchard", "context": context}],
        "current-context": "orchard",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))


def _openssl(*words: str) -> None:
    run("sh", "-c", 'cd "$0" && exec openssl "$@"', PKI, *words)
