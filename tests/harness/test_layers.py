"""Tool layers of harnesses in a root that holds busybox alone: no glibc, no env, no Node, no Python."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.harness.conftest import EVERY

from orchard.core.errors import MachineUnfit
from orchard.harness.layers import NODE, NODE_PROGRAM, PYTHON, PYTHON_PROGRAM, Layer, build, python_here
from orchard.harness.layers.parts import debian, patchelf
from orchard.harness.registry import create_harness
from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.toolnames import parse_tool
from orchard.sandbox.tools import find

Bare = Callable[[Sequence[str]], AbstractAsyncContextManager[Sandbox]]
LOOK = """
const {execFileSync, execSync} = require("child_process"), fs = require("fs");
const own = [process.version, process.execPath, fs.readlinkSync("/proc/self/exe")];
const child = () => JSON.parse(execFileSync(process.execPath, [__filename, "child"]));
const seen = () => execSync("env").toString().split("\\n").filter(line => line.startsWith("LD_"));
console.log(JSON.stringify(process.argv[2] === "child" ? own : [own, child(), seen()]));
"""
GZIP = Path(shutil.which("gzip") or "/bin/gzip")
BUILD = """
import asyncio, logging, sys
from pathlib import Path
from orchard.harness.layers import Layer, build
logging.basicConfig(level=logging.INFO)
print(asyncio.run(build(Layer("gzip", programs={"zip-it": Path(sys.argv[1])}))))
"""
EQUIPPED = [name for name in EVERY if getattr(create_harness(name), "layers", ())]


@pytest.fixture
async def bare(local_home: Path, tmp_path: Path) -> AsyncIterator[Bare]:
    """Makes sandboxes of a root with busybox alone, with the tools given."""
    (tmp_path / "bin").mkdir()
    shutil.copy(shutil.which("busybox") or "/bin/busybox", tmp_path / "bin" / "busybox")
    for name in ("sh", "env", "cat"):
        (tmp_path / "bin" / name).symlink_to("busybox")
    async with Orchard(backend=LocalBackend(LocalSettings(home=local_home))) as orchard:
        yield lambda tools: orchard.sandbox(f"dir:{tmp_path}", tools=tools, ttl=300)


async def test_node_and_its_children_run_where_no_glibc_is(bare: Bare) -> None:
    async with bare([await build(NODE)]) as box:
        await box.files.write("/look.js", LOOK)
        done = (await box.run([NODE_PROGRAM, "/look.js"])).check()
        own, child, loaders = json.loads(done.text)
        assert own == child
        assert own[0].startswith("v24.")
        assert own[1:] == [NODE_PROGRAM, NODE_PROGRAM]
        assert loaders == []
        assert (await box.run("command -v node npm")).exit_code != 0
        await box.files.write("/image/libm.so.6", b"of another libc")
        (await box.run([NODE_PROGRAM, "--version"], env={"LD_LIBRARY_PATH": "/image"})).check()


async def test_python_runs_where_no_glibc_is_and_on_this_machine(bare: Bare, tmp_path: Path) -> None:
    look = "import ctypes, lzma, sqlite3, ssl, sys; print(sys.version_info[:2], sys.prefix, sys.executable)"
    again = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {look!r}], check=True)"
    async with bare([await build(PYTHON)]) as box:
        done = (await box.run([PYTHON_PROGRAM, "-c", again])).check()
        assert done.text == f"(3, 13) {PYTHON.folder} {PYTHON_PROGRAM}\n"
        assert (await box.run("command -v python3 python")).exit_code != 0
    here = await python_here()
    await asyncio.to_thread(subprocess.check_call, [here, "-m", "venv", "--without-pip", tmp_path / "venv"])
    python = tmp_path / "venv" / "bin" / "python"
    said = await asyncio.to_thread(subprocess.check_output, [python, "-c", again], text=True, env={})
    assert said == f"(3, 13) {tmp_path / 'venv'} {python}\n"


async def test_packages_of_both_indexes_and_a_program_of_this_machine(bare: Bare) -> None:
    layers = [
        NODE, PYTHON, Layer("semver", npm=("semver@7.7.2",)), Layer("cowsay", python=("cowsay==6.1",)),
        Layer("gzip", programs={"zip-it": GZIP}),
    ]  # fmt: skip
    tools = [await build(layer) for layer in layers]
    async with bare(tools) as box:
        assert (await box.run(["semver", "0.9.0", "1.2.3", "-r", ">1.0.0"])).check().text == "1.2.3\n"
        assert "moo" in (await box.run(["cowsay", "-t", "moo"])).check().text
        assert (await box.run(["zip-it", "-c"], stdin=b"x")).check().stdout.startswith(b"\x1f\x8b")


async def test_what_was_built_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = await build(NODE)
    monkeypatch.setenv("PATH", "/nowhere")
    assert await build(NODE) == first
    again = await asyncio.gather(*(build(NODE) for _ in range(4)))
    assert set(again) == {first}


async def test_any_number_of_processes_build_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await build(Layer("gzip", programs={"zip-it": GZIP}))
    for part in (debian(), patchelf().parents[1]):
        (tmp_path / "layers").mkdir(exist_ok=True)
        (tmp_path / "layers" / part.name).symlink_to(part)
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path))
    argv = [sys.executable, "-c", BUILD, str(GZIP)]
    pipe = subprocess.PIPE
    several = [await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe) for _ in range(3)]
    said = await asyncio.gather(*(process.communicate() for process in several))
    names = {out for out, _ in said}
    assert len(names) == 1
    assert find(parse_tool(names.pop().decode().strip())) is not None
    assert b"".join(words for _, words in said).count(b"building the tool layer") == 1


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        (Layer("nothing", npm=("semver@99.99.99",)), "semver@99.99.99"),
        (Layer("nothing", python=("cowsay==99.99",)), "cowsay"),
        (Layer("nothing", npm=("semver@7.7.2",), links={"x": "semver/no-such"}), "no-such"),
    ],
)
async def test_what_cannot_be_had_is_told_in_the_installers_words(layer: Layer, word: str) -> None:
    with pytest.raises(MachineUnfit) as refused:
        await build(layer)
    assert word in refused.value.message


@pytest.mark.parametrize("harness", EQUIPPED, indirect=True)
async def test_the_programs_of_a_harness_start_where_no_glibc_is(bare: Bare, harness: str) -> None:
    tools = await create_harness(harness).tools()
    folders = [folder for tool in tools if (folder := find(parse_tool(tool)))]
    programs = [each.name for folder in folders for each in (folder / "bin").glob("*")]
    assert programs
    async with bare(tools) as box:
        for program in programs:
            done = await box.run([program, "--version"], timeout=120)
            assert done.exit_code == 0, (program, done.text[-300:], done.error_text[-500:])
