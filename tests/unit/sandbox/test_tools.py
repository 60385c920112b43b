"""The tool store: the same content has the same name, whoever brings it, and what is half-made never shows."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from tests.support.cli import orchard

from orchard.core.errors import InvalidArgument
from orchard.sandbox.toolcache import clear, layers, remove
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


DAY = 86_400.0


@pytest.fixture
def three(make: Make, cache: Path) -> dict[str, int]:
    """Three layers, last asked for 1, 2 and 3 days ago; name -> bytes on the disk."""
    for days in (1, 2, 3):
        tool = add(f"of-{days}", make(days, "x" * 10_000 * days))
        at = time.time() - days * DAY
        os.utime(cache / ".used" / tool, (at, at))
    return {one.tool.name: one.bytes for one in layers()}


def test_layers_are_told_with_their_size_the_longest_unused_first(three: dict[str, int], cache: Path) -> None:
    assert list(three) == ["of-3", "of-2", "of-1"]
    said = subprocess.run(["du", "-s", "-B1", cache / "of-3"], capture_output=True, text=True, check=True).stdout
    folders = 2 * cache.stat().st_blksize  # its own two, which du counts too
    assert 0 <= int(said.split()[0]) - three["of-3"] <= folders
    assert not any(one.in_use for one in layers())


def test_the_longest_unused_go_first_and_what_was_used_lately_stays(three: dict[str, int]) -> None:
    assert clear(most=sum(three.values())) == []
    assert [one.tool.name for one in clear(most=sum(three.values()) - 1)] == ["of-3"]
    assert clear(only=["of-1", "of-9"], rest=timedelta(days=1.5)) == []
    used = next(one.tool for one in layers() if one.tool.name == "of-2")
    assert find(used) is not None  # it was asked for now, and may be on its way into a sandbox
    assert [one.tool.name for one in clear()] == ["of-1"]
    assert [one.tool for one in layers()] == [used]


def test_a_layer_that_a_process_runs_from_stays(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "made" / "bin").mkdir(parents=True)
    shutil.copy(shutil.which("sleep") or "", tmp_path / "made" / "bin" / "sleep")
    tool = add("sleeper", tmp_path / "made")
    folder = find(parse_tool(tool))
    assert folder is not None
    os.utime(cache / ".used" / tool, (0, 0))
    with subprocess.Popen([folder / "bin" / "sleep", "60"]) as process:
        try:
            assert [one.in_use for one in layers()] == [True]
            assert clear() == []
        finally:
            process.kill()
    assert [str(one.tool) for one in clear()] == [tool]
    assert find(parse_tool(tool)) is None


def test_a_layer_that_came_into_use_since_it_was_looked_at_is_put_back(three: dict[str, int]) -> None:
    oldest = layers()[0]
    assert find(oldest.tool) is not None
    assert not remove(oldest)
    assert find(oldest.tool) is not None
    second = layers()[0]
    assert remove(second)
    assert not remove(second)


def test_a_new_layer_makes_room_for_itself(three: dict[str, int], make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_TOOLS_LIMIT", str(three["of-1"]))
    add("new", make(4, "new"))
    assert [one.tool.name for one in layers()] == ["new"]  # of-1 was asked for a day ago
    monkeypatch.setenv("ORCHARD_TOOLS_LIMIT", "1")
    add("newer", make(5, "newer"))
    assert [one.tool.name for one in layers()] == ["new", "newer"]  # whatever they take
    monkeypatch.setenv("ORCHARD_TOOLS_LIMIT", "much")
    with pytest.raises(InvalidArgument, match="ORCHARD_TOOLS_LIMIT"):
        add("newest", make(6, "newest"))


def test_the_command_shows_and_clears(three: dict[str, int], cache: Path) -> None:
    env = {"ORCHARD_CACHE": str(cache.parent)}
    shown = orchard("tools", "ls", "--json", env=env)
    assert [one["bytes"] for one in json.loads(shown.stdout)] == list(three.values())
    assert orchard("tools", "clear", "of-9", env=env).returncode == 3
    gone = orchard("tools", "clear", "--unused", "1.5", "--most", str(sum(three.values()) - 1), env=env)
    assert (gone.stdout.split(b"@")[0], b"2 stay" in gone.stderr) == (b"of-3", True)
    assert json.loads(orchard("tools", "clear", "--json", env=env).stdout)[0]["layer"].startswith("of-2@sha256:")
    assert [path for path in cache.rglob("*") if path.is_file()] == []
