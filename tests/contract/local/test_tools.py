"""Tool layers for real: mounted read-only on any root, after the image's own programs, and in no layer of changes."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchard.core.errors import CreateFailed, OrchardError
from orchard.sandbox import Orchard
from orchard.sandbox.layout import Image, write_layout
from orchard.sandbox.local import LocalSettings
from orchard.sandbox.toolcache import clear, layers
from orchard.sandbox.tools import add

AT = "/opt/orchard/tools"
FOLDERS = ["/opt", "/opt/orchard", AT, f"{AT}/busy/bin"]


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tool layer: a static busybox by three names, a script, a set-uid file and a private folder, to be levelled."""
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))
    programs = tmp_path / "busy" / "bin"
    programs.mkdir(parents=True, mode=0o700)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", programs / "busybox")
    for name in ("id", "greet-me"):
        (programs / name).write_text(f"#!{AT}/busy/bin/busybox sh\necho {name} of the tool\n")
        (programs / name).chmod(0o4700)
    (programs / "link").symlink_to("busybox")
    return add("busy", tmp_path / "busy")


@pytest.fixture
def scratch_image(tmp_path: Path) -> str:
    """An image without any file, whose PATH is its own."""
    return write_layout(Image((), {"Env": ["PATH=/own", "A=b"], "WorkingDir": "/"}), tmp_path / "scratch")


def readable(tmp_path: Path) -> Path:
    """Return it once an ordinary user's sandbox reads it with other ids."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    return tmp_path


@pytest.fixture(params=["busybox_root", "debian_image", "scratch_image", "host"])
def image(request: pytest.FixtureRequest) -> str:
    return "host" if request.param == "host" else str(request.getfixturevalue(request.param))


async def test_a_tool_is_read_only_on_any_root(
    orchard: Orchard, image: str, busy: str, left: Callable[[str], list[str]]
):
    async with orchard.sandbox(image, tools=[busy], ttl=120) as box:
        told = (await box.run(["greet-me"])).check()
        assert told.stdout == b"greet-me of the tool\n"
        script = "echo no > BIN/new; rm BIN/greet-me; chmod 777 BIN/busybox; BIN/busybox ls -lnL BIN; BIN/busybox mount"
        script = script.replace("BIN", f"{AT}/busy/bin")
        tried = (await box.run([f"{AT}/busy/bin/busybox", "sh", "-c", script], user="12345")).check()
        modes = {line.split()[-1]: line[:10] for line in tried.text.splitlines() if " 0        0 " in line}
        assert tried.error_text.count("Read-only file system") == 3, tried.error_text
        assert {modes[name] for name in ("busybox", "greet-me", "id")} == {"-rwxr-xr-x"}
        mounted = next(line for line in tried.text.splitlines() if f" {AT}/busy " in line)
        assert {"ro", "nosuid", "nodev"} <= set(mounted.rpartition("(")[2].rstrip(")").split(","))
    assert left(box.id) == []


async def test_a_layer_stays_while_a_sandbox_has_it(orchard: Orchard, busybox_root: str, busy: str, tmp_path: Path):
    used = tmp_path / "cache" / "tools" / ".used" / busy
    box = await orchard.create(busybox_root, tools=[busy], ttl=60)
    os.utime(used, (0, 0))  # asked for long ago
    assert [one.in_use for one in layers()] == [True]
    assert clear() == []
    assert (await box.run(["greet-me"])).check().stdout == b"greet-me of the tool\n"
    await box.delete(wait=True)
    assert [str(one.tool) for one in clear()] == [busy]
    with pytest.raises(CreateFailed, match="not in the tool store"):
        await orchard.create(busybox_root, tools=[busy], ttl=60)


async def test_a_tool_never_shadows_a_program_of_the_image(orchard: Orchard, busybox_root: str, busy: str):
    async with orchard.sandbox(busybox_root, tools=[busy], ttl=60, env={"PATH": "/bin"}) as box:
        assert b"of the tool" not in (await box.run(["id"])).check().stdout
        assert (await box.run("echo $PATH")).text.strip() == f"/bin:{AT}/busy/bin"
        assert box.info.env["PATH"] == f"/bin:{AT}/busy/bin"


async def test_a_diff_does_not_see_it(orchard: Orchard, busybox_root: str, busy: str):
    async with orchard.sandbox(busybox_root, tools=[busy], ttl=60) as box:
        (await box.run("mkdir -p /opt/orchard/mine/tools; greet-me > /opt/orchard/mine/tools/new")).check()
        seen = [re.findall(r"^diff --git a/(\S+)", (await box.diff(at)).text, re.MULTILINE) for at in FOLDERS]
        assert seen == [["orchard/mine/tools/new"], ["mine/tools/new"], [], []]


async def test_several_tools_in_their_order(orchard: Orchard, scratch_image: str, busy: str, tmp_path: Path):
    more = add("more.tools-1", tmp_path / "busy")
    assert more.split("@")[1] == busy.split("@")[1]
    async with orchard.sandbox(scratch_image, tools=[more, busy], ttl=60) as box:
        said = (await box.run(["busybox", "sh", "-c", "echo $PATH $A"])).check().text.strip()
        assert said == f"/own:{AT}/more.tools-1/bin:{AT}/busy/bin b"


async def test_a_tool_is_no_part_of_what_a_commit_keeps(
    orchard: Orchard, debian_image: str, busy: str, settings: LocalSettings
):
    async with orchard.sandbox(debian_image, tools=[busy], ttl=120) as box:
        (await box.run("mkdir /opt/mine && greet-me > /opt/mine/a")).check()
        digest = await box.commit("with-a-tool:1")
    async with orchard.sandbox(digest, ttl=60) as box:
        assert (await box.run("find /opt | sort")).text.split() == ["/opt", "/opt/mine", "/opt/mine/a"]
        assert AT not in (await box.run("env")).text


async def test_what_an_image_has_there_stays_as_it_is(orchard: Orchard, busy: str, tmp_path: Path):
    root = readable(tmp_path) / "root"
    (root / "opt" / "orchard" / "kept").mkdir(parents=True)
    (root / "opt").chmod(0o711)
    async with orchard.sandbox(f"dir:{root}", tools=[busy], ttl=60) as box:
        said = (await box.run(["busybox", "sh", "-c", "busybox stat -c %a /opt; echo /opt/orchard/*"])).check().text
        assert said.split() == ["711", "/opt/orchard/kept", "/opt/orchard/tools"]


async def test_an_image_whose_opt_is_a_link_is_refused(
    orchard: Orchard, busy: str, tmp_path: Path, settings: LocalSettings
):
    root = readable(tmp_path) / "root"
    (root / "elsewhere").mkdir(parents=True)
    (root / "opt").symlink_to("elsewhere")
    with pytest.raises(CreateFailed, match="/opt of the image") as refused:
        await orchard.create(f"dir:{root}", tools=[busy], ttl=60)
    assert refused.value.reason == "image_invalid"
    assert list((root / "elsewhere").iterdir()) == []
    assert not list((settings.home / "sandboxes").iterdir())


async def test_a_tool_that_is_not_here_is_refused_with_what_to_do(orchard: Orchard, busybox_root: str, busy: str):
    with pytest.raises(CreateFailed, match=r"node@sha256:0{64} is not in the tool store") as refused:
        await orchard.create(busybox_root, tools=[f"node@sha256:{'0' * 64}"], ttl=60)
    assert refused.value.reason == "tool_not_found"
    assert "orchard harness install" in (refused.value.hint or "")
    with pytest.raises(OrchardError, match="more than once"):
        await orchard.create(busybox_root, tools=[busy, busy], ttl=60)


async def test_a_sandbox_of_the_command_line_has_tools(busybox_root: str, busy: str, local_home: Path):
    words = ["sandbox", "run", busybox_root, "--tool", busy, "--", "greet-me"]
    argv = [sys.executable, "-c", "from orchard.cli.main import run; run()", *words]
    env = {**os.environ, "ORCHARD_HOME": str(local_home)}
    done = await asyncio.to_thread(subprocess.run, argv, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"greet-me of the tool\n"), done.stderr
