"""``python -m bench``: measure, write results.json, renew the table in docs/benchmarks.md."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import (
    alive,
    create,
    files,
    gateway_overhead,
    harnesses,
    machine,
    output,
    records,
    run,
    table,
    transformers_engine,
)
from bench.frame import Row
from bench.kubernetes import alive as pods
from bench.kubernetes import control, live, ready
from bench.kubernetes import run as run_in_pod
from bench.place import Place

HERE = Path(__file__).parent
MEASUREMENTS: dict[str, Callable[[Place], Awaitable[list[Row]]]] = {
    "create": create.measure,
    "run": run.measure,
    "output": output.measure,
    "files": files.measure,
    "alive": alive.measure,
    "alive-1000": partial(alive.measure, count=1000, peers=()),
    "gateway": gateway_overhead.measure,
    "records": records.measure,
    "harnesses": harnesses.measure,
    "harnesses-64": harnesses.crowd,
    "transformers-engine": transformers_engine.measure,
    "kubernetes-ready": ready.measure,
    "kubernetes-run": run_in_pod.measure,
    "kubernetes-100": pods.measure,
    "kubernetes-300": partial(pods.measure, count=300),
    "kubernetes-live": live.measure,
    "kubernetes-control": control.measure,
    "kubernetes-control-5000": partial(control.measure, count=5000),
    "kubernetes-control-20000": partial(control.measure, count=20000),
}
CLUSTER = tuple(name for name in MEASUREMENTS if name.startswith("kubernetes-"))
"""On the cluster that KUBECONFIG names."""
GROUPS = {"kubernetes": CLUSTER}
BARE = ("transformers-engine", *CLUSTER)
"""Without sandboxes on this machine."""
BY_NAME_ALONE = ("alive-1000", "harnesses", "harnesses-64", *BARE)
"""Too long for every run, or in want of a cluster, of torch or of agent programs."""


async def measured(names: Sequence[str], quick: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with Place(quick, debian=not set(names) <= set(BARE)) as place:
        for name in names:
            facts = machine.facts()
            print(f"{name} ...", file=sys.stderr, flush=True)
            for row in await MEASUREMENTS[name](place):
                rows.append(row.plain(name, facts))
                print(f"  {row.name}: {rows[-1]['value']} {row.unit}", file=sys.stderr, flush=True)
    return rows


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace the rows of what was measured anew; the order is that of MEASUREMENTS."""
    renewed = {row["measurement"] for row in new}
    rows = [row for row in old if row["measurement"] not in renewed] + new
    order = list(MEASUREMENTS)
    return sorted(rows, key=lambda row: order.index(row["measurement"]))


def chosen(only: Sequence[str] | None) -> list[str]:
    """Return what to measure: all that needs no cluster, or what is named, groups taken apart."""
    if not only:
        return [name for name in MEASUREMENTS if name not in BY_NAME_ALONE]
    return list(dict.fromkeys(name for each in only for name in GROUPS.get(each, (each,))))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the measurements and what each is")
    parser.add_argument(
        "--only", action="append", choices=[*MEASUREMENTS, *GROUPS], help="this one; may be given repeatedly"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; writes no document")
    parser.add_argument("--results", type=Path, help="write the figures here, and no document")
    options = parser.parse_args()
    if options.list:
        for name, measure in MEASUREMENTS.items():
            module = sys.modules[getattr(measure, "func", measure).__module__]
            print(f"{name:26}{(module.__doc__ or '').splitlines()[0]}")
        return
    names = chosen(options.only)
    rows = asyncio.run(measured(names, options.quick))
    path = options.results or (None if options.quick else HERE / "results.json")
    if path is None:
        print(json.dumps(rows, indent=1))
        return
    if path.exists():
        rows = merged(json.loads(path.read_text()), rows)
    path.write_text(json.dumps(rows, indent=1) + "\n")
    if options.results is None:
        table.write(HERE.parent / "docs" / "benchmarks.md", rows)


if __name__ == "__main__":
    main()
