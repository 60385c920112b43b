"""Arguments, stdin, environment: lines 24 to 27."""

from __future__ import annotations

import hashlib
import os
import secrets

from orchard.core.errors import CommandNotStarted, InvalidArgument
from orchard.sandbox.conformance.suite import Context, check, expect, expect_error

AWKWARD = (
    "-n", "-e x", "a\\nb", "back\\slash", "new\nline", "it's", 'say "hi"', "$HOME", "$(id)", "`id`", "é 日本", " lead",
    "trail ", "", "*", "~", "a;b|c&d", "'; touch /pwned; '", "%s%n", "\t", "#no", "!x", "{a,b}",
)  # fmt: skip


@check(24, "48 MiB of stdin arrive whole")
async def _large_stdin(ctx: Context) -> None:
    data = secrets.token_bytes(1 << 20) * 48
    async with ctx.box() as box:
        result = await box.run("sha256sum", stdin=data, timeout=60)
        expect(result.text.split()[:1] == [hashlib.sha256(data).hexdigest()], f"saw {result.text!r} {result}")
        counted = await box.run("head -c 5 | wc -c; exit 7", stdin=data, timeout=60)
        expect((counted.exit_code, counted.text.strip()) == (7, "5"), f"a reader that stops early: {counted}")


@check(24, "a 3 MB script runs")
async def _large_script(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run("# " + "x" * 3_000_000 + "\necho ran; exit 4")
        expect((result.exit_code, result.stdout) == (4, b"ran\n"), f"saw {result} {result.stdout!r}")


@check(24, "one argument of 1 MB works, or the kernel's limit is named")
async def _large_argument(ctx: Context) -> None:
    async with ctx.box() as box:
        try:
            result = await box.run(["sh", "-c", 'printf %s "${#1}"', "sh", "x" * 1_000_000])
        except CommandNotStarted as error:
            expect(error.reason == "argument_too_long", f"saw {error}")
            expect("131072" in str(error) or "128 KiB" in str(error), f"the limit is not named: {error}")
        else:
            expect(result.stdout == b"1000000", f"saw {result.stdout!r}")
        fits = await box.run(["sh", "-c", 'printf %s "${#1}"', "sh", "x" * 100_000])
        expect(fits.stdout == b"100000", f"saw {fits.stdout!r}")


@check(25, "arguments arrive as they are")
async def _arguments(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run(["sh", "-c", r'for a do printf "%s\0" "$a"; done', "sh", *AWKWARD])
        expect(result.stdout.split(b"\0")[:-1] == [word.encode() for word in AWKWARD], f"saw {result.stdout!r}")
        expect(not await box.files.exists("/pwned"), "/pwned was made")


@check(25, "environment values arrive as they are")
async def _environment(ctx: Context) -> None:
    async with ctx.box(env={"FROM_BOX": AWKWARD[17]}) as box:
        env = {f"V{number}": word for number, word in enumerate(AWKWARD)}
        script = "; ".join(f'printf "%s\\0" "$V{number}"' for number in range(len(AWKWARD)))
        result = await box.run(script + '; printf "%s\\0" "$FROM_BOX"', env=env)
        wanted = [word.encode() for word in (*AWKWARD, AWKWARD[17])]
        expect(result.stdout.split(b"\0")[:-1] == wanted, f"saw {result.stdout!r}")
        expect(not await box.files.exists("/pwned"), "/pwned was made")


@check(25, "folders arrive as they are")
async def _folders(ctx: Context) -> None:
    async with ctx.box() as box:
        for word in AWKWARD:
            if word and "/" not in word:
                path = f"/tmp/in {word}"
                await box.files.mkdir(path)
                result = await box.run(["pwd", "-P"], cwd=path)
                expect(result.stdout == path.encode() + b"\n", f"{path!r} became {result.stdout!r}")
        await expect_error(CommandNotStarted, box.run("true", cwd="/no/such"), reason="cwd_missing")
        await expect_error(CommandNotStarted, box.run("true", cwd="/tmp/'; touch /pwned; '"), reason="cwd_missing")
        expect(not await box.files.exists("/pwned"), "/pwned was made")


@check(25, "user names are names and nothing else")
async def _user_names(ctx: Context) -> None:
    async with ctx.box() as box:
        for name in ("nobody'; touch /pwned; '", "$(id)", "-u root", "no such", "-1", "99999999999"):
            await expect_error(CommandNotStarted, box.run("true", user=name), reason="user_unknown")
        expect(not await box.files.exists("/pwned"), "/pwned was made")
        await expect_error(InvalidArgument, box.run("true", env={"A=B": "x"}), field="env")
        await expect_error(InvalidArgument, box.run("nul\0byte"), field="command")


@check(26, "the daemon's environment, token and settings are invisible to commands")
async def _invisible(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run(
            "cat /proc/1/environ /proc/1/cmdline 2>/dev/null; env; ls -l /proc/1/fd 2>&1; ls -l /proc/self/fd"
        )
        text = result.text.lower()
        for word in ("token", "sha256", "secret", "bearer", "sandboxd_", "orchard_"):
            expect(word not in text, f"{word!r} is visible to a command: {text[:400]}")
        memory = await box.run("head -c 1 /proc/1/mem; cat /proc/1/maps | head -1; cat /proc/1/environ | head -c 10")
        expect(memory.stdout == b"", f"the daemon's memory is open to a command: {memory.stdout!r}")


@check(26, "the nice value of a command is a normal one")
async def _normal_priority(ctx: Context) -> None:
    async with ctx.box() as box:
        nice = (await box.run("cut -d' ' -f19 /proc/self/stat")).text.strip()
        usual = {0, os.nice(0)}  # who runs the suite, and so a local backend, under `nice` gets niced commands
        expect(int(nice) in usual, f"nice {nice}")


@check(26, "the OOM score of a command is a normal one", feature="oom-score")
async def _normal_score(ctx: Context) -> None:
    async with ctx.box() as box:
        score = (await box.run("cat /proc/self/oom_score_adj")).text.strip()
        expect(0 <= int(score) <= 200, f"oom_score_adj {score}")


@check(26, "no signal is blocked or ignored, and no descriptor is inherited")
async def _clean_start(ctx: Context) -> None:
    async with ctx.box() as box:
        result = await box.run(["cat", "/proc/self/status"])
        masks = {
            line.split()[0]: int(line.split()[1], 16)
            for line in result.text.splitlines()
            if line[:3] == "Sig" and "Q" not in line
        }
        expect(masks["SigBlk:"] == 0 and masks["SigIgn:"] == 0, f"saw {masks}")
        listing = await box.run(["ls", "/proc/self/fd"])
        expect(set(listing.text.split()) <= {"0", "1", "2", "3"}, f"descriptors {listing.text.split()}")


@check(27, "a named user gets supplementary groups, HOME and a sane PATH", tools=("useradd",))
async def _named_user(ctx: Context) -> None:
    async with ctx.box() as box:
        made = await box.run("groupadd -g 4242 extra && useradd -m -u 4321 -G extra probe")
        expect(made.ok, f"no user could be made: {made.error_text}")
        result = await box.run('id -un; id -Gn; echo "$HOME"; echo "$PATH"; echo "$USER"; pwd', user="probe")
        name, groups, home, path, user, _ = result.text.splitlines()
        expect((name, user, home) == ("probe", "probe", "/home/probe"), f"saw {result.text!r}")
        expect("extra" in groups.split(), f"groups are {groups!r}")
        expect("/usr/bin" in path.split(":") and "/bin" in path.split(":"), f"PATH is {path!r}")
        numeric = await box.run("id -u; id -g", user="4321:4242")
        expect(numeric.text.split() == ["4321", "4242"], f"numeric user: {numeric.text!r}")
