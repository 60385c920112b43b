"""Why skopeo could not fetch an image, read from its words: it has one exit code for everything."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from orchard.core.disk import disk_full, met_full
from orchard.core.errors import CreateFailed, OrchardError
from orchard.sandbox.local.process import Finished

_WORDS = (
    # skopeo exits with 1 whatever happened; these are its words, each with the sample it was taken from. No name of an
    # image holds a blank, so with one in it a phrase is never a part of the name.
    # "toomanyrequests: You have reached your pull rate limit": a limit of the registry's, whatever else it says
    ("toomanyrequests", "registry_unreachable"),
    # "too many requests to registry"
    ("too many requests", "registry_unreachable"),
    # "reading manifest 1 in a.example/b: received unexpected HTTP status: 429 Too Many Requests"
    (" 429 Too Many Requests", "registry_unreachable"),
    # "reading manifest 1 in localhost:5000/nope: manifest unknown: manifest unknown"
    ("manifest unknown", "image_not_found"),
    # "reading manifest 1 in localhost:5000/nope: name unknown: repository name not known to registry"
    ("name unknown", "image_not_found"),
    # the same of newer ones: "reading manifest 1 in localhost:5000/nope: repository name not known to registry"
    ("repository name not known to registry", "image_not_found"),
    # quay: "reading manifest 1 in quay.io/a/nope: unknown: repository not found"
    ("unknown: repository ", "image_not_found"),
    # Harbor: "reading manifest 1 in harbor.example/a/b: unknown: artifact a/b:1 not found"
    ("unknown: artifact ", "image_not_found"),
    # "reading manifest 1 in localhost:5000/nope: StatusCode: 404, <html>"
    ("StatusCode: 404", "image_not_found"),
    # "reading manifest latest in localhost:5000/private: unauthorized: authentication required"
    ("unauthorized", "image_auth"),
    # the same of newer ones: "reading manifest latest in localhost:5000/private: authentication required"
    ("authentication required", "image_auth"),
    # "reading manifest 1 in docker.io/nope/nope: errors: denied: requested access to the resource is denied"
    ("access to the resource is denied", "image_auth"),
    # "reading manifest 1 in ghcr.io/a/b: denied: denied", "… in registry.gitlab.com/a/b: denied: access forbidden"
    (": denied", "image_auth"),
    # ghcr.io and GitLab: "Requesting bearer token: invalid status code from registry 403 (Forbidden)"
    (" 403 (Forbidden)", "image_auth"),
    # the same of newer ones: "Requesting bearer token: received unexpected HTTP status: 403 Forbidden"
    (" 403 Forbidden", "image_auth"),
    # "reading manifest 1 in ecr.example/private: StatusCode: 403, <Error>AccessDenied</Error>"
    ("StatusCode: 403", "image_auth"),
    # "received unexpected HTTP status: 503 Service Unavailable"
    ("unexpected HTTP status: 5", "registry_unreachable"),
    # "pinging container registry a.example: invalid status code from registry 500 (Internal Server Error)"
    ("status code from registry 5", "registry_unreachable"),
    # 'Get "https://a.example/v2/": tls: failed to verify certificate: x509: certificate signed by unknown authority'
    ("x509: ", "registry_unreachable"),
    # 'no image found in manifest list for architecture amd64, variant "", OS linux'
    ("no image found in manifest list for architecture", "wrong_arch"),
    # 'no image found in image index for architecture amd64, variant "", OS linux'
    ("no image found in image index for architecture", "wrong_arch"),
    # 'initializing source docker-archive:a.tar:b:1: Tag "b:1" not found'
    ('" not found', "image_not_found"),
    # "no descriptor found for reference \"nope\""
    ("no descriptor found for reference", "image_not_found"),
)
_NETWORK_WORDS = (
    # "pinging container registry a.example: Get "https://a.example/v2/": dial tcp: lookup a.example: no such host"
    "no such host",
    # "dial tcp: lookup a.example on 127.0.0.1:53: server misbehaving"
    "server misbehaving",
    # "dial tcp: lookup a.example: Temporary failure in name resolution"
    "Temporary failure in name resolution",
    # "dial tcp 127.0.0.1:1: connect: connection refused"
    "connect: connection refused",
    # "dial tcp 192.0.2.1:443: connect: network is unreachable"
    "connect: network is unreachable",
    # "dial tcp 192.0.2.1:443: connect: no route to host"
    "connect: no route to host",
    # "dial tcp 192.0.2.1:443: i/o timeout"
    "i/o timeout",
    # "read tcp 10.0.0.2:40000->192.0.2.1:443: read: connection reset by peer"
    "read: connection reset by peer",
    # 'Get "https://a.example/v2/": net/http: TLS handshake timeout'
    "TLS handshake timeout",
    # 'Get "https://a.example/v2/": EOF': it has closed the connection without a word
    ": EOF",
    # 'Get "https://a.example/v2/": context deadline exceeded'
    "context deadline exceeded",
    # 'Get "https://a.example/v2/": net/http: request canceled (Client.Timeout exceeded while awaiting headers)'
    "Client.Timeout exceeded",
    # 'Get "https://a.example/v2/": net/http: timeout awaiting response headers'
    "timeout awaiting response headers",
    # 'pinging container registry a.example:5000: Get "https://a.example:5000/v2/": http: server gave HTTP response to
    # HTTPS client'
    "server gave HTTP response to HTTPS client",
)
"""Of registries that did not answer; what they would have said of the image nobody knows."""

_FATAL = re.compile(r'level=fatal msg=("(?:[^"\\]|\\.)*")')
_HINTS = {
    "image_auth": "log in with: skopeo login REGISTRY",
    "registry_unreachable": "the image is not in this machine's store and its registry does not answer: check the name "
    "and this machine's network or proxy; or bring the image as oci-archive:/FILE",
}


def copy_failed(reference: str, done: Finished, store: Path, *, remote: bool) -> OrchardError:
    """Return the error that tells of skopeo's failure, with its message and what to do.

    Args:
        reference: the image as asked for.
        done: how skopeo ended.
        store: where it was to bring the image.
        remote: its source is a registry.
    """
    words = said(done.output)
    if met_full(words, store):  # 'writing blob: storing blob to file "/var/tmp/…": write …: no space left on device'
        return disk_full(store, words[-500:])
    reason = reason_in(words)
    if remote:
        reason = reason or ("registry_unreachable" if done.code == -9 else "image_not_found")
    elif reason in (None, "registry_unreachable"):
        reason = "image_invalid"
    words = words[-500:] or "skopeo ended without a word"
    return CreateFailed(f"image {reference!r} could not be fetched: {words}", reason=reason, hint=_HINTS.get(reason))


def reason_in(words: str) -> str | None:
    """Return which of ``CREATE_REASONS`` skopeo's words tell of, or None: they are not known here."""
    reason = next((reason for word, reason in _WORDS if word in words), None)
    return reason or ("registry_unreachable" if unanswered(words) else None)


def unanswered(words: str) -> bool:
    """Return True if by skopeo's words the registry did not answer at all, whatever it was asked for."""
    return any(word in words for word in _NETWORK_WORDS)


def said(output: str) -> str:
    """Return the message out of skopeo's log line (``time=… level=fatal msg="…"``), else all that it wrote."""
    found = _FATAL.findall(output)
    with contextlib.suppress(ValueError):  # quoted in Go's way, which is JSON's but for rare characters
        return str(json.loads(found[-1])) if found else output.strip()
    return str(found[-1][1:-1])
