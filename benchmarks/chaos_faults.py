"""One table: kinds of faults against what they cost. `make chaos` runs it behind the kills on a real model.

Jobs on the synthetic engine (tokens by hash, 20 ms a step) are disturbed at random moments and run again by the same
command until they are done. `--long` strikes about 1,000 times. A seed decides all moments; what a kill hits still
depends on the machine's speed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from chaos_kit.driver import ChaosError, find_runner
from chaos_kit.faults import FAULTS, Fault
from chaos_kit.trial import Answers, Outcome, Trial, median_ms

_LONG_FAULTS = 1000
_HEAD = ("jobs", "faults", "rows", "lost", "doubled", "wrong", "unsound", "tokens", "recomputed", "recovery s")


def main() -> int:
    """Print the table; 1 if anything was lost, doubled, wrong or unsound."""
    args = parse_arguments()
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    chosen = [fault for fault in FAULTS if args.only in fault.name]
    undisturbed = Trial(find_runner(), _new(folder, "undisturbed"), random.Random(args.seed)).run(None)
    print(
        f"undisturbed: {len(undisturbed)} rows; seed {args.seed}\n\n{'fault':60}" + "".join(f"{h:>11}" for h in _HEAD)
    )
    broken = False
    for fault in chosen:
        jobs = args.jobs or (round(_LONG_FAULTS / len(chosen) / fault.times) if args.long else 1)
        broken |= _run_fault(fault, jobs, folder, undisturbed, args.seed)
    if broken:
        print(f"everything is kept in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return int(broken)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="decides when faults come (1)")
    parser.add_argument("--only", default="", help="faults with this in their name")
    parser.add_argument("--jobs", type=int, help="jobs for each kind of fault (1)")
    parser.add_argument("--long", action="store_true", help=f"{_LONG_FAULTS} faults in all")
    return parser.parse_args()


def _run_fault(fault: Fault, jobs: int, folder: Path, undisturbed: Answers, seed: int) -> bool:
    outcomes: list[Outcome] = []
    for number in range(jobs):
        rng = random.Random(f"{seed} {fault.name} {number}")
        trial = Trial(find_runner(), _new(folder, f"{fault.do.__name__}-{fault.workers}-{number}"), rng)
        try:
            trial.run(fault)
            outcomes.append(trial.judge(fault, undisturbed))
        except ChaosError as error:
            print(f"{fault.name:60} FAILED: {error}", flush=True)
            return True
    _print_row(fault, outcomes)
    return any(one.lost or one.doubled or one.wrong or one.unsound for one in outcomes)


def _print_row(fault: Fault, outcomes: list[Outcome]) -> None:
    unsound = [what for one in outcomes for what in one.unsound]
    sums = [sum(getattr(one, name) for one in outcomes) for name in ("faults", "rows", "lost", "doubled", "wrong")]
    rest = [sum(one.tokens for one in outcomes), sum(one.recomputed for one in outcomes)]
    recovery = median_ms([value for one in outcomes for value in one.recovery_ms])
    cells = [len(outcomes), *sums, len(unsound), *rest, recovery]
    print(f"{fault.name:60}" + "".join(f"{cell:>11}" for cell in cells), flush=True)
    for what in unsound[:5]:
        print(f"  unsound: {what}", flush=True)


def _new(folder: Path, name: str) -> Path:
    path = folder / f"{name}-{time.monotonic_ns() % 1_000_000}"
    path.mkdir(parents=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
