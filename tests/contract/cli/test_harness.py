"""``orchard harness`` on this machine: a whole rollout in a sealed sandbox, and what its verdict rests on."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import Done, orchard

from orchard.harness.registry import HARNESSES
from orchard.sandbox.conformance.roots import special_images

pytestmark = pytest.mark.root
GIVES_UP = ["sh", "-c", "exit 3"]
SAYS_SO = ["sh", "-c", "echo done"]
ASKS_ONCE = """\
body='{"model": "'$OPENAI_MODEL'", "messages": [{"role": "user", "content": "'"QUESTION"'"}]}'
exec wget -q -O - --header 'Content-Type: application/json' --header "Authorization: Bearer $OPENAI_API_KEY" \
    --post-data "$body" "$OPENAI_BASE_URL/chat/completions"
"""
"""An agent of busybox alone, which asks the model once."""


def check(home: Path, *argv: str) -> Done:
    return orchard("harness", "check", *argv, env={"ORCHARD_HOME": str(home), "ORCHARD_CACHE": str(home / "cache")})


@pytest.fixture(scope="module")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> str:
    return special_images(tmp_path_factory.mktemp("images"))["busybox"]


def test_the_list_names_what_each_needs(tmp_path: Path) -> None:
    told = json.loads(orchard("harness", "ls", "--json", env={"ORCHARD_HOME": str(tmp_path)}).stdout)
    assert [one["name"] for one in told] == sorted(HARNESSES)
    assert {one["placement"] for one in told} == {"beside", "inside"}
    assert all(one["version"] for one in told)


def test_a_harness_that_works_has_a_complete_record(local_home: Path, busybox: str, tmp_path: Path) -> None:
    done = check(local_home, "bash-loop", "--image", busybox, "--run", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr.decode()
    [report] = json.loads(done.stdout)
    parts = {line["name"]: (line["verdict"], line["detail"]) for line in report["lines"]}
    assert parts["calls"] == ("complete", "4 answered (openai.chat)")
    assert parts["conversations"] == ("complete", "one, append-only")
    assert parts["tools"] == ("complete", "4 calls, 3 results")
    assert parts["patch"] == ("complete", "7 lines, graded 1 in a fresh sandbox")
    assert report["ok"]
    assert report["forks"] == {}
    shown = orchard("trajectories", "ls", "--store", str(tmp_path / "run"), "--json", env={})
    assert [row["reward"] for row in json.loads(shown.stdout)] == [1.0]
    assert report["options"] == {}
    text = check(local_home, "bash-loop", "--image", busybox, "--option", 'sampling={"seed": 1}')
    assert b"bash-loop\tpatch\tcomplete\t" in text.stdout
    told = ["bash-loop was checked with sampling", "bash-loop 1 works here: its record is complete"]
    assert text.stderr.decode().splitlines()[-2:] == told


def test_a_second_run_tells_at_which_turns_a_harness_is_the_same(
    local_home: Path, busybox: str, tmp_path: Path
) -> None:
    run = str(tmp_path / "run")
    done = check(local_home, "bash-loop", "--image", busybox, "--run", run, "--replay", "--json")
    assert done.returncode == 0, done.stderr.decode()
    [report] = json.loads(done.stdout)
    whole = {"calls": 4, "same": 4, "difference": None}
    assert report["replay"] == {"exact": whole, "pinned": whole, "but_for": []}
    assert report["lines"][-1] == {"name": "replay", "verdict": "complete", "detail": "4 of 4 prefixes came again"}
    shown = json.loads(orchard("trajectories", "ls", "--store", run, "--json", env={}).stdout)
    assert [row["reward"] for row in shown] == [1.0, 1.0]


def test_what_is_not_the_same_in_a_second_run_is_told(local_home: Path, busybox: str) -> None:
    def replayed(question: str) -> tuple[dict[str, Any], str, str]:
        option = f"argv={json.dumps(['sh', '-c', ASKS_ONCE.replace('QUESTION', question)])}"
        done = check(local_home, "command", "--image", busybox, "--option", option, "--replay", "--json")
        [report] = json.loads(done.stdout)
        assert list(report["options"]) == ["argv"]
        line = report["lines"][-1]
        return report["replay"], line["verdict"], line["detail"]

    found, verdict, told = replayed("I am $(tr -dc g-z < /dev/urandom | head -c 20)")
    assert (found["pinned"]["calls"], found["pinned"]["same"], verdict) == (1, 0, "in part")
    assert told.startswith("0 of 1 prefixes came again; first, message 0 (user): content differs"), told
    found, verdict, told = replayed("I am $(cat /proc/sys/kernel/random/uuid)")
    assert (found["exact"]["same"], found["pinned"]["same"], verdict) == (0, 1, "complete")
    assert found["but_for"] == ["chance"]
    assert told.startswith("1 of 1 prefixes came again, 0 of them word for word; first, message 0"), told


def test_what_a_harness_does_not_do_is_missing(local_home: Path, busybox: str) -> None:
    def verdicts(argv: list[str]) -> dict[str, Any]:
        done = check(local_home, "command", "--image", busybox, "--option", f"argv={json.dumps(argv)}", "--json")
        assert done.returncode == 1
        [report] = json.loads(done.stdout)
        assert not report["ok"]
        return {line["name"]: line for line in report["lines"]}

    idle = verdicts(SAYS_SO)
    assert [idle[part]["verdict"] for part in ("end", "calls", "tools", "patch")] == ["complete", *["missing"] * 3]
    assert idle["patch"]["detail"] == "empty, graded 0 in a fresh sandbox"
    broken = verdicts(GIVES_UP)
    assert broken["end"]["verdict"] == "missing"
    assert "exit code 3" in broken["end"]["detail"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # the harness is installed
def test_without_its_image_nothing_is_said_of_what_the_harness_writes(local_home: Path, tmp_path: Path) -> None:
    done = check(local_home, "mini-swe-agent", "--image", f"oci:{tmp_path}/none", "--json")
    [report] = json.loads(done.stdout)
    parts = {line["name"]: (line["verdict"], line["detail"]) for line in report["lines"]}
    assert parts["end"][0] == "missing"
    assert parts["samples"] == parts["native trajectory"] == ("not applicable", "no call was answered")
    assert done.returncode == 1


def test_wrong_names_and_options_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = check(tmp_path, "no-such-harness")
    assert done.returncode == 2
    assert b"bash-loop" in done.stderr
    assert check(tmp_path, "bash-loop", "--option", "nope=1").returncode == 2
