"""Which words two runs of one turn may have otherwise, and which they may not."""

import json

import pytest

from orchard.gateway.engines.changing import causes, steady

CLOCK = (
    ("[2026-11-30 05:23:43 +00:00] Mend it.", "[2026-12-01 17:02:09 +00:00] Mend it."),  # ZeroClaw
    ("[Mon 2026-11-30 05:24 UTC] Mend it.", "[Tue 2026-12-01 05:31 UTC] Mend it."),  # OpenClaw
    ("Today's date: Mon Nov 30 2026\n", "Today's date: Tue Dec 1 2026\n"),  # OpenCode
    ("Conversation started: Monday, November 30, 2026", "Conversation started: Friday, January 1, 2027"),  # Hermes
    ("<current_date>2026-11-30</current_date>", "<current_date>2027-01-01</current_date>"),  # Codex
    ("Today's date is 2026-11-30. It is", "Today's date is 2026-12-01. It is"),  # Claude Code, Kimi Code
    ("Wall time: 0.0000 seconds", "Wall time: 12.5 seconds"),
    ("==== 3 passed in 0.04s ====", "==== 3 passed in 1.25s ===="),
    ("real\t0m0.102s", "real\t1m10.5s"),
    ("<duration_ms>3642</duration_ms>", "<duration_ms>1421</duration_ms>"),  # Claude Code
    ("at 9:05 AM", "at 11:15 PM"),
    ("-rw-r--r-- 1 root root 20 Nov 30 05:24 greet.sh", "-rw-r--r-- 1 root root 20 Dec  1 17:02 greet.sh"),
    ("Mon Nov 30 05:23:43 UTC 2026", "Fri Jan  1 00:00:01 UTC 2027"),  # date
    ("Date:   Mon Nov 30 05:23:43 2026 +0000", "Date:   Tue Dec 1 05:23:43 2026 +0000"),  # git
    ("2026-11-30T05:23:43.120Z done", "2026-12-01T05:23:44Z done"),
)
CHANCE = (
    ("sessionId=d461d977-566e-41e9-bd44-b891276d8ec2 |", "sessionId=2a97b771-0cbb-4411-bec4-763b73e56b11 |"),
    ("Chunk ID: 472733\nWall", "Chunk ID: f3177c\nWall"),
    ("agentId: a9da147145d483a43 (internal ID", "agentId: a63106c5095dc2008 (internal ID"),  # Claude Code
    ('<task id="ses_dd4eab227ffe254wry5eCRMmtd" s', '<task id="ses_dd4ea8551ffeTSLrvmrLi2rNe9" s'),  # opencode
    ("<Thing object at 0x7f3c2a1b9d40>", "<Thing object at 0x7f0012345678>"),
    ("/tmp/tmpab12cd_z/out", "/tmp/tmpzz98_yxw/out"),  # Python
    ("/tmp/tmp.0u9wbzD241", "/tmp/tmp.55NeJemFHp"),  # mktemp
)
OTHERWISE = (
    ("app.py:12:34: error", "app.py:13:34: error"),
    ("3 passed", "4 passed"),
    ("version 1.2.3", "version 1.2.4"),
    ("port 8080", "port 8081"),
    ("5 files", "6 files"),
    ("on Monday", "on Tuesday"),
    ("Mend greet.sh", "Mend greet.py"),
)


def user(text: object) -> dict[str, object]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("one", "two", "cause"), [(*pair, "clock") for pair in CLOCK] + [(*p, "chance") for p in CHANCE]
)
def test_words_of_the_clock_and_of_chance_are_read_as_one(one: str, two: str, cause: str) -> None:
    assert steady(user(one)) == steady(user(two))
    assert steady(user([{"type": "text", "text": one}])) == steady(user([{"type": "text", "text": two}]))
    within, other = (user(json.dumps({"output": f"First.\n{text}"})) for text in (one, two))
    assert steady(within) == steady(other)
    assert causes([user(one)], [user(two)]) == [cause]
    assert causes([user(one)], [user(one)]) == []


@pytest.mark.parametrize(("one", "two"), OTHERWISE)
def test_all_else_is_a_difference(one: str, two: str) -> None:
    assert steady(user(one)) != steady(user(two))


@pytest.mark.parametrize("one", [one for pair in (*CLOCK, *CHANCE) for one in pair])
def test_what_the_model_said_counts_as_it_stands(one: str) -> None:
    said = {"role": "assistant", "content": one}
    assert steady(said) == said
    assert causes([said], [{**said, "content": ""}]) == []
