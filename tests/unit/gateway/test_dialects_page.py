"""The tables of the dialects' page are those of the code, and the code keeps them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import InvalidArgument
from orchard.gateway.dialects import DIALECTS
from orchard.gateway.dialects.base import Dialect
from orchard.gateway.dialects.wire import Field

PAGE = (Path(__file__).parents[3] / "docs" / "dialects.md").read_text()
ASK: dict[str, dict[str, Any]] = {
    "openai.chat": {"messages": [{"role": "user", "content": "hi"}]},
    "openai.responses": {"input": "hi"},
    "anthropic.messages": {"messages": [{"role": "user", "content": "hi"}]},
}
ROWS = [(dialect, name, row) for dialect in DIALECTS.values() for name, row in dialect.fields.items()]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_the_page_has_the_table_of_the_code(dialect: Dialect) -> None:
    (path,) = re.findall(rf"^\| ([^|]+) \| `/v1{dialect.path}` \| `{dialect.name}` ", PAGE, re.MULTILINE)
    section = PAGE.split(f"### {path}\n")[1].split("\n\n")[0]
    expected = [f"| `{name}` | {row.how} | {row.note} |" for name, row in dialect.fields.items()]
    assert section.splitlines()[2:] == expected


@pytest.mark.parametrize(
    ("dialect", "name", "row"),
    [one for one in ROWS if "." not in one[1] and one[2].how != "translated"],
    ids=lambda value: getattr(value, "name", value if isinstance(value, str) else ""),
)
def test_a_field_is_treated_as_its_row_says(dialect: Dialect, name: str, row: Field) -> None:
    name = "anything_new" if name == "*" else name
    body = json.dumps({**ASK[dialect.name], name: "said"}).encode()
    if row.how == "refused":
        with pytest.raises(InvalidArgument, match=re.escape(row.note)) as caught:
            dialect.parse(body, {})
        assert caught.value.field == name
    else:
        asked = dialect.parse(body, {})
        assert asked.params == ({name: "said"} if row.how == "passed" else {})
        assert asked.dropped == ((name,) if row.how == "dropped" else ())
    silent = dialect.parse(json.dumps({**ASK[dialect.name], name: None}).encode(), {})
    assert (silent.params, silent.dropped) == ({}, ())


PLACES: dict[tuple[str, str], Any] = {
    ("openai.responses", "input"): lambda kind: {"input": [{"role": "user", "content": "hi"}, {"type": kind}]},
    ("openai.responses", "content"): lambda kind: {"input": [{"role": "user", "content": [{"type": kind}]}]},
    ("openai.responses", "tools"): lambda kind: {"input": "hi", "tools": [{"type": kind, "name": "t"}]},
    ("anthropic.messages", "content"): lambda kind: {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": kind}]}]
    },
    ("anthropic.messages", "tools"): lambda kind: {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": kind, "name": "t"} if kind != "deferred" else {"name": "t", "defer_loading": True}],
    },
    ("anthropic.messages", "output_config"): lambda kind: {
        "messages": [{"role": "user", "content": "hi"}],
        "output_config": {kind: 1},
    },
}


@pytest.mark.parametrize(
    ("dialect", "name", "row"),
    [one for one in ROWS if "." in one[1] and one[2].how != "translated" and one[1] != "content.is_error"],
    ids=lambda value: getattr(value, "name", value if isinstance(value, str) else ""),
)
def test_a_part_is_treated_as_its_row_says(dialect: Dialect, name: str, row: Field) -> None:
    field, _, kind = name.partition(".")
    kind = "anything_new" if kind == "*" else kind
    body = json.dumps(PLACES[dialect.name, field](kind)).encode()
    if row.how == "refused":
        with pytest.raises(InvalidArgument, match=kind):
            dialect.parse(body, {})
        return
    asked = dialect.parse(body, {})
    assert asked.tools == []
    word = "t" if (dialect.name, field) == ("anthropic.messages", "tools") else kind
    assert asked.dropped == (f"{field}.{word}",)
