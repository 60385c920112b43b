"""Why an image could not be had, by skopeo's words as it has written them (1.9 to 1.20)."""

import pytest

from orchard.sandbox.local.failures import reason_in, unanswered


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Requesting bearer token: invalid status code from registry 403 (Forbidden)", "image_auth"),
        ("Requesting bear token: invalid status code from registry 403 (Forbidden)", "image_auth"),
        ("Requesting bearer token: received unexpected HTTP status: 403 Forbidden", "image_auth"),
        ("reading manifest 1 in ghcr.io/a/b: denied: denied", "image_auth"),
        ("reading manifest 1 in registry.gitlab.com/a/b: denied: access forbidden", "image_auth"),
        ("reading manifest 1 in h/a: StatusCode: 403, <Error>AccessDenied</Error>", "image_auth"),
        ("reading manifest 1 in h/a: errors:\ndenied: requested access to the resource is denied", "image_auth"),
        ("unable to retrieve auth token: invalid username/password: unauthorized: x", "image_auth"),
        ("reading manifest 1 in h/a: authentication required", "image_auth"),
        ("reading manifest 1 in h/a: manifest unknown", "image_not_found"),
        ("reading manifest 1 in h/a: repository name not known to registry", "image_not_found"),
        ("reading manifest 1 in quay.io/a/b: unknown: repository not found", "image_not_found"),
        ("reading manifest 1 in h/a/b: unknown: artifact a/b:1 not found", "image_not_found"),
        ("reading manifest 1 in h/a: StatusCode: 404, ", "image_not_found"),
        ("too many requests to registry", "registry_unreachable"),
        ("reading manifest 1 in docker.io/a/b: toomanyrequests: You have reached your limit", "registry_unreachable"),
        ("reading manifest 1 in h/a: received unexpected HTTP status: 502 Bad Gateway", "registry_unreachable"),
        ("invalid status code from registry 503 (Service Unavailable)", "registry_unreachable"),
        ("reading manifest 1 in h/a: received unexpected HTTP status: 429 Too Many Requests", "registry_unreachable"),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "registry_unreachable"),
        ("reading manifest 1 in h/denied: something new", None),
    ],
)  # fmt: skip
def test_what_a_registry_answers_is_no_silence(words: str, reason: str | None) -> None:
    assert reason_in(words) == reason
    assert not unanswered(words)


@pytest.mark.parametrize(
    "words",
    [
        "dial tcp: lookup a.example: no such host", "dial tcp 127.0.0.1:1: connect: connection refused",
        "read tcp 10.0.0.2:4->192.0.2.1:443: read: connection reset by peer", "net/http: TLS handshake timeout",
        "EOF", "context deadline exceeded", "net/http: timeout awaiting response headers",
        "net/http: request canceled (Client.Timeout exceeded while awaiting headers)",
    ],
)  # fmt: skip
def test_a_registry_that_does_not_answer_is_told_as_such(words: str) -> None:
    text = f'pinging container registry h: Get "https://h/v2/": {words}'
    assert unanswered(text)
    assert reason_in(text) == "registry_unreachable"
