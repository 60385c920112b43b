"""Importing any room does nothing observable, and the command line starts quickly."""

import pkgutil
import subprocess
import sys
import time
from pathlib import Path

import orchard

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    ["orchard", *(info.name for info in pkgutil.walk_packages(orchard.__path__, "orchard.") if "__main__" not in info.name)]
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
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


def test_help_starts_in_under_a_second() -> None:
    command = [str(Path(sys.executable).parent / "orchard"), "--help"]
    best = 9.0
    for _ in range(5):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        best = min(best, time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    assert "sandbox" in done.stdout
    assert best < 1.0


def test_core_imports_are_light() -> None:
    code = "import orchard, sys; print(*sorted(m for m in sys.modules if m.split('.')[0] in {'aiohttp','fastapi','pydantic','openai','typer','rich'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
