"""Sandboxes: one small protocol, its backends, and the conformance suite that judges them."""
