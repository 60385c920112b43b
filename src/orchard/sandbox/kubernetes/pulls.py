"""Why a kubelet could not pull, read from its words: its reasons do not tell a wrong name from a broken line."""

from __future__ import annotations

_WORDS = (
    # containerd: 'failed to pull and unpack image "h/x:1": no match for platform in manifest: not found'
    ("no match for platform in manifest", "wrong_arch"),
    # CRI-O: 'choosing an image from manifest list …: no image found in image index for architecture "arm64"'
    ("no image found in", "wrong_arch"),
    # 'failed to resolve reference "h/x:1": unexpected status from HEAD request to https://h/v2/x/manifests/1:
    # 429 Too Many Requests', "toomanyrequests: You have reached your pull rate limit"
    ("429 Too Many Requests", "registry_unreachable"),
    ("toomanyrequests", "registry_unreachable"),
    # CRI-O: "too many requests to registry"
    ("too many requests", "registry_unreachable"),
    # 'pull access denied, repository does not exist or may require authorization: server message:
    # insufficient_scope: authorization failed'
    ("pull access denied", "image_auth"),
    # 'unexpected status from HEAD request to http://h/v2/x/manifests/1: 401 Unauthorized'
    ("401 Unauthorized", "image_auth"),
    # 'failed to resolve reference "h/x:1": failed to authorize: failed to fetch anonymous token: unexpected status
    # from GET request to https://h/token: 403 Forbidden'; without a status the token's server did not answer
    ("403 Forbidden", "image_auth"),
    # CRI-O: "initializing source docker://h/x:1: Requesting bearer token: invalid status code from registry 403
    # (Forbidden)"
    ("403 (Forbidden)", "image_auth"),
    # CRI-O: "reading manifest 1 in h/x: denied: access forbidden"
    (": denied: ", "image_auth"),
    # "no basic auth credentials"
    ("no basic auth credentials", "image_auth"),
    # CRI-O: "reading manifest 1 in h/x: unauthorized: authentication required"
    ("unauthorized:", "image_auth"),
    # CRI-O: "reading manifest 1 in h/x: manifest unknown"
    ("manifest unknown", "image_not_found"),
    ("name unknown", "image_not_found"),
    # containerd: 'code = NotFound desc = failed to pull and unpack image "h/x:1": failed to resolve reference "h/x:1":
    # h/x:1: not found'
    (": not found", "image_not_found"),
)
"""The more telling first; each with the sample that it was taken from."""
FINAL = ("wrong_arch", "image_auth", "image_not_found")
"""What another try does not mend."""


def pull_reason(words: str) -> str:
    """Return the reason of ``CREATE_REASONS`` that the words tell of; what is not known may pass."""
    return next((reason for word, reason in _WORDS if word in words), "registry_unreachable")
