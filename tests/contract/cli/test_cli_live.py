"""The command line on real sandboxes: of this machine, and through a service."""

import asyncio
import json
import os
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.service.conftest import busybox, service
from tests.support.cli import Done, orchard
from tests.support.service import ORCHARD, Served

from orchard.sandbox import Orchard
from orchard.sandbox.conformance.roots import special_images
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.remote import RemoteBackend

pytestmark = pytest.mark.slow

__all__ = ["busybox", "service"]


class Cli:
    """Runs ``orchard`` under one environment."""

    def __init__(self, **env: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCHARD_")}
        self.given, self.env = env, {**kept, **env}

    def __call__(self, *argv: str, stdin: bytes = b"") -> Done:
        return orchard(*argv, env=self.given, stdin=stdin)

    def ok(self, *argv: str) -> str:
        done = self(*argv)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*ORCHARD, *argv], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def ids(self) -> list[str]:
        async def ids() -> list[str]:
            home = LocalSettings(home=Path(self.env["ORCHARD_HOME"]))
            url = self.env.get("ORCHARD_URL")
            backend = RemoteBackend(url, api_key=self.env["ORCHARD_API_KEY"]) if url else LocalBackend(home)
            async with Orchard(backend=backend) as door:
                found = [info.id for info in await door.list()]
            await backend.close()
            return found

        return asyncio.run(ids())


@pytest.fixture(params=["local", "remote"])
def cli(request: pytest.FixtureRequest, local_home: Path) -> Iterator[Cli]:
    if request.param == "local":
        yield Cli(ORCHARD_HOME=str(local_home))
        return
    running: Served = request.getfixturevalue("service")
    yield Cli(ORCHARD_URL=running.url, ORCHARD_API_KEY=running.key, ORCHARD_HOME=str(local_home))


def test_create_use_and_remove(cli: Cli, busybox: str, tmp_path: Path) -> None:
    box = cli.ok("sandbox", "create", busybox, "--label", "a=b", "--ttl", "120", "--env", "SECRET=s3cret")
    assert [item["id"] for item in json.loads(cli.ok("sandbox", "ls", "--label", "a=b", "--json"))] == [box]
    assert cli.ok("sandbox", "ls", "--label", "a=b").split("\t")[0] == box
    assert cli.ok("sandbox", "ls", "--label", "a=other") == ""
    facts = json.loads(cli.ok("sandbox", "info", box, "--json"))
    assert (facts["state"], facts["labels"]) == ("ready", {"a": "b"})
    assert "s3cret" not in json.dumps(facts)

    done = cli("sandbox", "exec", box, "--", "sh", "-c", "printf 'a\\0\\377'; printf no >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"a\0\xff", b"no", 7)
    assert cli("sandbox", "exec", box, "-i", "--", "cat", stdin=b"in\0put").stdout == b"in\0put"
    assert cli("sandbox", "exec", box, "--timeout", "0.3", "--", "sleep", "9").returncode == 124
    assert cli("sandbox", "exec", box, "--", "/nope").returncode == 127
    assert cli("sandbox", "exec", box, "--", "sh", "-c", "kill -9 $$").returncode == 137

    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "f").write_bytes(b"\0data")
    (tree / "link").symlink_to("deep/f")
    cli.ok("sandbox", "cp", str(tree), f"{box}:/tmp/there")
    cli.ok("sandbox", "cp", f"{box}:/tmp/there", str(tmp_path / "back"))
    assert (tmp_path / "back/deep/f").read_bytes() == b"\0data"
    assert (tmp_path / "back/link").readlink() == Path("deep/f")
    cli.ok("sandbox", "cp", str(tree / "deep/f"), f"{box}:/tmp/")
    cli.ok("sandbox", "cp", f"{box}:/tmp/f", str(tmp_path) + "/")
    assert (tmp_path / "f").read_bytes() == b"\0data"
    assert cli("sandbox", "cp", f"{box}:/nope", str(tmp_path)).returncode == 3

    process = cli.ok("sandbox", "exec", box, "-d", "--", "sh", "-c", "echo one; sleep 1; echo two; exit 5")
    while not (said := cli("sandbox", "logs", box, process).stdout):
        time.sleep(0.05)
    assert said.startswith(b"one\n")
    followed = cli("sandbox", "logs", box, process, "-f")
    assert (followed.stdout, followed.returncode) == (b"one\ntwo\n", 5)
    assert process in cli.ok("sandbox", "logs", box, "--list")

    assert cli.ok("sandbox", "rm", "--label", "a=b") == box
    assert box not in cli.ids()
    cli.ok("sandbox", "rm", box)
    gone = cli("sandbox", "exec", box, "--", "true")
    assert gone.returncode == 125
    assert gone.stderr.startswith(b"error: sandbox ")
    assert b"Traceback" not in gone.stderr
    assert cli("sandbox", "rm", "sb-unknown").returncode == 3


def test_run_streams_and_leaves_nothing(cli: Cli, busybox: str) -> None:
    before = cli.ids()
    script = "echo first; while ! test -e /go; do sleep 0.05; done; echo last; exit 9"
    process = cli.start("sandbox", "run", busybox, "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    [box] = set(cli.ids()) - set(before)  # the first line comes while the command still runs
    cli.ok("sandbox", "exec", box, "--", "touch", "/go")
    assert process.communicate(timeout=120)[0] == b"last\n"
    assert process.returncode == 9
    assert cli.ids() == before
    assert cli("sandbox", "run", busybox, "--", "/nope").returncode == 127
    refused = cli("sandbox", "run", "dir:/does/not/exist", "--", "true")
    assert refused.returncode == 125
    assert b"image_not_found" in refused.stderr
    assert cli.ids() == before


def test_a_signal_deletes_the_sandbox_at_once(cli: Cli, busybox: str) -> None:
    number, code = (signal.SIGINT, 130) if "ORCHARD_URL" in cli.env else (signal.SIGTERM, 143)
    before = cli.ids()
    process = cli.start("sandbox", "run", busybox, "--", "sh", "-c", "echo up; sleep 100")
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert b"Traceback" not in errors
    assert cli.ids() == before


class Terminal:
    """A terminal of ours with a program on it; what is shown is read to the words that are waited for."""

    def __init__(self, cli: Cli, *argv: str) -> None:
        self.ours, self.theirs = os.openpty()
        termios.tcsetwinsize(self.theirs, (24, 81))
        self.program = subprocess.Popen(
            [*ORCHARD, *argv], env=cli.env, stdin=self.theirs, stdout=self.theirs, stderr=self.theirs
        )

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self.ours, (rows, columns))
        self.program.send_signal(signal.SIGWINCH)  # it is nobody's foreground group, so the kernel tells nobody

    def until(self, words: bytes) -> bytes:
        seen = b""
        while words not in seen:
            assert select.select([self.ours], [], [], 120)[0], f"{words!r} is not in {seen!r}"
            seen += os.read(self.ours, 4096)
        return seen

    def cooked(self) -> bool:
        return bool(termios.tcgetattr(self.theirs)[3] & termios.ICANON)

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


SIZES = "trap 'stty size' WINCH; stty size; read first; echo got $first; while :; do read -t 1 line; done"


def test_a_command_on_this_terminal(cli: Cli, busybox: str) -> None:
    before = cli.ids()
    terminal = Terminal(cli, "sandbox", "run", "-it", busybox, "--", "sh", "-c", SIZES)
    terminal.until(b"24 81\r\n")
    assert not terminal.cooked()
    terminal.type(b"hello\r")
    terminal.until(b"got hello\r\n")
    terminal.resize(33, 99)
    terminal.until(b"33 99\r\n")
    terminal.type(b"\x03")  # Ctrl-C reaches the command, and not us
    terminal.until(b"^C")
    assert terminal.program.wait(120) == 130
    assert terminal.cooked(), "the terminal is left as it was"
    terminal.close()
    assert cli.ids() == before


def test_a_reader_that_goes_away_ends_the_run(cli: Cli, busybox: str) -> None:
    before = cli.ids()
    process = cli.start("sandbox", "run", busybox, "--", "yes")
    assert process.stdout is not None
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait(120) == 141
    assert process.stderr is not None
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert cli.ids() == before


def test_an_imported_image_has_a_name_that_sandboxes_may_use(local_home: Path, tmp_path: Path) -> None:
    cli = Cli(ORCHARD_HOME=str(local_home))
    source = special_images(tmp_path / "images")["busybox"]
    digest = cli.ok("image", "import", source, "--name", "mine")
    assert digest.startswith("sha256:")
    [shown] = [image for image in json.loads(cli.ok("image", "ls", "--json")) if image["digest"] == digest]
    assert "localhost/mine:latest" in shown["names"]
    for name in ("mine", digest):
        assert cli("sandbox", "run", name, "--", "echo", "hi").stdout == b"hi\n"
    assert cli.ok("image", "rm", "mine") == digest
    assert digest not in cli.ok("image", "ls", "--json")
    assert cli("image", "rm", "mine").returncode == 3
    assert cli("image", "import", "oci:/does/not/exist").returncode == 6


def test_the_doctor_says_whether_sandboxes_can_be_made(local_home: Path) -> None:
    cli = Cli(ORCHARD_HOME=str(local_home))
    told = json.loads(cli("doctor", "--json").stdout)
    assert told["fit"] is True, "these tests made sandboxes on this machine"
    assert {check["name"] for check in told["checks"]} >= {"sandboxd", "overlay"}
    text = cli.ok("doctor")
    assert text.splitlines()[-1] == "sandboxes can be made here"
