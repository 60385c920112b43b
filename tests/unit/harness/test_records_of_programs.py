"""What drivers read of programs in a sandbox: databases and settings, whatever is in them."""

import sqlite3
import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchard.harness.database import rows
from orchard.harness.native import ToolLog, merged
from orchard.harness.toml import document

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUE = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), VALUE, max_size=4))
def test_settings_written_as_toml_are_read_back_as_they_were(settings: dict[str, object]) -> None:
    assert tomllib.loads(document(settings)) == settings


def test_a_key_with_dots_is_a_path() -> None:
    assert tomllib.loads(document({"a.b": 1, "a.c": "x"})) == {"a": {"b": 1, "c": "x"}}


def test_a_database_is_read_with_its_log_and_a_broken_one_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE told (id INTEGER, said TEXT)")
    database.execute("INSERT INTO told VALUES (1, CAST(X'68C3' AS TEXT))")
    database.commit()
    copy = tmp_path / "copy.db"
    for end in ("", "-wal"):
        Path(f"{copy}{end}").write_bytes(Path(f"{path}{end}").read_bytes())
    assert list(rows(copy, "SELECT * FROM told")) == [{"id": 1, "said": "h\ufffd"}]
    assert list(rows(copy, "SELECT * FROM missing")) == []
    path.with_name("no.db").write_bytes(b"no database at all" * 99)
    assert list(rows(path.with_name("no.db"), "SELECT * FROM told")) == []
    database.close()


def test_a_view_that_never_ends_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as database:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 0"
        database.execute(f"CREATE VIEW told AS {endless}")
    assert list(rows(path, "SELECT * FROM told")) == []


def test_calls_that_the_model_gave_one_id_stay_apart() -> None:
    log = ToolLog()
    for turn in ("a", "b"):
        log.asked("call_0", "bash", {"turn": turn}, key=turn)
    log.answered("b", "second")
    log.answered("a", "first")
    assert [(one.arguments["turn"], one.output, one.tool_call_id) for one in log.events] == [
        ("a", "first", "call_0"),
        ("b", "second", "call_0"),
    ]


def test_settings_are_merged_object_by_object() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "d": {"e": 5}}) == {
        "a": {"b": 1, "c": 4},
        "d": {"e": 5},
    }
