"""Every snippet in README and docs is executed.

A Python block runs as a program of its own; a comment ``<!-- test: CODE -->`` on the line before it is appended, for
blocks that only define something. TOML and JSON blocks are parsed. In a console block each line after ``$`` runs in one
shell, and what follows it must be in the output (``…`` stands for anything). A line of a bash block is a make target.
``<!-- lane: cluster -->`` on the line before leaves a block to the lane that has a cluster.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchard.gateway import Gateway
from orchard.gateway.engines.script import ScriptEngine, bash_step
from orchard.trajectories import Store

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_MARK = r"(?:<!-- (?:test: (?P<test>.*?)|lane: (?P<lane>\w+)) -->\n)?"
BLOCK = re.compile(_MARK + r"^```(?P<kind>\w*)\n(?P<code>.*?)^```", re.M | re.S)
CHECKED = {"python", "toml", "json", "console", "bash"}
_UNTIL_ALL_HAS_ENDED = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
"""What was left in the background may write in the test's folders until it has ended."""


@dataclass(frozen=True)
class Snippet:
    page: Path
    line: int
    kind: str
    code: str
    test: str
    lane: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets() -> list[Snippet]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Snippet(page, line, match["kind"], match["code"], match["test"] or "", match["lane"]))
    return found


def run_python(snippet: Snippet, home: Path, folder: Path) -> None:
    file = folder / "snippet.py"
    file.write_text(f"{snippet.code}\n{snippet.test}\n")
    done = subprocess.run(
        [sys.executable, file.name], cwd=folder, env=environment(home), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def environment(home: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "ORCHARD_HOME": str(home), "PATH": path}


def steps(code: str) -> list[tuple[str, list[str]]]:
    """(command, lines of output that must come) of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip() and found:
            found[-1][1].append(line)
    return found


def run_console(snippet: Snippet, home: Path, folder: Path, model_url: str) -> None:
    commands = steps(snippet.code)
    assert commands, "a console block has a line that begins with '$ '"
    script = _UNTIL_ALL_HAS_ENDED + "".join(
        f"{command}\necho '<<{number}>>'\n" for number, (command, _) in enumerate(commands)
    )
    (folder / "examples").symlink_to(ROOT / "examples")
    log = folder / "output"
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=environment(home) | {"MODEL_URL": model_url}, stdout=output,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            shell.wait(170)
        finally:
            with suppress(ProcessLookupError):  # nothing was left in the background
                os.killpg(shell.pid, signal.SIGTERM)
            shell.wait(10)
    compare(commands, log.read_text())


def compare(commands: list[tuple[str, list[str]]], output: str) -> None:
    position = 0
    for number, (command, wanted) in enumerate(commands):
        end = output.find(f"<<{number}>>")
        assert end >= 0, f"`{command}` failed:\n{output}"
        for line in wanted:
            pattern = ".*".join(re.escape(part) for part in line.strip().split("…"))
            assert re.search(pattern, output[position:]), f"`{command}` did not say {line!r}:\n{output}"
        position = end


@pytest.fixture
def model_url(tmp_path: Path) -> Iterator[str]:
    """An endpoint of a scripted model that submits at once, as ``--base-url`` takes it; served by a thread."""
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), []
    stop = asyncio.Event()

    async def serve() -> None:
        engine = ScriptEngine([bash_step("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")], at_end="repeat")
        with Store(tmp_path / "store") as store:
            async with Gateway(store, {"script": engine}) as gateway:
                found.append((await gateway.open_session()).url + "/v1")
                ready.set()
                await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    unknown = [str(snippet) for snippet in snippets() if snippet.kind and snippet.kind not in CHECKED]
    assert not unknown
    assert {snippet.kind for snippet in snippets()} >= {"python", "console", "bash"}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("snippet", [one for one in snippets() if one.kind in CHECKED and not one.lane], ids=str)
def test_snippet(snippet: Snippet, local_home: Path, tmp_path: Path, model_url: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    if snippet.kind == "python":
        run_python(snippet, local_home, folder)
    elif snippet.kind == "toml":
        assert tomllib.loads(snippet.code)
    elif snippet.kind == "json":
        json.loads(snippet.code)
    elif snippet.kind == "bash":
        for line in snippet.code.splitlines():
            assert line.startswith("make "), "a bash block in README or docs holds make targets"
            subprocess.run([*line.split(), "-n"], cwd=ROOT, check=True, capture_output=True)
    else:
        run_console(snippet, local_home, folder, model_url)
