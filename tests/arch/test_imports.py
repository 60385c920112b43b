"""Importing any room does nothing observable, and the command line starts quickly."""

import pkgutil
import resource
import subprocess
import sys
from pathlib import Path

import orchard

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    [
        "orchard",
        *(info.name for info in pkgutil.walk_packages(orchard.__path__, "orchard.") if "__main__" not in info.name),
    ]
)
IMPORT_ALL = """
import importlib, socket, sys, threading, builtins, os
def denied(*args, **kwargs):
    raise SystemExit(f"importing {current} reached out: {args!r}")
socket.socket.connect = denied
socket.getaddrinfo = denied
real_open = builtins.open
def guarded(file, mode="r", *args, **kwargs):
    if any(letter in mode for letter in "wax+") and str(file) != os.devnull:
        denied(file, mode)
    return real_open(file, mode, *args, **kwargs)
builtins.open = guarded
os.mkdir = os.makedirs = denied
for current in sys.argv[1:]:
    importlib.import_module(current)
if len(threading.enumerate()) > 1:
    raise SystemExit(f"importing started threads: {threading.enumerate()}")
heavy = {"torch", "transformers", "kr8s", "playwright"} & set(sys.modules)
if heavy:
    raise SystemExit(f"importing pulled in {heavy}")
"""


def test_importing_every_module_does_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-B", "-c", IMPORT_ALL, *MODULES],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


def test_help_takes_under_a_second_of_processor_time() -> None:
    command = [str(Path(sys.executable).parent / "orchard"), "--help"]
    best, shown = 9.0, ""
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0, done.stderr
        shown = done.stdout
    assert "sandbox" in shown
    assert best < 1.0


def test_core_imports_are_light() -> None:
    heavy = {"aiohttp", "fastapi", "openai", "pydantic", "rich", "typer"}
    code = f"import orchard, sys; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
