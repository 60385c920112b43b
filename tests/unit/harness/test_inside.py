"""What every driver of a program inside the sandbox shares: its folder, its end, its records."""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import PATIENT, until

from orchard.core.errors import InvalidArgument
from orchard.harness.inside import Inside, Launch, Left, Reading, fetch
from orchard.harness.native import ToolLog, clipped, json_lines
from orchard.harness.options import check_kinds
from orchard.harness.protocol import HarnessRequest, HarnessResult, Stop
from orchard.sandbox import Entry, Files, Sandbox

Make = Callable[..., HarnessRequest]


class Script(Inside):
    """A program that is a shell script; it is done if it prints ``done``, and keeps records in ``notes``."""

    name, pin, layers, records = "script", "1", (), "notes"

    def __init__(self, script: str) -> None:
        self.script, self.home = script, ""

    def launch(self, request: HarnessRequest, home: str) -> Launch:
        self.home = home
        env = {"OWN": home, "KEY": request.api_key}
        return Launch(["sh", "-c", self.script], env, {"settings/a.json": "{}"}, stdin=request.instruction)

    def read(self, left: Left) -> Reading:
        said = [str(line["say"]) for line in json_lines(left.stdout)]
        limit = Stop.TURNS if "limit" in said else None
        return Reading("done" in said, len(said), said[-1] if said else None, limit=limit, words=" ".join(said))


async def run(request: HarnessRequest, script: str, *, last_error: str | None = None) -> HarnessResult:
    return await Script(script).run(replace(request, last_error=lambda: last_error))


async def test_it_gets_a_private_folder_and_its_own_home_is_left_alone(request_for: Make, box: Sandbox) -> None:
    request = request_for("http://127.0.0.1:9")
    harness = Script('stat -c %a $OWN $OWN/settings/a.json; echo "$HOME"; cat; echo; pwd; touch $OWN/x')
    result = await harness.run(request)
    home = (await box.run('echo "$HOME"')).text.strip()
    lines = (request.scratch / "stdout").read_text().splitlines()
    assert lines == ["700", "600", home, "Mend the pad.", request.workdir]
    assert not harness.home.startswith(request.workdir)
    assert not await box.files.exists(harness.home)
    assert result.stop is Stop.FAILED, "its exit code alone is no verdict"


@pytest.mark.parametrize(
    ("script", "code", "stop"),
    [
        ("""echo '{"say": "done"}'; exit 1""", None, Stop.SUBMITTED),
        ("""echo '{"say": "done"}'""", "budget_exceeded", Stop.SUBMITTED),
        ("""echo '{"say": "limit"}'""", "budget_exceeded", Stop.TURNS),
        ("exit 1", "budget_exceeded", Stop.BUDGET),
        ("exit 0", "context_length_exceeded", Stop.CONTEXT),
        ("exit 0", "engine_unavailable", Stop.FAILED),
        ("kill -9 $$", None, Stop.FAILED),
    ],
)
async def test_its_own_words_decide_then_the_endpoint(
    request_for: Make, script: str, code: str | None, stop: Stop
) -> None:
    result = await run(request_for("http://127.0.0.1:9"), script, last_error=code)
    assert result.stop is stop
    assert (result.submission == "done") == (stop is Stop.SUBMITTED)
    if stop is Stop.FAILED:
        assert (code or "signal KILL") in result.detail


async def test_the_end_of_its_time_ends_it_whatever_it_said(request_for: Make) -> None:
    for seconds in PATIENT:
        result = await run(request_for("http://127.0.0.1:9", seconds=seconds), """echo '{"say": "done"}'; sleep 1000""")
        assert result.stop is Stop.TIME
        if result.turns:  # it had begun by then
            break
    else:
        pytest.fail("what it said is not read")
    assert result.turns == 1


async def test_cancelling_ends_its_tree_and_removes_its_folder(request_for: Make, box: Sandbox) -> None:
    ours = f"sleep 611.{os.getpid()}"  # the sandbox sees the processes of the whole machine
    harness = Script(f"({ours} & setsid {ours} & wait) ; true")
    running = asyncio.create_task(harness.run(request_for("http://127.0.0.1:9")))

    async def sleeping() -> bool:
        return (await box.run(f"pgrep -cfx '{ours}'")).text.strip() == "2"

    await until(sleeping)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await box.run(f"pgrep -cfx '{ours}'")).text.strip() == "0"
    assert not await box.files.exists(harness.home)


async def test_records_are_files_below_the_folder_and_nothing_else(box: Sandbox, tmp_path: Path) -> None:
    await box.run("mkdir -p r/sub; echo a > r/b.jsonl; echo c > r/sub/a.jsonl; ln -s /etc/passwd r/link", cwd="/tmp")
    found = await fetch(box, "/tmp/r", tmp_path / "into")
    [named] = await fetch(box, "/tmp/r", tmp_path / "named", "b.*")
    await box.run("rm -r /tmp/r")
    assert [path.relative_to(tmp_path / "into").as_posix() for path in found] == ["b.jsonl", "sub/a.jsonl"]
    assert [path.read_text() for path in found] == ["a\n", "c\n"]
    assert named == tmp_path / "named" / "b.jsonl"
    assert await fetch(box, "/tmp/none", tmp_path / "into") == []


async def test_a_record_that_vanishes_while_they_are_fetched_is_left_out(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await box.run("mkdir left; echo a > left/a; echo b > left/b", cwd="/tmp")
    listed = Files.list

    async def list_and_lose(files: Files, *args: Any, **options: Any) -> list[Entry]:
        entries = await listed(files, *args, **options)
        await files.remove("/tmp/left/a")
        return entries

    monkeypatch.setattr(Files, "list", list_and_lose)
    found = await fetch(box, "/tmp/left", tmp_path / "into")
    await box.run("rm -r /tmp/left")
    assert [path.name for path in found] == ["b"]


def test_tool_calls_are_joined_with_their_results_by_id() -> None:
    log = ToolLog()
    log.asked("1", "bash", {"command": "ls"}, answer="msg_1", at="2026-01-01T00:00:00Z")
    log.asked("2", "edit", {"path": "\ud800"}, at=1000)
    log.asked("1", "bash", {"command": "again"})
    log.answered("2", "x" * 20_000, error="it failed", at=3500)
    log.answered("1", "out", exit_code=3, at="2026-01-01T00:00:01.5Z")
    log.answered("3", "of nothing")
    log.came_of(["2", "9"], "msg_2")
    one, two = log.events
    assert (one.tool_call_id, one.call_id, one.arguments, one.output) == ("1", "msg_1", {"command": "ls"}, "out")
    assert (one.exit_code, one.seconds, one.error) == (3, 1.5, None)
    assert (two.call_id, two.seconds, two.error, two.arguments) == ("msg_2", 2.5, "it failed", {"path": "\ufffd"})
    assert two.output == clipped("x" * 20_000)
    assert len(two.output) < 10_100


def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(json.dumps({"a": 1}).encode() + b'\n[1]\n\xff\n{"b": ')
    assert list(json_lines(file)) == [{"a": 1}]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"bear": True}, "has no option bear"),
        ({"bare": 1}, "bare must be true or false"),
        ({"context": 0}, "context must be a number from 1 on"),
        ({"context": True}, "context must be"),
        ({"args": ["a", 1]}, "args must be a list of texts"),
        ({"dialect": "chats"}, "dialect must be one of chat, responses"),
        ({"settings": []}, "settings must be a mapping"),
    ],
)
def test_wrong_options_are_refused_by_name(config: dict[str, Any], words: str) -> None:
    kinds = {"bare": bool, "context": int, "args": list, "dialect": ("chat", "responses"), "settings": dict}
    check_kinds("h", {"bare": False, "context": 1, "args": [], "dialect": "chat", "settings": {"a": 1}}, kinds)
    with pytest.raises(InvalidArgument, match=words):
        check_kinds("h", config, kinds)
