"""Scripted agents: their files, their placeholders, and that nothing secret is within their reach."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument
from orchard.gateway import EngineRequest
from orchard.harness.protocol import SUBMIT_MARKER
from orchard.rollout.policies import BUILT_IN, PLACEHOLDERS, placeholders, policy
from orchard.tasks.model import GraderSpec, Task

PATCH = """\
diff --git a/pad.py b/pad.py
--- a/pad.py
+++ b/pad.py
@@ -1,2 +1,2 @@
 def pad(text):
-    return text
+    return f"  {text}" + '$HOME `id` {workdir} \\\\'
diff --git a/new file.txt b/new file.txt
new file mode 100644
--- /dev/null
+++ b/new file.txt
@@ -0,0 +1 @@
+hello
"""


def task(patch: str | None = PATCH) -> Task:
    return Task(
        id="t", kind="toml", instruction="Fix it.", image="host", graders=[GraderSpec(type="tests")],
        gold_patch=patch, secret={"tests": {"fail_to_pass": ["tests/test_secret.py::test_it"]}},
    )  # fmt: skip


SHELL = {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]}
TOOLS = [{"type": "function", "function": {"name": "exec_command", "parameters": SHELL}}]


async def commands(name: str, about: Task) -> list[str]:
    """Every command that the policy's engine asks for."""
    engine, found, messages = policy(name).engine(about), list[str](), list[Any]()
    while not found or SUBMIT_MARKER not in found[-1]:
        request = EngineRequest(session="s", turn=len(found), model="script", messages=messages, tools=TOOLS)
        parts = [part async for part in engine.complete(request)]
        message = parts[-1].message  # pyright: ignore[reportAttributeAccessIssue]
        found.append(json.loads(message["tool_calls"][0]["function"]["arguments"])["cmd"])
        messages += [message, {"role": "tool", "content": ""}]
    return found


async def shell(command: str, folder: Path) -> int:
    process = await asyncio.create_subprocess_exec("bash", "-c", command, cwd=folder)
    return await process.wait()


@pytest.mark.parametrize("name", BUILT_IN)
async def test_every_built_in_script_is_filled_submits_and_sees_no_secret(name: str) -> None:
    found = await commands(name, task())
    assert found[-1] == f"echo {SUBMIT_MARKER}"
    assert not [line for line in found if "{gold" in line or "{save" in line or "{apply" in line]
    assert "secret" not in "\n".join(found)


async def test_a_script_ends_by_words_where_no_marker_ends_it() -> None:
    engine, turns = policy("noop").engine(task()), [{"role": "assistant", "tool_calls": [{"id": "1"}]}]
    request = EngineRequest(session="s", turn=1, model="script", messages=turns, tools=TOOLS)
    message = [part async for part in engine.complete(request)][-1].message  # pyright: ignore
    assert (message["content"], message.get("tool_calls")) == ("I am done.", None)


@pytest.mark.parametrize(
    "patch", [PATCH, PATCH.replace("hello", "END_OF_PATCH\n+x"), PATCH.replace("hello", "\udcff\x07")]
)
async def test_gold_applies_its_patch_exactly(tmp_path: Path, patch: str) -> None:
    if "\n+x" in patch:
        patch = patch.replace("+1 @@\n+END", "+1,2 @@\n+END")
    (tmp_path / "pad.py").write_text("def pad(text):\n    return text\n")
    for command in await commands("gold", task(patch)):
        assert await shell(command.replace("/tmp/", f"{tmp_path}/"), tmp_path) == 0
    assert (tmp_path / "pad.py").read_text().splitlines()[1] == patch.splitlines()[6][1:]
    lines = [line[1:] for line in patch.splitlines()[12:]]
    assert (tmp_path / "new file.txt").read_bytes() == "".join(f"{line}\n" for line in lines).encode(
        "utf-8", "surrogateescape"
    )


async def test_commit_and_fix_leaves_the_fix_and_no_history(tmp_path: Path) -> None:
    (tmp_path / "pad.py").write_text("def pad(text):\n    return text\n")
    for command in await commands("script:commit-and-fix", task()):
        await shell(command, tmp_path)
    assert "$HOME" in (tmp_path / "pad.py").read_text()
    assert not (tmp_path / ".git").exists()


@pytest.mark.parametrize("name", ["nope", "script:nope", "hardcode", "script:/nowhere/x.toml"])
def test_an_unknown_policy_names_those_there_are(name: str) -> None:
    with pytest.raises(InvalidArgument, match="script:commit-and-fix"):
        policy(name)


def test_a_broken_script_says_where(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('about = "x"\nexpect = "maybe"\n[[steps]]\nrun = "ls"\n')
    with pytest.raises(InvalidArgument, match=r"mine\.toml is no script.*expect"):
        policy(f"script:{file}")


def test_the_placeholders_are_those_a_script_is_filled_with() -> None:
    assert tuple(placeholders(task())) == PLACEHOLDERS


def test_an_unknown_placeholder_is_refused_when_the_script_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('about = "x"\nexpect = "fail"\n[[steps]]\nrun = "cd {workdir}; echo {nope}"\n')
    with pytest.raises(InvalidArgument, match=r"steps.0.run: .*no placeholder \{nope\} .*write \{\{nope\}\} for"):
        policy(f"script:{file}")


async def test_braces_of_the_shell_and_doubled_ones_are_no_placeholders(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    run = "awk '{{print}}' ${file} ${workdir} {a,b} {workdir}; echo {submit}"
    file.write_text(f'about = "x"\nexpect = "fail"\n[[steps]]\nrun = "{run}"\n')
    want = f"awk '{{print}}' ${{file}} ${{workdir}} {{a,b}} /testbed; echo {SUBMIT_MARKER}"
    assert await commands(f"script:{file}", task()) == [want]
