"""The signature of a thinking block: it comes back with the text that it was given for, or the block is not ours."""

from __future__ import annotations

import base64
import hashlib


def signature(text: str) -> str:
    """Return what a block with this text is signed with."""
    digest = hashlib.blake2b(text.encode(), digest_size=24, person=b"orchard.thinking").digest()
    return base64.b64encode(digest).decode()
