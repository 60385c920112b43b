"""``orchard sandbox``: create, ls, info, rm, cp; run, exec and logs stream (see ``streaming``)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from orchard.cli import console, copying, streaming, terminal
from orchard.cli.options import (
    Cpu,
    Cwd,
    Detach,
    Disk,
    Env,
    Idle,
    Json,
    Labels,
    MaxTtl,
    Memory,
    Network,
    Pids,
    Stdin,
    Timeout,
    Tools,
    Ttl,
    Tty,
    Url,
    User,
    Workdir,
    pairs,
)  # fmt: skip
from orchard.core.errors import InvalidArgument
from orchard.sandbox.commands import CommandOptions
from orchard.sandbox.orchard import Orchard, SandboxOptions
from orchard.sandbox.types import SandboxInfo

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Make, use and end sandboxes.", epilog=console.EXIT_CODES
)


def shown(info: SandboxInfo) -> dict[str, Any]:
    """Return what ``--json`` shows of a sandbox. Values of variables may be secrets: only their names are shown."""
    facts = asdict(info)
    facts["env"] = sorted(info.env)
    return facts


def options_of(**given: Any) -> SandboxOptions:
    """Return what was given, for ``Orchard.create``."""
    facts = {name: value for name, value in given.items() if value not in (None, [], ())}
    for name, option in (("env", "env"), ("labels", "label")):
        if name in facts:
            facts[name] = pairs(facts[name], option)
    return SandboxOptions(**facts)


@app.command(epilog=console.EXIT_CODES)
def create(
    image: Annotated[str, typer.Argument(help="python:3.12, oci:/path, docker-archive:/file, dir:/root, host …")],
    cpu: Cpu = None, memory: Memory = None, disk: Disk = None, pids: Pids = None, env: Env = None, user: User = None,
    workdir: Workdir = None, label: Labels = None, network: Network = None, ttl: Ttl = None, max_ttl: MaxTtl = None,
    idle: Idle = None, entrypoint: Annotated[bool, typer.Option(help="Run the image's ENTRYPOINT.")] = False,
    tool: Tools = None, json: Json = False, url: Url = None,
) -> None:  # fmt: skip
    """Make a sandbox and print its id. It ends after its ttl, or with `orchard sandbox rm`.

    Example: orchard sandbox create python:3.12 --memory 2GiB --label task=demo
    """
    options = options_of(
        cpu=cpu, memory=memory, disk=disk, pids=pids, env=env, user=user, workdir=workdir, labels=label,
        network=network, ttl=ttl, max_ttl=max_ttl, idle=idle, entrypoint=entrypoint or None, tools=tool,
    )  # fmt: skip

    async def work() -> SandboxInfo:
        async with Orchard(url) as orchard:
            with console.working(f"making a sandbox of {image}"):
                return (await orchard.create(image, **options)).info

    info = console.run_async(work())
    console.out_json(shown(info)) if json else console.out(info.id)


@app.command("ls", epilog=console.EXIT_CODES)
def list_(label: Labels = None, json: Json = False, url: Url = None) -> None:
    """List living sandboxes, oldest first.

    Example: orchard sandbox ls --label task=demo --json
    """

    async def work() -> list[SandboxInfo]:
        async with Orchard(url) as orchard:
            return await orchard.list(pairs(label or [], "label"))

    found = console.run_async(work())
    if json:
        console.out_json([shown(info) for info in found])
        return
    rows = [
        (info.id, info.state, info.image, console.age(info.created_at), console.age(info.expires_at), _labels(info))
        for info in found
    ]
    console.out_table(("ID", "STATE", "IMAGE", "AGE", "ENDS", "LABELS"), rows)


def _labels(info: SandboxInfo) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(info.labels.items()))


@app.command(epilog=console.EXIT_CODES)
def info(sandbox: Annotated[str, typer.Argument(help="ID")], json: Json = False, url: Url = None) -> None:
    """Show what is known of a sandbox, also after its end.

    Example: orchard sandbox info sb-01j9zq3k7h0000000000
    """

    async def work() -> SandboxInfo:
        async with Orchard(url) as orchard:
            return await orchard.get(sandbox)

    facts = shown(console.run_async(work()))
    if json:
        console.out_json(facts)
        return
    for name, value in facts.items():
        if value not in (None, "", {}, []):
            console.out(f"{name:<14}{value}")


@app.command(epilog=console.EXIT_CODES)
def rm(
    sandboxes: Annotated[list[str] | None, typer.Argument(help="IDs")] = None,
    label: Labels = None,
    wait: Annotated[bool, typer.Option(help="Return once nothing of them is left.")] = True,
    url: Url = None,
) -> None:
    """End sandboxes: those named, or all that carry the labels. Ending one twice is fine.

    Example: orchard sandbox rm --label task=demo
    """
    if bool(sandboxes) == bool(label):
        raise InvalidArgument("name sandboxes, or give --label", field="sandboxes")

    async def work() -> None:
        async with Orchard(url) as orchard:
            ids = sandboxes or [found.id for found in await orchard.list(pairs(label or [], "label"))]
            for sandbox_id in ids:
                await orchard.delete(sandbox_id, wait=wait)
                console.out(sandbox_id)

    console.run_async(work())


@app.command(epilog=console.RUN_CODES)
def run(
    image: Annotated[str, typer.Argument(help="as for create")],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    cpu: Cpu = None, memory: Memory = None, disk: Disk = None, pids: Pids = None, env: Env = None, user: User = None,
    workdir: Workdir = None, network: Network = None, ttl: Ttl = None, timeout: Timeout = None, stdin: Stdin = False,
    tty: Tty = False, tool: Tools = None, url: Url = None,
) -> None:  # fmt: skip
    """Run one command in a fresh sandbox, stream its output as it comes, end the sandbox, exit with its exit code.

    The sandbox is gone when this program ends, however it ends: also on Ctrl-C, SIGTERM and, within 30 s, kill -9.

    Example: orchard sandbox run python:3.12 -- python -c 'print("hello")'
    Example: orchard sandbox run -t python:3.12 -- bash
    """
    options = options_of(
        cpu=cpu, memory=memory, disk=disk, pids=pids, env=env, user=user, workdir=workdir, network=network, ttl=ttl,
        tools=tool,
    )  # fmt: skip
    streaming.exit_with(streaming.run_once(url, image, options, command, timeout, _how(tty), stdin or tty))


@app.command("exec", epilog=console.RUN_CODES)
def exec_(
    sandbox: Annotated[str, typer.Argument(help="ID")],
    command: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    cwd: Cwd = None, env: Env = None, user: User = None, timeout: Timeout = None, stdin: Stdin = False,
    tty: Tty = False, detach: Detach = False, url: Url = None,
) -> None:  # fmt: skip
    """Run a command in a sandbox, stream its output as it comes, exit with its exit code. Ctrl-C ends the command.

    Example: orchard sandbox exec sb-01j9zq3k7h0000000000 --cwd /src -- sh -c 'make && make test'
    """
    options = _how(tty, cwd=cwd, env=pairs(env or [], "env"), user=user)
    streaming.exit_with(streaming.run_in(url, sandbox, command, timeout, options, stdin=stdin or tty, detach=detach))


def _how(tty: bool, **given: Any) -> CommandOptions:
    """Return what was given, for ``Sandbox.start``; with ``tty`` a terminal of this one's size."""
    facts: dict[str, Any] = {name: value for name, value in given.items() if value}
    if tty:
        facts["pty"] = terminal.size()
    return CommandOptions(**facts)


@app.command(epilog=console.RUN_CODES)
def logs(
    sandbox: Annotated[str, typer.Argument(help="ID")],
    process: Annotated[str, typer.Argument(help="ID of a process; see --list")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on to its end; exit with its exit code.")] = False,
    list_processes: Annotated[bool, typer.Option("--list", help="List the sandbox's processes.")] = False,
    json: Json = False,
    url: Url = None,
) -> None:
    """Print what a process has written: stdout to stdout, stderr to stderr, byte for byte.

    Example: orchard sandbox logs sb-01j9zq3k7h0000000000 entrypoint -f
    """
    if bool(process) == list_processes:
        raise InvalidArgument("name a process, or give --list", field="process")
    if process:
        streaming.exit_with(streaming.logs(url, sandbox, process, follow=follow))
        return
    found = console.run_async(streaming.processes(url, sandbox))
    if json:
        console.out_json([asdict(status) for status in found])
        return
    rows = [(status.id, status.state, str(status.exit_code), " ".join(status.argv)[:80]) for status in found]
    console.out_table(("ID", "STATE", "EXIT", "COMMAND"), rows)


@app.command(epilog=console.EXIT_CODES)
def cp(
    source: Annotated[str, typer.Argument(help="PATH or ID:PATH")],
    target: Annotated[str, typer.Argument(help="PATH or ID:PATH")],
    url: Url = None,
) -> None:
    """Copy a file, or what is in a folder, to or from a sandbox. A target that is a folder, or ends in /, takes it in.

    Example: orchard sandbox cp ./src sb-01j9zq3k7h0000000000:/work/src
    """
    done = console.run_async(copying.copy(url, source, target))
    if done.skipped:
        console.say(f"left out (neither file, folder nor link): {', '.join(done.skipped[:10])}")
