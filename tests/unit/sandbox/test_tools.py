"""The tool store: the same content has the same name, whoever brings it, and what is half-made never shows."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from orchard.core.errors import InvalidArgument
from orchard.sandbox.toolnames import parse_tool
from orchard.sandbox.tools import add, find, write_image

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tools"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a folder with programs, whose names, times and modes vary with ``turn``."""

    def folder(turn: int = 0, text: str = "echo\n") -> Path:
        made = tmp_path / f"made-{turn}"
        names = ["bin", "lib", "empty", "x" * 120]
        for name in names if turn % 2 else reversed(names):
            (made / name).mkdir(parents=True)
        (made / "bin" / "run").write_text(text)
        (made / "bin" / "run").chmod((0o700, 0o4755, 0o111)[turn % 3])
        (made / ("x" * 120) / ("é" * 90)).write_bytes(bytes(70_000))
        (made / "lib" / "link").symlink_to("../bin/run")
        os.utime(made / "bin" / "run", (turn, turn))
        (made / "empty").chmod(0o500 if turn else 0o777)
        return made

    return folder


def test_the_same_content_has_the_same_name(make: Make, cache: Path) -> None:
    names = {add("programs", make(turn)) for turn in range(3)}
    assert len(names) == 1
    tool = parse_tool(names.pop())
    folder = find(tool)
    assert folder is not None
    assert folder == cache / "programs" / tool.digest.removeprefix("sha256:")
    assert {f"{path.lstat().st_mode & 0o7777:o}" for path in folder.rglob("*") if not path.is_symlink()} == {
        "755",
        "644",
    }
    assert {int(path.lstat().st_mtime) for path in [folder, *folder.rglob("*")]} == {946_684_800}
    assert (folder / "lib" / "link").readlink() == Path("../bin/run")
    assert (folder / "empty").is_dir()
    assert list((cache / ".drafts").iterdir()) == []


def test_other_content_has_another_name(make: Make) -> None:
    first, other = add("programs", make(0)), add("programs", make(1, "exit\n"))
    assert first != other
    assert find(parse_tool(first)) != find(parse_tool(other))
    assert find(parse_tool(f"programs@sha256:{'0' * 64}")) is None


def test_a_folder_of_ours_is_moved_and_one_of_others_is_not(make: Make, cache: Path) -> None:
    theirs = make(0)
    name = add("programs", theirs)
    assert (theirs / "bin" / "run").stat().st_mtime == 0
    ours = make(1).rename(cache / "ours")
    assert add("programs", ours, move=True) == name
    assert not ours.exists()


def test_the_image_is_what_the_name_says(make: Make, tmp_path: Path) -> None:
    tool = parse_tool(add("programs", make()))
    folder = find(tool)
    assert folder is not None
    assert write_image(folder, tmp_path / "layout") == tool.digest
    done = subprocess.run(
        ["skopeo", "inspect", "--raw", f"oci:{tmp_path / 'layout'}:1"], capture_output=True, check=True
    )
    assert f"sha256:{sha256(done.stdout).hexdigest()}" == tool.digest
    [layer] = json.loads(done.stdout)["layers"]
    blob = tmp_path / "layout" / "blobs" / "sha256" / layer["digest"].removeprefix("sha256:")
    assert f"sha256:{sha256(blob.read_bytes()).hexdigest()}" == layer["digest"]
    listed = subprocess.run(["tar", "-tvf", blob], capture_output=True, text=True, check=True, env={"TZ": "UTC"})
    assert "-rwxr-xr-x 0/0" in listed.stdout
    assert "2000-01-01" in listed.stdout


def test_what_is_no_file_folder_or_link_is_refused(make: Make, cache: Path) -> None:
    made = make()
    os.mkfifo(made / "bin" / "pipe")
    with pytest.raises(InvalidArgument, match="pipe"):
        add("programs", made)
    assert not cache.exists()
    with pytest.raises(InvalidArgument, match="no name"):
        add("No/Name", made)


def test_what_a_killed_process_left_is_swept_by_the_next(make: Make, cache: Path) -> None:
    made = make()
    script = (
        "import sys, time; from pathlib import Path; from orchard.core.scratch import scratch\n"
        "with scratch(Path(sys.argv[1])) as draft:\n"
        "    (draft / 'root').mkdir(); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(cache / ".drafts")], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        add("programs", made)
        assert len(list((cache / ".drafts").iterdir())) == 1
        child.send_signal(signal.SIGKILL)
    add("programs", made)
    assert list((cache / ".drafts").iterdir()) == []
