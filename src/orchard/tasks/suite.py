"""Running a test suite with pytest in a sandbox: the same way for discovery and for grading.

The report goes to a path outside of the work tree that nothing can know beforehand, and one test that must fail is
added: a report without it, or in which it did not fail, was not written by an honest pytest.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from orchard.core.errors import FileMissing, InvalidArgument
from orchard.sandbox import Result, Sandbox
from orchard.tasks import junit
from orchard.tasks.junit import Case, Status

LOG_TAIL = 4000
_CANARY = "def test_must_fail():\n    raise AssertionError({token!r})\n"
_UNSET = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTHONPATH")


@dataclass(frozen=True)
class Suite:
    """What to run."""

    run: Sequence[str]
    """Files and folders, relative to ``workdir``."""
    workdir: str
    python: str
    files: Collection[str]
    """Python files of tests: what report names are resolved against."""
    seconds: float
    """Time-out."""


@dataclass(frozen=True)
class Outcome:
    """What a run of a suite gave."""

    cases: Mapping[str, Case] | None
    """By id; None where there is no report that can be trusted."""
    distrust: str = ""
    """Why there is none."""
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    oom_killed: bool = False
    seconds: float = 0.0
    log: str = field(default="", repr=False)
    """Tail of what pytest printed: for people, never for the verdict."""


async def run_suite(box: Sandbox, suite: Suite) -> Outcome:
    """Run the suite; whatever the code under test does, dying included, is an outcome.

    Raises:
        OrchardError: infrastructure trouble only.
    """
    token = secrets.token_hex(12)
    report = f"/tmp/orchard-{token}.xml"
    canary = _canary_path(suite, token)
    await box.files.write(f"{suite.workdir}/{canary}", _CANARY.format(token=token))
    result = await box.run(
        _command(suite, report, canary), cwd=suite.workdir, timeout=suite.seconds, merge=True, unset_env=_UNSET,
        env={"PY_COLORS": "0"},
    )  # fmt: skip
    facts = _facts(result)
    if result.timed_out:
        return Outcome(None, f"the tests did not end within {suite.seconds:g} s", **facts)
    try:
        data = await _read(box, report)
        cases = junit.parse(data, {*suite.files, canary})
    except FileMissing:
        return Outcome(None, "pytest left no report", **facts)
    except InvalidArgument as error:
        return Outcome(None, error.message, **facts)
    witness = cases.pop(f"{canary}::test_must_fail", None)
    if witness is None or witness.status is not Status.FAILED or token not in witness.message:
        return Outcome(None, "the report does not show a test to fail that must: it was tampered with", **facts)
    return Outcome(cases, **facts)


def _command(suite: Suite, report: str, canary: str) -> list[str]:
    """Return the argv.

    ``-I``: neither the work tree nor the environment decides what pytest or Python's library is; ``-B``: nothing is
    left that a later run would load; ``--rootdir``: no new file moves what ids are relative to.
    """
    options = ["-o", "junit_family=xunit1", f"--junitxml={report}", "--rootdir=.", "--maxfail=0", "--tb=short"]
    options += ["--continue-on-collection-errors", "--color=no", "-q"]
    # Named beside its own folder, pytest would run it in place of the folder.
    alone = not any(canary.startswith(f"{root}/") for root in suite.run)
    return [suite.python, "-I", "-B", "-m", "pytest", *options, *suite.run, *([canary] if alone else [])]


def _canary_path(suite: Suite, token: str) -> str:
    first = PurePosixPath(suite.run[0])
    folder = first.parent if first.suffix == ".py" else first
    return (folder / f"test_zz_{token}_test.py").as_posix()


async def _read(box: Sandbox, report: str) -> bytes:
    entry = await box.files.stat(report, follow=False)
    if entry.type != "file" or entry.size > junit.MOST_BYTES:
        raise InvalidArgument(f"in place of a report lies a {entry.type} of {entry.size} bytes", field="report")
    return await box.files.read(report)


def _facts(result: Result) -> dict[str, Any]:
    return {
        "exit_code": result.exit_code, "signal": result.signal, "timed_out": result.timed_out,
        "oom_killed": result.oom_killed, "seconds": result.duration, "log": result.text[-LOG_TAIL:],
    }  # fmt: skip
