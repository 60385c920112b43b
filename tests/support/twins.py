"""One broken twin for each line of the behaviours that has a check."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support import twins_control as control
from tests.support.twin import Ask, Twin, command, exit_facts, is_exit

from orchard.core.ids import new_id
from orchard.sandbox import tree
from orchard.sandbox.frames import Frame, Kind
from orchard.sandbox.tree import Transfer

FILL = """
import subprocess, time
while True:
    try:
        subprocess.Popen(["sleep", "61"])
    except OSError:
        time.sleep(0.001)
"""
"""Takes every slot that becomes free."""
ENDLESS = "while :; do sleep 9; done"
ENDS_IN_A_FORK = "import os; os.register_at_fork(after_in_child=lambda: os._exit(9))"


def longer(spec: dict[str, Any]) -> None:
    if "echo hello" in command(spec) and spec.get("timeout_s") == 2:
        spec["timeout_s"] += 1


def survivor(when: str, *argv: str) -> Any:
    """After a command with ``when`` in it, other processes live on that its end does not reach."""

    async def started(spec: dict[str, Any], ask: Ask) -> None:
        if when in command(spec):
            with suppress(AssertionError):  # no slot is left: one twin is about just that
                await ask("POST", "/v1/processes", {"id": new_id("op"), "argv": list(argv)})

    return started


def becomes(when: str, script: str) -> Any:
    """A command that is or begins with ``when`` becomes another one."""

    def start(spec: dict[str, Any]) -> None:
        if command(spec).startswith(when):
            spec.pop("argv", None)
            spec["shell"] = script

    return start


def given(when: str, **facts: Any) -> Any:
    """A command that begins with ``when`` is started with other facts."""

    def start(spec: dict[str, Any]) -> None:
        if command(spec).startswith(when):
            spec.update(facts)

    return start


def on_exit(when: str, **facts: Any) -> Any:
    """The exit of a command that begins with ``when`` has other facts."""

    def frame(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
        yield exit_facts(one, **facts) if is_exit(one) and command(spec).startswith(when) else one

    return frame


def exit_is_timeout(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
    late = is_exit(one) and json.loads(one.payload)["exit_code"] == 124
    yield exit_facts(one, timed_out=True) if late else one


def wrong_at_offset(method: str, target: str, sandbox_id: str) -> str | None:
    """A stream that is asked for from an offset begins a byte later."""
    if "/stream?" in target and "mode=full" in target and "stdout=" in target and "stdout=0" not in target:
        offset = int(target.partition("stdout=")[2].partition("&")[0])
        return target.replace(f"stdout={offset}", f"stdout={offset + 1}")
    return None


def new_operation(spec: dict[str, Any]) -> None:
    if spec["id"] == "op-same":
        spec["id"] = new_id("op")


def changed_bytes(when: str, old: bytes, new: bytes) -> Any:
    def frame(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
        hit = one.kind == Kind.STDOUT and when in command(spec)
        yield replace(one, payload=one.payload.replace(old, new)) if hit else one

    return frame


_count = itertools.count()


def loses_output(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
    """Now and then the exit overtakes the output, which is then lost."""
    if one.kind != Kind.STDOUT or command(spec) != "echo x; exit 3" or next(_count) % 97:
        yield one


def exit_for_a_break(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
    """A stream that breaks off looks like a normal end."""
    yield one
    if one.kind == Kind.STATUS and command(spec).startswith("seq 1 200000; exit"):
        facts = json.loads(one.payload) | {"state": "exited", "exit_code": 0}
        yield Frame(Kind.EXIT, 0, json.dumps(facts).encode())


def half_of_it(spec: dict[str, Any], one: Frame) -> Iterable[Frame]:
    if one.kind == Kind.STDOUT and command(spec).startswith("head -c 100000000"):
        one = replace(one, payload=one.payload[: len(one.payload) // 2])
    yield one


def split_arguments(spec: dict[str, Any]) -> None:
    argv = spec.get("argv", [])
    if len(argv) > 4 and "for a do" in argv[2]:
        spec["argv"] = argv[:4] + " ".join(argv[4:]).split(" ")


def at_once(most: int, when: str) -> Any:
    """Of the commands with ``when`` in them only so many run at once."""
    gate = asyncio.Semaphore(most)
    return lambda spec: gate if when in command(spec) else None


def other_byte(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    changed = method == "GET" and "path=/tmp/sized" in target and body
    return status, b"\0" + body[1:] if changed else body


def missing_folder(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    if status >= 400 and body and json.loads(body).get("errno") == "EISDIR":
        return 404, json.dumps(json.loads(body) | {"errno": "ENOENT"}).encode()
    return status, body


def host_file(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    return status, b"of the host" if "path=/tmp/leak/hostname" in target else body


def entry_lost(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    if "path=/tmp/l&" in target or target.endswith("path=/tmp/l"):
        lines = body.splitlines(keepends=True)
        return status, b"".join(line for line in lines if b"broken" not in line)
    return status, body


def no_shell_is_missing(method: str, target: str, status: int, body: bytes) -> tuple[int, bytes]:
    if status == 422 and json.loads(body).get("reason") == "no_shell":
        return status, json.dumps(json.loads(body) | {"reason": "program_not_found"}).encode()
    return status, body


_extract = tree.extract


async def extract_anything(response: Any, local: Path) -> Transfer:
    """As a careless client would: every member where its name says. Sound for what is not hostile."""
    if not local.name.startswith("target-"):
        return await _extract(response, local)
    archive = io.BytesIO(await response.read())
    await asyncio.to_thread(local.mkdir, parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            with suppress(OSError, tarfile.TarError):
                tar.extract(member, local, filter="fully_trusted")
    return Transfer(1, ())


def told(spec: dict[str, Any]) -> None:
    logging.getLogger("twin").info("starting %s", spec)


def unquoted(method: str, target: str, sandbox_id: str) -> str | int | None:
    """Decodes names twice."""
    return target if method == "GET" and "path=/tmp/names/%2F" in target else None


def one_write_refused(method: str, target: str, sandbox_id: str) -> str | int | None:
    return 409 if method == "PUT" and "path=/tmp/a/b/c/7&" in target else None


async def without_hidden(spec: dict[str, Any], ask: Ask) -> None:
    if command(spec).startswith("cd /tmp/up && ls"):
        await ask("POST", "/v1/files/remove?path=/tmp/up/.hidden", None)


def as_root(method: str, target: str, sandbox_id: str) -> str | None:
    return f"{target}&user=0" if method == "PUT" and "path=mine/file" in target else None


TWINS = [
    Twin(1, "a time-out comes a second late", start=longer),
    Twin(2, "a background child outlives its command", started=survivor("sleep 71 &", "sleep", "71")),
    Twin(3, "a child that fled lives on", started=survivor("setsid sleep 301", "sleep", "301")),
    Twin(4, "a background child holds the answer", start=becomes("sleep 300 & echo", "sleep 9 & echo started; wait")),
    Twin(5, "a time-out leaves processes", started=survivor("sleep 61", "python3", "-c", FILL)),
    Twin(6, "stdin stays open", start=given("cat", stdin="open")),
    Twin(7, "a time-out is rounded to whole seconds", start=given("sleep 20", timeout_s=3.0)),
    Twin(8, "exit code 124 means a time-out", frame=exit_is_timeout),
    Twin(9, "an offset is off by one", request=wrong_at_offset),
    Twin(10, "an aborted request leaves something", started=survivor("sleep 9", "sh", "-c", ENDLESS)),
    Twin(11, "the end of a sandbox is told late", wrap=control.Slow),
    Twin(12, "a background process gets a hidden time-out", start=given("sleep 304", timeout_s=0.1)),
    Twin(13, "git log waits on a pager", start=becomes("git log", "git log; sleep 50")),
    Twin(15, "commands stand in a queue", gate=at_once(1, "/tmp/meet")),
    Twin(16, "an operation id is forgotten", start=new_operation),
    Twin(17, "the count of bytes is wrong", frame=on_exit("seq 1 3000000", stdout_bytes=22888895)),
    Twin(18, "a carriage return becomes a line feed", frame=changed_bytes(r"a\rb\rc", b"\r", b"\n")),
    Twin(19, "a character is split", frame=changed_bytes("-lt 4000", b"\xc3", b"\xe2")),
    Twin(20, "an exit overtakes the output", frame=loses_output),
    Twin(21, "a broken stream is exit 0", frame=exit_for_a_break),
    Twin(22, "a large stream has holes", frame=half_of_it),
    Twin(23, "stderr goes to stdout", start=given("echo out; echo err", merge=True)),
    Twin(24, "a long script is cut", start=becomes("# xxx", "true")),
    Twin(25, "arguments are joined and split again", start=split_arguments),
    Twin(26, "a token is in the environment", start=given("cat /proc/1/environ", env={"ORCHARD_TOKEN": "x"})),
    Twin(27, "HOME is not the user's", start=given("id -un; id -Gn", env={"HOME": "/"})),
    Twin(28, "a byte of a file changes", answer=other_byte, answers=("/v1/files",)),
    Twin(29, "one of many writes is refused", request=one_write_refused),
    Twin(30, "a name is decoded twice", request=unquoted),
    Twin(31, "dot files stay behind", started=without_hidden),
    Twin(32, "a folder is told as missing", answer=missing_folder, answers=("/v1/files",)),
    Twin(33, "an archive is trusted", patch=("orchard.sandbox.tree.extract", extract_anything)),
    Twin(34, "a link leads to the host", answer=host_file, answers=("/v1/files",)),
    Twin(35, "a broken link is not listed", answer=entry_lost, answers=("/v1/files/list",)),
    Twin(36, "written files belong to root", request=as_root),
    Twin(37, "the same key makes a second sandbox", wrap=control.NewKeys),
    Twin(38, "a ttl is rounded up", wrap=control.LongerTtl),
    Twin(39, "a running command is no activity", start=given("sleep 14; echo done", timeout_s=1.5)),
    Twin(40, "a renewal elsewhere is lost", request=control.renewal_lost, wrap=control.Beating),
    Twin(41, "a sandbox outlives its killed client", wrap=control.Immortal),
    Twin(42, "deleting twice is an error", wrap=control.DeleteOnce),
    Twin(43, "a failed create leaves a sandbox", wrap=control.Litter),
    Twin(44, "a dead sandbox is replaced by a blank one", wrap=control.Restarts),
    Twin(45, "death by memory is not told", frame=on_exit("python3 -c x = []", oom_killed=False)),
    Twin(46, "all CPUs of the host are shown", start=becomes("nproc", "echo 64; echo 64")),
    Twin(48, "a private image is told as missing", wrap=control.OtherReason),
    Twin(49, "pulling is not shown", wrap=control.NoPulling),
    Twin(50, "packets leave", start=becomes("python3 -c \nimport socket, time", "echo OUT tcp; echo lookup 0.1")),
    Twin(54, "a tunnel is refused", request=lambda method, target, sandbox_id: 404 if "/ports/" in target else None),
    Twin(55, "a missing shell is not named", answer=no_shell_is_missing, answers=("/v1/processes",)),
    Twin(56, "ENV of the image is lost", start=given("id -un; pwd", env={"IMAGE_SAYS": "other"})),
    Twin(57, "one create of a hundred fails", wrap=control.FiftiethFails),
    Twin(58, "a client does not outlive a fork", before=ENDS_IN_A_FORK),
    Twin(59, "environment values are logged", start=told),
    Twin(60, "two hundred commands run at once", gate=at_once(200, "</tmp/go")),
]  # fmt: skip
