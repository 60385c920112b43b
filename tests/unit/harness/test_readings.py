"""How drivers start their programs, and what they read from what these leave, cut files and refusals included."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchard.harness.claude_code import ClaudeCode
from orchard.harness.codex import Codex
from orchard.harness.inside import Inside, Launch, Left, Reading
from orchard.harness.opencode import OpenCode
from orchard.harness.pi import Pi
from orchard.harness.protocol import HarnessRequest, Stop
from orchard.harness.zeroclaw import ZeroClaw
from orchard.sandbox import Result

Make = Callable[..., HarnessRequest]
Read = Callable[..., Reading]
RESULT = Result("op", 0, None, False, False, False, b"", b"")
AT = "2026-01-01T00:00:00Z"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Let a driver read lines of stdout and files of records; the last line of each was cut by a kill."""

    def run(harness: Inside, stdout: Sequence[Any], **records: Sequence[Any]) -> Reading:
        files = {tmp_path / "stdout": stdout} | {tmp_path / name: lines for name, lines in records.items()}
        for path, lines in files.items():
            path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"type": "cut')
        return harness.read(Left(tmp_path / "stdout", [tmp_path / name for name in records], RESULT))

    return run


def launch(harness: Inside, request: HarnessRequest, **config: Any) -> Launch:
    harness.check(config)
    return harness.launch(replace(request, config=config), "/home")


async def test_codex_is_told_of_the_endpoint_and_its_features(request_for: Make) -> None:
    made = launch(Codex(), request_for("http://127.0.0.1:9"), disable=["goals"], context=9, settings={"a.b": True})
    assert made.stdin == "Mend the pad."
    assert made.argv[-3:] == ["--disable", "goals", "-"]
    lines = made.files["config.toml"].splitlines()
    assert {'web_search = "disabled"', "allow_login_shell = false", "model_context_window = 9", "a.b = true"} <= {
        *lines
    }
    assert '"base_url" = "http://127.0.0.1:9/v1"' in made.files["config.toml"]
    assert [name for name, value in made.env.items() if value == "key"] == ["ORCHARD_API_KEY"]
    assert "key" not in made.argv


async def test_claude_code_gets_a_bare_url_and_one_key(request_for: Make) -> None:
    made = launch(ClaudeCode(), request_for("http://127.0.0.1:9", turns=7), bare=True, output=100, env={"X": "y"})
    assert made.env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"
    assert (made.env["ANTHROPIC_AUTH_TOKEN"], made.env["ANTHROPIC_API_KEY"], made.env["IS_SANDBOX"]) == ("key", "", "1")
    assert (made.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"], made.env["X"]) == ("100", "y")
    assert made.argv[made.argv.index("--max-turns") + 1] == "7"
    assert "--bare" in made.argv


@pytest.mark.parametrize(
    ("dialect", "api", "npm", "url"),
    [
        ("chat", "openai-completions", "@ai-sdk/openai-compatible", "http://127.0.0.1:9/v1"),
        ("responses", "openai-responses", "@ai-sdk/openai", "http://127.0.0.1:9/v1"),
        ("anthropic", "anthropic-messages", "@ai-sdk/anthropic", "http://127.0.0.1:9"),
    ],
)
async def test_pi_and_opencode_speak_the_dialect(request_for: Make, dialect: str, api: str, npm: str, url: str) -> None:
    request = request_for("http://127.0.0.1:9")
    provider = json.loads(launch(Pi(), request, dialect=dialect).files["models.json"])["providers"]["orchard"]
    assert (provider["api"], provider["baseUrl"], provider["apiKey"]) == (api, url, "key")
    settings = json.loads(launch(OpenCode(), request, dialect=dialect).files["opencode.json"])
    provider = settings["provider"]["orchard"]
    assert (provider["npm"], provider["options"]["baseURL"]) == (npm, "http://127.0.0.1:9/v1")


def test_codex_is_read_by_what_it_printed_and_its_rollout_files(read: Read) -> None:
    call = {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "ls"}', "call_id": "c1"}
    ran = {"type": "item_completed", "item": {"id": "c1", "exit_code": 2}}
    records = [
        {"type": "response_item", "timestamp": AT, "payload": call},
        {"type": "token_usage_record", "payload": {"response_id": "resp-1"}},
        {"type": "event_msg", "payload": ran},
        {"type": "response_item", "timestamp": "2026-01-01T00:00:02Z",
         "payload": {"type": "function_call_output", "call_id": "c1", "output": "no such file"}},
        {"type": "response_item", "payload": {**call, "call_id": "c2"}},
    ]  # fmt: skip
    said = {"type": "item.completed", "item": {"type": "agent_message", "text": "Done."}}
    found = read(Codex(), [said, {"type": "turn.completed"}], rollout=records)
    assert (found.done, found.submission, found.turns) == (True, "Done.", 1)
    one, two = found.events
    assert (one.call_id, one.arguments, one.output, one.exit_code, one.seconds) == (
        "resp-1", {"cmd": "ls"}, "no such file", 2, 2.0
    )  # fmt: skip
    assert (two.call_id, two.error) == (None, "no result")
    failed = read(Codex(), [said, {"type": "turn.failed", "error": {"message": "no room"}}], rollout=records)
    assert (failed.done, failed.submission, failed.words) == (False, None, "no room")
    assert not read(Codex(), []).done


def test_claude_code_is_read_by_its_last_line_and_its_session_files(read: Read) -> None:
    use = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "false"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "Exit code 1\nno", "is_error": True}
    records = [
        {"type": "assistant", "timestamp": AT, "message": {"id": "msg-1", "content": [use]}},
        {"type": "user", "timestamp": AT, "message": {"content": [result]}},
        {"type": "assistant", "isApiErrorMessage": True, "message": {"id": "x", "content": []}},
    ]
    ended = {"type": "result", "subtype": "success", "result": "Done."}
    found = read(ClaudeCode(), [ended], session=records)
    assert (found.done, found.submission, found.turns) == (True, "Done.", 1)
    [event] = found.events
    assert (event.call_id, event.tool_call_id, event.exit_code, event.error) == (
        "msg-1", "t", 1, "the tool reports an error"
    )  # fmt: skip
    failed = read(ClaudeCode(), [{**ended, "is_error": True, "result": "API Error: 400"}], session=records)
    assert (failed.done, failed.limit, failed.words) == (False, None, "API Error: 400")
    turns = read(ClaudeCode(), [{"type": "result", "subtype": "error_max_turns", "is_error": True}], session=records)
    assert (turns.done, turns.limit) == (False, Stop.TURNS)


@pytest.mark.parametrize(
    ("reason", "done", "limit", "turns"),
    [
        ("stop", True, None, 1),
        ("length", False, Stop.FORMAT, 1),
        ("error", False, None, 0),
        ("toolUse", False, None, 1),
    ],
)
def test_pi_exits_with_0_and_is_read_by_its_last_answer(
    read: Read, reason: str, done: bool, limit: Stop | None, turns: int
) -> None:
    text = [{"type": "text", "text": "Done."}]
    last = {"role": "assistant", "content": text, "stopReason": reason, "errorMessage": "no"}
    found = read(Pi(), [], session=[{"type": "message", "message": last}])
    assert (found.done, found.limit, found.turns, found.submission) == (done, limit, turns, "Done." if done else None)


def zeroclaw_log(*, calls: int, outcome: str = "success", spent: bool = False) -> str:
    attributes = {"trace_id": "t", "parsed_tool_calls": calls, "raw_response": "Done."}
    told = [
        {"message": "llm_response", "event": {"category": "provider", "outcome": outcome}, "attributes": attributes}
    ]
    told += [{"message": "tool_loop_exhausted", "attributes": {"trace_id": "t"}}] * spent
    return "".join(f"{json.dumps(line)}\n" for line in told)


@pytest.mark.parametrize(
    ("log", "printed", "code", "done", "limit", "words"),
    [
        (zeroclaw_log(calls=0), "Done.\n", 0, True, None, "Done."),
        (zeroclaw_log(calls=1), "Printed.\n", 0, True, None, "Printed."),  # the log's tail is lost
        ("", "Printed.\n", 0, True, None, "Printed."),
        (zeroclaw_log(calls=1), "", 0, False, None, None),
        (zeroclaw_log(calls=1), "Printed.\n", 1, False, None, None),
        (zeroclaw_log(calls=1, spent=True), "Printed.\n", 0, False, Stop.TURNS, None),
        (zeroclaw_log(calls=0, outcome="failure"), "Printed.\n", 0, False, None, None),
    ],
)
def test_zeroclaw_is_read_by_its_log_and_where_that_lost_its_tail_by_what_it_printed(
    tmp_path: Path, log: str, printed: str, code: int, done: bool, limit: Stop | None, words: str | None
) -> None:
    stdout, trace = tmp_path / "stdout", tmp_path / "trace.jsonl"
    stdout.write_text(printed)
    trace.write_text(log)
    found = ZeroClaw().read(Left(stdout, [trace], replace(RESULT, exit_code=code)))
    assert (found.done, found.limit, found.submission) == (done, limit, words)


@pytest.mark.parametrize(
    ("ended", "done", "limit"),
    [
        ({"finish": "stop"}, True, None),
        ({"finish": "length"}, False, Stop.FORMAT),
        ({"finish": "stop", "error": {"name": "APIError"}}, False, None),
        ({}, False, None),
    ],
)
def test_opencode_is_read_by_its_database(
    tmp_path: Path, ended: dict[str, Any], done: bool, limit: Stop | None
) -> None:
    state = {"status": "completed", "input": {"command": "ls"}, "output": "a", "metadata": {"exit": 0}}
    child = {"type": "tool", "callID": "t", "tool": "bash", "state": {**state, "time": {"start": 1000, "end": 3000}}}
    with sqlite3.connect(tmp_path / "opencode.db") as database:
        database.execute("CREATE TABLE session (id, parent_id)")
        database.execute("CREATE TABLE message (id, session_id, time_created, data)")
        database.execute("CREATE TABLE part (id, message_id, data)")
        database.executemany("INSERT INTO session VALUES (?, ?)", [("main", None), ("child", "main")])
        messages = [("m1", "main", 1, ended), ("m2", "child", 2, {"finish": "stop"})]
        rows = [(name, of, at, json.dumps({"role": "assistant", **facts})) for name, of, at, facts in messages]
        database.executemany("INSERT INTO message VALUES (?, ?, ?, ?)", rows)
        parts = [("p1", "m1", {"type": "text", "text": "Done."}), ("p2", "m1", {"type": "step-finish"}),
                 ("p3", "m2", child), ("p4", "m2", {"type": "step-finish"})]  # fmt: skip
        database.executemany("INSERT INTO part VALUES (?, ?, ?)", [(a, b, json.dumps(c)) for a, b, c in parts])
    found = OpenCode().read(Left(tmp_path / "stdout", [tmp_path / "opencode.db"], RESULT))
    assert (found.done, found.limit, found.turns, found.submission) == (done, limit, 2, "Done." if done else None)
    [event] = found.events
    assert (event.tool_call_id, event.arguments, event.output, event.exit_code, event.seconds) == (
        "t", {"command": "ls"}, "a", 0, 2.0
    )  # fmt: skip
    assert found.native is not None
    assert [json.loads(line)["session"] for line in found.native.read_text().splitlines()] == [
        "main",
        "main",
        "child",
        "child",
    ]
    (tmp_path / "opencode.db").write_bytes(b"no database")
    assert not OpenCode().read(Left(tmp_path / "stdout", [tmp_path / "opencode.db"], RESULT)).done
