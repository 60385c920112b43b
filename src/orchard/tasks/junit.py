"""Pytest's junit XML: which tests ran and what became of each. The one source of verdicts; logs are never parsed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from orchard.core.errors import InvalidArgument

MOST_BYTES = 64 << 20
_TAIL = 2000
_DECLARED = re.compile(rb"<!(DOCTYPE|ENTITY)", re.IGNORECASE)


class Status(StrEnum):
    """What became of a test."""

    PASSED = "passed"
    XFAILED = "xfailed"  # failed, as the suite says it should
    SKIPPED = "skipped"
    FAILED = "failed"
    ERROR = "error"  # set-up, tear-down or collection failed
    MISSING = "missing"  # not in the report


_WORSE = (Status.PASSED, Status.XFAILED, Status.SKIPPED, Status.FAILED, Status.ERROR)
GOOD = frozenset({Status.PASSED, Status.XFAILED})


@dataclass(frozen=True)
class Case:
    """One test of a report."""

    id: str
    """``path::Class::name[parameters]``, as pytest names it."""
    status: Status
    message: str = ""
    """Tail of what failed, or why it was skipped."""
    seconds: float = 0.0


def parse(data: bytes, files: Collection[str]) -> dict[str, Case]:
    """Return the cases of a report by id. A test reported twice (call and tear-down) keeps its worst status.

    Args:
        data: the XML.
        files: Python files of the work tree; they turn the dotted class names of junit back into paths.

    Raises:
        InvalidArgument: it is no junit report, or declares entities, or is too large.
    """
    if len(data) > MOST_BYTES:
        raise InvalidArgument(f"the report has {len(data)} bytes, more than {MOST_BYTES}", field="report")
    if _DECLARED.search(data):
        raise InvalidArgument("the report declares entities, which pytest never does", field="report")
    try:
        root = ET.fromstring(data)
    except ET.ParseError as error:
        raise InvalidArgument(f"the report is no XML: {error}", field="report") from error
    if root.tag not in {"testsuites", "testsuite"}:
        raise InvalidArgument(f"the report is no junit XML: its root is {root.tag!r}", field="report")
    dotted = {path.removesuffix(".py").replace("/", "."): path for path in files if path.endswith(".py")}
    cases: dict[str, Case] = {}
    for element in root.iter("testcase"):
        case = _case(element, dotted)
        known = cases.get(case.id)
        if known is None or _WORSE.index(case.status) > _WORSE.index(known.status):
            cases[case.id] = case
    return cases


def _case(element: ET.Element, dotted: dict[str, str]) -> Case:
    status, message = _status(element)
    return Case(_id(element, dotted), status, message[-_TAIL:], _seconds(element.get("time")))


def _id(element: ET.Element, dotted: dict[str, str]) -> str:
    """Join class name and name to pytest's id: the longest prefix of the class name that is a file, then classes.

    A file that cannot be collected has no class name: its id is its dotted name, without ``::``.
    The attribute ``file`` cannot be used: for an inherited test it names the file of the base class.
    """
    classname, name = element.get("classname") or "", element.get("name") or ""
    parts = classname.split(".")
    for count in range(len(parts), 0, -1):
        path = dotted.get(".".join(parts[:count]))
        if path is not None:
            return "::".join([path, *parts[count:], name])
    return f"{classname}::{name}" if classname else name


def _status(element: ET.Element) -> tuple[Status, str]:
    worst, text = Status.PASSED, ""
    for child in element:
        if child.tag == "failure":
            found = Status.FAILED
        elif child.tag == "error":
            found = Status.ERROR
        elif child.tag == "skipped":
            found = Status.XFAILED if child.get("type") == "pytest.xfail" else Status.SKIPPED
        else:
            continue
        if worst is Status.PASSED or _WORSE.index(found) > _WORSE.index(worst):
            worst, text = found, "\n".join(part for part in (child.get("message"), child.text) if part)
    return worst, text


def _seconds(text: str | None) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        return 0.0
