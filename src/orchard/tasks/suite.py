"""Running a test suite with pytest in a sandbox: the same way for discovery and for grading.

The report goes to a path outside of the work tree that nothing can know beforehand; tests that must fail are added
(``orchard.tasks.canary``); and the suite's Python files must be the same after the run as before.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchard.core.errors import FileMissing, InvalidArgument
from orchard.sandbox import Result, Sandbox
from orchard.sandbox.manifest import excludes, fetch_manifest
from orchard.tasks import canary, junit
from orchard.tasks.junit import Case
from orchard.tasks.tree import is_test

LOG_TAIL = 6000
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
    report, probe = f"/tmp/orchard-{token}.xml", canary.path_beside(suite.run, token)
    await box.files.write(f"{suite.workdir}/{probe}", canary.source(token))
    before = await _python_files(box, suite)
    result = await box.run(
        _command(suite, report, probe), cwd=suite.workdir, timeout=suite.seconds, merge=True, unset_env=_UNSET,
        env={"PY_COLORS": "0"},
    )  # fmt: skip
    facts = _facts(result)
    if result.timed_out:
        return Outcome(None, f"the tests did not end within {suite.seconds:g} s", **facts)
    try:
        cases, honest = canary.taken_out(junit.parse(await _read(box, report), {*suite.files, probe}), probe)
    except FileMissing:
        return Outcome(None, "pytest left no report", **facts)
    except InvalidArgument as error:
        return Outcome(None, error.message, **facts)
    if not honest:
        return Outcome(None, "tests that must fail did not: the verdicts were tampered with", **facts)
    changed = sorted({path for path, _ in (await _python_files(box, suite)).items() ^ before.items()})
    if changed:
        return Outcome(None, f"{', '.join(changed[:8])} changed while the tests ran", **facts)
    return Outcome(cases, **facts)


async def _python_files(box: Sandbox, suite: Suite) -> Mapping[str, str | None]:
    """Return the hashes of the Python files that are run, and of those that are named as tests are."""
    nodes = await fetch_manifest(box.transport, suite.workdir, excludes(()))
    return {
        path: node.sha256
        for path, node in nodes.items()
        if path.endswith(".py")
        and (is_test(path) or any(path == root or path.startswith(f"{root}/") for root in suite.run))
    }


def _command(suite: Suite, report: str, probe: str) -> list[str]:
    """Return the argv.

    ``-I``: neither the work tree nor the environment decides what pytest or Python's library is; ``-B``: nothing is
    left that a later run would load; ``--rootdir``: no new file moves what ids are relative to.
    """
    options = ["-o", "junit_family=xunit1", f"--junitxml={report}", "--rootdir=.", "--maxfail=0", "--tb=short"]
    options += ["--continue-on-collection-errors", "--color=no", "-q"]
    # Named beside its own folder, pytest would run it in place of the folder.
    alone = not any(root == "." or probe.startswith(f"{root}/") for root in suite.run)
    return [suite.python, "-I", "-B", "-m", "pytest", *options, *suite.run, *([probe] if alone else [])]


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
