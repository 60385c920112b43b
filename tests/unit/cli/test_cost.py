"""``orchard cost`` as a program."""

import json
from pathlib import Path

import pytest
from tests.support.cli import orchard

PUBLISHED = str(Path(__file__).parents[3] / "examples/prices/published.toml")
USE = ["--sandboxes", "128", "--hours", "240"]


def test_the_table_is_the_published_one(tmp_path: Path) -> None:
    done = orchard("cost", *USE, "--node", "published", "--prices", PUBLISHED, env={"ORCHARD_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.decode().splitlines()[:5]]
    assert [(row[0], row[3], row[4]) for row in rows] == [
        ("orchard on-demand", "$3,362", "0.47x"),
        ("orchard spot", "$673", "0.10x"),
        ("e2b", "$7,078", "1.00x"),
        ("daytona", "$7,078", "1.00x"),
        ("modal", "$10,305", "1.46x"),
    ]
    assert "16 of published" in done.stdout.decode()


def test_options_go_before_the_prices_and_are_shown(tmp_path: Path) -> None:
    options = [
        *("--sandbox-hours", "80", "--cpu", "4", "--memory", "16GiB", "--price", "2", "--spot-price", "1"),
        *(
            "--reserved-cpu",
            "0",
            "--reserved-memory",
            "1GiB",
            "--max-pods",
            "50",
            "--fixed",
            "3",
            "--system-nodes",
            "0",
        ),
        *("--utilisation", "0.5", "--startup", "360", "--lifetime", "1", "--lost", "0.5", "--json"),
    ]
    done = orchard("cost", "--sandboxes", "8", *options, env={"ORCHARD_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["nodes"], said["sandboxes_per_node"], said["limit"], said["sandbox_hours"]) == (3, 3, "memory", 80)
    assert said["on_demand"]["total"] == pytest.approx(22 * 9)
    assert said["spot"]["total"] == pytest.approx(44 * 6)
    assert said["peers"]["e2b"]["total"] == pytest.approx(80 * (4 * 0.0504 + 16 * 0.0162))
    assert said["assumptions"]["use"]["lifetime_hours"] == 1
    assert said["assumptions"]["node"]["source"].endswith(
        "given by option: on_demand, spot, reserved_cpu, max_pods, fixed, reserved_memory_gib"
    )


def test_a_node_without_a_spot_price_says_so(tmp_path: Path) -> None:
    done = orchard("cost", *USE, env={"ORCHARD_HOME": str(tmp_path)})
    assert b"orchard spot" not in done.stdout
    assert b"give --spot-price" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sandboxes", "8"], "one of --hours and --sandbox-hours"),
        ([*USE, "--sandbox-hours", "5"], "one of --hours and --sandbox-hours"),
        ([*USE, "--node", "none"], "no price of a node 'none'"),
        ([*USE, "--memory", "much"], "memory must be"),
        ([*USE, "--cpu", "64"], "does not fit"),
        ([*USE, "--price", "0"], "on_demand: "),
        (["--sandboxes", "0", "--sandbox-hours", "5"], "sandboxes: "),
    ],
)
def test_wrong_arguments_are_one_sentence_and_exit_2(tmp_path: Path, options: list[str], said: str) -> None:
    done = orchard("cost", *options, env={"ORCHARD_HOME": str(tmp_path)})
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert b"fault of Orchard" not in done.stderr
