"""The page: whole, self-contained, and deaf to what an agent wrote."""

import base64
import gzip
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from orchard.evals.page import write_page
from orchard.evals.report import build_report
from orchard.trajectories import RolloutRecord, Store


class Seen(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "script":
            self.scripts.append(dict(attrs))
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]


@pytest.fixture
def page(rich_store: Store, tmp_path: Path) -> str:
    records = [rich_store.rollout(row.id) for row in rich_store.rollouts()]
    write_page(tmp_path / "report.html", build_report("run-1", "A <title>", records), rich_store)
    return (tmp_path / "report.html").read_text()


def test_hostile_text_starts_no_script_and_no_request(page: str) -> None:
    seen = Seen()
    seen.feed(page)
    assert "img" not in seen.tags
    assert seen.handlers == []
    assert all(address.startswith("#ro-") for address in seen.addresses)
    assert [facts for facts in seen.scripts if facts.get("type") != "application/octet-stream"] == [{}]


def test_only_its_own_script_is_allowed_by_its_policy(page: str) -> None:
    import hashlib

    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[-1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert "innerHTML" not in script[-1]


def test_every_rollout_is_there_with_calls_commands_patch_and_tests(page: str, hostile: str) -> None:
    packed = re.findall(r'id="data-(.*?)">(.*?)</script>', page)
    assert len(packed) == 9
    facts = json.loads(gzip.decompress(base64.b64decode(packed[0][1])))
    assert [call["commands"][0]["exit"] for call in facts["calls"]] == [0, 1, 2]
    assert facts["calls"][1]["commands"][0]["command"] == f"echo '{hostile}'"
    assert facts["calls"][0]["prompt"][1]["text"].endswith(hostile)
    assert facts["commands"] == []
    assert len(facts["rewards"][0]["evidence"]["tests"]) == 8
    assert hostile in facts["patch"]


def test_a_refused_task_and_a_surprise_are_told_at_the_top(page: str) -> None:
    head = page[: page.index("<h2>Results")]
    assert head.count("Unexpected:") == 1, "the rollout that could not be judged did not do what its script says"
    assert "Task refused" not in head
    assert "right-pad-2.0.0, bash-loop, script:hardcode #0" in head


def test_one_is_told_as_one(make_record: Callable[..., RolloutRecord], tmp_path: Path) -> None:
    record = make_record(turns=1, sessions=[])
    with Store(tmp_path / "one") as store:
        store.append_now(record)
        write_page(tmp_path / "one.html", build_report("run-1", "One", [record]), store)
    text = (tmp_path / "one.html").read_text()
    assert "1 task · 1 rollout · 1 judged" in text
    assert "submitted, 1 turn, " in text
    assert not re.search(r"\b1 (turns|tasks|rollouts)\b", text)


def test_the_names_over_many_columns_break(make_record: Callable[..., RolloutRecord], tmp_path: Path) -> None:
    records = [make_record(policy=f"script:very_long.name-{n}", sessions=[]) for n in range(10)]
    with Store(tmp_path / "many") as store:
        for record in records:
            store.append_now(record)
        write_page(tmp_path / "many.html", build_report("run-1", "Many", records), store)
    head = (tmp_path / "many.html").read_text().partition('<table class="matrix">')[2].partition("</thead>")[0]
    assert head.count("<th><span>script:<wbr>very_<wbr>long.<wbr>name-") == 10
