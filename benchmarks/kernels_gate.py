"""Compile every Triton kernel for A100, H100 and B200 without a GPU: `make kernels`.

Each production call of gate_kit/calls.py is made on meta tensors, its launches are caught, and Triton compiles them as
it would on the card: same constants, same alignment. Fails on a kernel that does not compile, spills registers or asks
for more shared memory than the target has.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gate_kit.calls import calls
from gate_kit.compile import LIMITS, Usage, compile_unit
from gate_kit.units import Unit, Work, units_of

_MAX_TUPLES = 150


class Result(NamedTuple):
    """A unit's usage, beside what it was compiled for."""

    work: Work
    usage: Usage


def main() -> int:
    """Compile, print the table and what is wrong; 1 if anything is."""
    args = parse_arguments()
    began = time.monotonic()
    chosen = [call for call in calls() if args.only in call.name]
    if not chosen:
        print(f"no tuple's name contains {args.only!r}", file=sys.stderr)
        return 2
    work = units_of(chosen, args.targets)
    with tempfile.TemporaryDirectory(prefix="kernels-gate-") as cache:
        # An empty cache of its own: what is printed was compiled now.
        os.environ.update(TRITON_CACHE_DIR=cache, TRITON_DUMP_PTXAS_LOG="1")
        results = compile_all(work, args.jobs)
    print_table(results)
    sys.stdout.flush()
    problems = [result for result in results if result.usage.problem]
    for result in problems:
        unit = result.work.unit
        print(
            f"sm_{unit.capability} {result.work.calls[0]} ({unit.kernel[1]}): {result.usage.problem}", file=sys.stderr
        )
    if args.json:
        Path(args.json).write_text(json.dumps([as_json(result) for result in results], indent=1))
    spilled = sum(result.usage.spill > 0 for result in results)
    print(
        f"{len(chosen)} tuples (limit {_MAX_TUPLES}), {len(results)} kernels compiled for "
        f"{', '.join(f'sm_{target}' for target in args.targets)} in {time.monotonic() - began:.0f} s: "
        f"{len(problems)} problems, {spilled} with spills"
    )
    return 1 if problems or len(chosen) > _MAX_TUPLES else 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, nargs="+", choices=sorted(LIMITS), default=sorted(LIMITS))
    parser.add_argument("--only", default="", metavar="TEXT", help="tuples whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compiling processes")
    parser.add_argument("--json", metavar="FILE", help="write all figures there too")
    return parser.parse_args()


def compile_all(work: list[Work], jobs: int) -> list[Result]:
    """Compile in processes of their own; Triton holds the interpreter lock while it compiles."""
    units: list[Unit] = [one.unit for one in work]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(units)), mp_context=context) as pool:
        usages = pool.map(compile_unit, units)
        return [Result(*pair) for pair in zip(work, usages, strict=True)]


def print_table(results: list[Result]) -> None:
    """A line for each kernel and tuple: registers, shared KiB, spilled bytes and occupancy, target by target."""
    targets = sorted({result.work.unit.capability for result in results})
    rows: dict[tuple[str, str], dict[int, Result]] = {}
    for result in results:
        for name in result.work.calls:
            rows.setdefault((name, result.work.unit.kernel[1]), {})[result.work.unit.capability] = result
    width = max(len(name) + len(kernel) for name, kernel in rows) + 2
    print(f"{'':{width}}" + "".join(f"| {f'sm_{target}  regs  KiB spill  occ':30}" for target in targets))
    for (name, kernel), cells in rows.items():
        label = name if name.split()[0] == kernel else f"{name}: {kernel}"
        print(f"{label:{width}}" + "".join(f"| {cell(cells.get(target)):30}" for target in targets))


def cell(result: Result | None) -> str:
    """One target of one line."""
    if result is None:
        return ""
    usage, unit = result.usage, result.work.unit
    if usage.problem.startswith("does not"):
        return "does not compile"
    memory = f"{usage.shared / 1024:>4.0f} {usage.spill:>5}"
    return f"{unit.num_warps:>2} warps {usage.registers:>4} {memory} {usage.occupancy:>4.0%}"


def as_json(result: Result) -> dict[str, object]:
    """All there is to know about one compilation."""
    unit = result.work.unit
    return {
        "kernel": unit.kernel[1],
        "capability": unit.capability,
        "num_warps": unit.num_warps,
        "num_stages": unit.num_stages,
        "constants": {name: str(value) for name, value in unit.constants},
        "calls": result.work.calls,
        **result.usage._asdict(),
    }


if __name__ == "__main__":
    sys.exit(main())
