import subprocess
import sys

import pytest

from orchard.core.errors import InvalidArgument
from orchard.tasks.junit import Status, parse

SUITE = """
import unittest, pytest
class Base:
    def test_inherited(self): pass
class TestA(Base):
    def test_plain(self): assert 1
@pytest.mark.parametrize("text", ["a b", "x.y::z", "new\\nline", "é", "[1]"])
def test_words(text): assert text != "é"
@pytest.mark.xfail
def test_known(): assert 0
@pytest.mark.skip(reason="not here")
def test_later(): pass
class TestB(unittest.TestCase):
    def test_unit(self): self.fail("on purpose")
@pytest.fixture
def broken(): raise RuntimeError("no set-up")
def test_set_up(broken): pass
@pytest.fixture
def late():
    yield
    raise RuntimeError("no tear-down")
def test_tear_down(late): pass
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("suite")
    (folder / "sub.dir").mkdir()
    (folder / "sub.dir" / "test_it.py").write_text(SUITE)
    (folder / "test_base.py").write_text("from test_other import Base\nclass TestC(Base): pass\n")
    (folder / "test_other.py").write_text("class Base:\n    def test_from_base(self): pass\n")
    (folder / "test_broken.py").write_text("import nothing_of_that_name\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir=.",
        "-o",
        "junit_family=xunit1",
    ]
    command += ["--continue-on-collection-errors"]
    subprocess.run([*command, "--junitxml=r.xml", "-c", "/dev/null"], cwd=folder, capture_output=True)
    return (folder / "r.xml").read_bytes()


FILES = ["sub.dir/test_it.py", "test_base.py", "test_other.py"]


def test_ids_are_pytests_own_whatever_the_parameters_and_folders(report: bytes) -> None:
    found = {name: case.status.value for name, case in parse(report, FILES).items()}
    assert found == {
        "sub.dir/test_it.py::TestA::test_inherited": "passed",
        "sub.dir/test_it.py::TestA::test_plain": "passed",
        "sub.dir/test_it.py::test_words[a b]": "passed",
        "sub.dir/test_it.py::test_words[x.y::z]": "passed",
        "sub.dir/test_it.py::test_words[new\\nline]": "passed",
        "sub.dir/test_it.py::test_words[\\xe9]": "failed",
        "sub.dir/test_it.py::test_words[[1]]": "passed",
        "sub.dir/test_it.py::test_known": "xfailed",
        "sub.dir/test_it.py::test_later": "skipped",
        "sub.dir/test_it.py::TestB::test_unit": "failed",
        "sub.dir/test_it.py::test_set_up": "error",
        "sub.dir/test_it.py::test_tear_down": "error",
        "test_base.py::TestC::test_from_base": "passed",
        "test_broken": "error",
    }


def test_what_failed_is_told(report: bytes) -> None:
    cases = parse(report, FILES)
    assert "on purpose" in cases["sub.dir/test_it.py::TestB::test_unit"].message
    assert "no tear-down" in cases["sub.dir/test_it.py::test_tear_down"].message
    assert cases["sub.dir/test_it.py::test_later"].message.startswith("not here")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"not xml", b"<html/>", b"<testsuites>",
        b'<!DOCTYPE x [<!ENTITY a "b">]><testsuites>&a;</testsuites>',
    ],
)  # fmt: skip
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse(data, [])
    assert caught.value.field == "report"


def test_a_test_reported_twice_keeps_its_worst() -> None:
    once, again = b'<testcase classname="t" name="a"><failure/></testcase>', b'<testcase classname="t" name="a"/>'
    for order in (once + again, again + once):
        assert parse(b"<testsuite>" + order + b"</testsuite>", ["t.py"])["t.py::a"].status is Status.FAILED
