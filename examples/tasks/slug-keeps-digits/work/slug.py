"""Titles as parts of URLs."""

import re


def slug(title: str) -> str:
    """Return the words of ``title`` in lower case, joined by dashes."""
    return "-".join(re.findall("[a-z]+", title.lower()))
