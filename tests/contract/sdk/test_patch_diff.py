"""``diff`` and ``apply_patch``: made outside, whatever the sandbox holds."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.daemon import DaemonBackend
from tests.support.waiting import cancelled_after, until

from orchard.core.errors import InvalidArgument, PatchFailed, Unavailable
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.sealed import run_tool, sealed_git
from orchard.sandbox.types import Endpoint, SandboxSpec


def run(*argv: str, cwd: Path, stdin: bytes | None = None) -> bytes:
    return subprocess.run(argv, cwd=cwd, input=stdin, capture_output=True, check=True).stdout


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Files and links below ``folder`` as git sees them."""
    return {
        str(path.relative_to(folder)): (
            0o120000 if path.is_symlink() else path.stat().st_mode & 0o100,
            str(path.readlink()).encode() if path.is_symlink() else path.read_bytes(),
        )
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and ".git" not in path.parts and "__pycache__" not in path.parts
    }


@pytest.fixture
def template(short_path: Path) -> Path:
    """The work tree as the image has it."""
    tree = short_path / "template"
    (tree / "pkg/sub").mkdir(parents=True)
    (tree / "pkg/a.py").write_text("".join(f"line {number}\n" for number in range(30)))
    (tree / "pkg/sub/b.py").write_text("b = 1\n")
    (tree / "pkg/old.py").write_text("old\n")
    (tree / "data.bin").write_bytes(bytes(range(256)) * 4)
    (tree / "latin.txt").write_bytes(b"caf\xe9\n")
    (tree / "link").symlink_to("pkg/a.py")
    (tree / "run.sh").write_text("#!/bin/sh\n")
    run("git", "init", "-q", cwd=tree)
    run("git", "add", "-A", cwd=tree)
    run("git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "base", cwd=tree)
    return tree


@pytest.fixture
async def box(
    short_path: Path, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sandbox]:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))
    backend = DaemonBackend(short_path / "boxes", template, digest="sha256:" + "1" * 64)
    (short_path / "boxes").mkdir()
    async with Orchard(backend=backend) as orchard, orchard.sandbox("image") as made:
        await made.baseline()
        yield made


CHANGE = """
set -e
sed -i s/line.7/LINE.7/ pkg/a.py
rm pkg/old.py
mkdir -p new && printf 'no newline' > 'new/é "x".py'
printf '\\0\\1\\2' > data.bin
printf 'th\\351\\n' > latin.txt
chmod +x run.sh
ln -sf pkg/sub/b.py link
mkdir -p pkg/__pycache__ && touch pkg/__pycache__/a.cpython-311.pyc
"""


async def test_diff_holds_every_kind_of_change_and_applies_elsewhere(box: Sandbox, template: Path) -> None:
    (await box.run(CHANGE)).check()
    diff = await box.diff()
    assert diff.left_out == ()
    assert b"new file mode" in diff
    assert b"GIT binary patch" in diff
    assert b"new mode 100755" in diff
    assert b"pycache" not in diff
    run("git", "apply", "--whitespace=nowarn", "-", cwd=template, stdin=diff)
    assert content(template) == content(Path(box.info.workdir))


async def test_the_agents_git_changes_nothing(box: Sandbox) -> None:
    (await box.run(CHANGE)).check()
    before = await box.diff()
    (await box.run("git add -A && git -c user.name=a -c user.email=a@a commit -qm mine")).check()
    assert await box.diff() == before
    (await box.run("rm -rf .git")).check()
    assert await box.diff() == before
    assert before


async def test_nothing_the_sandbox_holds_is_run_here(box: Sandbox, tmp_path: Path) -> None:
    mark = tmp_path / "pwned"
    (
        await box.run(
            f"printf '* filter=evil diff=evil merge=evil text eol=crlf\\n' > .gitattributes; mkdir -p .git/hooks; "
            f'printf \'[filter "evil"]\\nclean=touch {mark}\\nsmudge=touch {mark}\\n[diff "evil"]\\n'
            f"textconv=touch {mark}\\ncommand=touch {mark}\\n[core]\\nfsmonitor=touch {mark}\\n' "
            "| tee -a .git/config > .gitconfig; "
            "echo changed >> pkg/a.py"
        )
    ).check()
    diff = await box.diff()
    assert b"+changed\n" in diff
    assert b"\r" not in diff
    assert not mark.exists()


async def test_diff_is_empty_without_a_change_and_counts_from_the_baseline(box: Sandbox) -> None:
    assert await box.diff() == b""
    await box.run("echo one > one")
    first = await box.baseline()
    await box.run("echo two > two")
    assert b"two" in await box.diff()
    assert b"one" not in await box.diff()
    assert await box.diff(since=first) == await box.diff()
    await box.files.write("skip.me", "x")
    assert b"skip.me" not in await box.diff(since=await box.baseline(exclude=["skip.*"]))
    with pytest.raises(InvalidArgument):
        await box.diff("/")


async def test_the_images_own_state_is_fetched_once(
    short_path: Path, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))
    (short_path / "boxes").mkdir()
    backend = DaemonBackend(short_path / "boxes", template, "sha256:" + "2" * 64, workdir=short_path / "boxes/w")
    async with Orchard(backend=backend) as orchard:
        for number in (1, 2):
            async with orchard.sandbox("image") as box:
                await box.files.write("pkg/sub/b.py", "b = 2\n")
                assert b"-b = 1\n+b = 2\n" in await box.diff()
            assert backend.created == number + 1
        async with orchard.sandbox("image") as box:
            await box.files.write("extra/f", "x")
            assert b"new file" in await box.diff("extra")  # nothing of it is in the image
        assert len(await orchard.list()) == 0


def git_diff(template: Path, script: str) -> bytes:
    run("sh", "-c", script, cwd=template)
    run("git", "add", "-A", cwd=template)
    return run("git", "diff", "--cached", "--binary", "--full-index", "-M", cwd=template)


class Unreachable(DaemonBackend):
    """Of what it makes from now on, nobody learns how to reach it: a fault, or no answer at all."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reachable, self.fails, self.asked = set[str](), False, asyncio.Event()

    async def endpoint(self, sandbox_id: str) -> Endpoint:
        if sandbox_id in self.reachable:
            return await super().endpoint(sandbox_id)
        self.asked.set()
        if self.fails:
            raise Unavailable("no answer")
        return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("fails", [True, False])
async def test_a_throw_away_sandbox_that_cannot_be_reached_is_ended(short_path: Path, fails: bool) -> None:
    backend = Unreachable(short_path)
    info = await backend.create(SandboxSpec("image"), "key")
    backend.reachable.add(info.id)
    try:
        box = await Orchard(backend=backend).attach(info.id)
        backend.fails = fails
        diff = asyncio.ensure_future(box.diff())
        await backend.asked.wait()
        if not fails:
            diff.cancel()
        with pytest.raises(Unavailable if fails else asyncio.CancelledError):
            await diff
        assert backend.created == 2
        assert [left.id for left in (await backend.list()).items] == [info.id]
        await box.close()
    finally:
        for left in (await backend.list()).items:
            await backend.delete(left.id)


async def test_git_that_is_cancelled_before_it_begins_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def use() -> None:
        async with sealed_git():
            pass

    for steps in range(12):
        await cancelled_after(steps, use())
        await until(lambda: os.listdir(tmp_path) == [], 20)  # noqa: PTH208


async def test_a_tool_that_ends_as_it_is_cancelled_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    communicate = asyncio.subprocess.Process.communicate

    async def cancelled_at_its_end(process: asyncio.subprocess.Process, stdin: bytes | None = None) -> None:
        await communicate(process, stdin)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    monkeypatch.setattr(asyncio.subprocess.Process, "communicate", cancelled_at_its_end)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.ensure_future(run_tool(["true"], {"PATH": os.environ["PATH"]}, tmp_path, b""))


async def test_a_patch_of_every_kind_applies(box: Sandbox, template: Path) -> None:
    patch = git_diff(template, CHANGE + "mv pkg/sub/b.py pkg/moved.py; rm -rf pkg/__pycache__")
    assert b"rename from" in patch
    changed = await box.apply_patch(patch)
    assert "pkg/moved.py" in changed
    assert content(Path(box.info.workdir)) == content(template)
    assert not await box.files.exists("pkg/sub")
    assert await box.diff() != b""


@pytest.mark.parametrize(
    "patch",
    [
        "--- a/pkg/sub/b.py\n+++ b/pkg/sub/b.py\n@@ -1,7 +1,9 @@\n-b = 1\n+b = 2\n",  # wrong counts
        "--- a/pkg/sub/b.py\n+++ b/pkg/sub/b.py\n@@ -1 +1 @@\n-b  =  1\n+b = 2",  # blanks, no last new line
        "diff --git a/pkg/sub/b.py b/pkg/sub/b.py\nindex 1..2 100644\n"
        "--- a/pkg/sub/b.py\n+++ b/pkg/sub/b.py\n@@ -9 +9 @@\n-b = 1\n+b = 2\n",
    ],
)
async def test_sloppy_patches_apply(box: Sandbox, patch: str) -> None:
    assert await box.apply_patch(patch) == ("pkg/sub/b.py",)
    assert await box.files.read("pkg/sub/b.py") == b"b = 2\n"


async def test_fuzz_is_the_last_resort(box: Sandbox) -> None:
    patch = "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -10,5 +10,5 @@\n"
    patch += " line NINE\n line 10\n-line 11\n+line eleven\n line 12\n line 13\n"
    assert await box.apply_patch(patch) == ("pkg/a.py",)
    assert b"line eleven\n" in await box.files.read("pkg/a.py")


async def test_a_patch_is_all_or_nothing(box: Sandbox) -> None:
    before = content(Path(box.info.workdir))
    patch = (
        "--- a/pkg/sub/b.py\n+++ b/pkg/sub/b.py\n@@ -1 +1 @@\n-b = 1\n+b = 2\n"
        "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,3 +1,3 @@\n nothing\n-like\n+this\n here\n"
    )
    with pytest.raises(PatchFailed) as caught:
        await box.apply_patch(patch)
    assert "pkg/a.py" in caught.value.detail
    assert content(Path(box.info.workdir)) == before
    assert await box.apply_patch("") == ()


async def test_an_upload_that_fails_half_way_is_put_back(box: Sandbox) -> None:
    before = content(Path(box.info.workdir))
    patch = (
        "--- a/pkg/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n"
        "--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1,2 +1,2 @@\n-line 0\n+first\n line 1\n"
        f"--- /dev/null\n+++ b/{'n' * 300}\n@@ -0,0 +1 @@\n+too long a name\n"
    )
    with pytest.raises(OSError, match="n"):
        await box.apply_patch(patch)
    assert content(Path(box.info.workdir)) == before


PWNED = Path("/tmp/orchard-pwned")
HOSTILE = {
    "parent": "--- /dev/null\n+++ b/../../pwned\n@@ -0,0 +1 @@\n+evil\n",
    "absolute": "--- /dev/null\n+++ /tmp/orchard-pwned\n@@ -0,0 +1 @@\n+evil\n",
    "git": "--- /dev/null\n+++ b/.git/hooks/post-commit\n@@ -0,0 +1 @@\n+evil\n",
    "GIT": "diff --git a/.GIT/config b/.GIT/config\nnew file mode 100644\n"
    "--- /dev/null\n+++ b/.GIT/config\n@@ -0,0 +1 @@\n+evil\n",
    "link": "diff --git a/out b/out\nnew file mode 120000\n"
    "--- /dev/null\n+++ b/out\n@@ -0,0 +1 @@\n+..\n\\ No newline at end of file\n"
    "diff --git a/out/pwned b/out/pwned\nnew file mode 100644\n--- /dev/null\n+++ b/out/pwned\n@@ -0,0 +1 @@\n+evil\n",
    "ed": "--- a/pkg/a.py\n+++ b/pkg/a.py\n1a\nx\n.\n!touch /tmp/orchard-pwned\nw\n",
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_patches_change_nothing_anywhere(box: Sandbox, name: str) -> None:
    before = content(Path(box.info.workdir).parent)
    with pytest.raises(PatchFailed):
        await box.apply_patch(HOSTILE[name], strip=0 if name == "absolute" else 1)
    assert content(Path(box.info.workdir).parent) == before
    assert not os.path.lexists(PWNED)  # noqa: ASYNC240


async def test_a_link_already_there_is_not_gone_through(box: Sandbox) -> None:
    await box.run("mkdir ../outside && echo kept > ../outside/f && ln -s ../outside out")
    patch = "--- a/out/f\n+++ b/out/f\n@@ -1 +1 @@\n-kept\n+evil\n"
    with pytest.raises(PatchFailed):
        await box.apply_patch(patch)
    assert await box.files.read("../outside/f") == b"kept\n"
