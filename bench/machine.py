"""The facts of this machine that a figure depends on."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def facts() -> dict[str, Any]:
    """Return cores, processor, kernel, memory, the load before the run, and the time."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "memory_gib": round(meminfo("MemTotal") / (1 << 30), 1),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "root": os.getuid() == 0,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def meminfo(name: str) -> int:
    """Return a line of /proc/meminfo, in bytes."""
    return _line(Path("/proc/meminfo"), name)


def private(pid: int | None) -> int:
    """Return how many bytes a process holds that no other shares; 0 where we may not look."""
    try:
        return _line(Path(f"/proc/{pid}/smaps_rollup"), "Private_Dirty") if pid else 0
    except OSError:
        return 0


def _line(path: Path, name: str) -> int:
    lines = path.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
