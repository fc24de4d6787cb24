"""Kill running jobs and show that nothing is lost: `make chaos KILLS=20`.

Jobs of 64 rows on the real model are SIGKILLed, the private server too in half of the kills, and the same command is
run again until it is done. Then the raw streams, the output file and a side file of admissions are checked against the
promises of docs/recovery.md and against an undisturbed run. Nothing of streamrunner is imported.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from chaos_kit.checker import Check, Texts, check_job, count_recomputed, texts_of
from chaos_kit.driver import FINISHED, ChaosError, JobDriver, Observation, find_runner
from chaos_kit.phases import Plan, durable_tokens, judge_kill, make_plans, share_mid_row
from chaos_kit.processes import left_behind
from chaos_kit.workload import output_of, read_lines, write_job

KILLS_PER_JOB = 5
MID_ROW_SHARE = 2 / 3


def main() -> int:
    """Run until enough kills have happened, print what they hit and what it cost; 1 if a promise is broken."""
    args = parse_arguments()
    data_dir = Path(args.data_dir or tempfile.mkdtemp(prefix="chaos-")).resolve()
    folder = data_dir / "chaos" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    try:
        broken = Chaos(args, data_dir, folder).run()
    except ChaosError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        broken = True
    if broken:
        print(f"everything is kept in {data_dir}", file=sys.stderr)
    elif not args.data_dir:
        shutil.rmtree(data_dir)
    return int(broken)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="how many kills in all (20)")
    parser.add_argument("--seed", type=int, default=1, help="decides when they come (1)")
    parser.add_argument("--max-tokens", type=int, default=32, help="output tokens of a choice (32)")
    parser.add_argument("--data-dir", help="use and keep this data dir; without it, a temporary one")
    parser.add_argument("--job-timeout", type=float, default=300, help="seconds for one job with its kills (300)")
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds for everything (1800)")
    return parser.parse_args()


class Chaos:
    """One chaos run: an undisturbed job first, then jobs that are killed until there were enough kills."""

    def __init__(self, args: argparse.Namespace, data_dir: Path, folder: Path) -> None:
        self._args = args
        self._data_dir = data_dir
        self._folder = folder
        self._rng = random.Random(args.seed)
        self._driver = JobDriver(find_runner(), data_dir, folder, self._rng, args.job_timeout)
        self._seen: list[Observation] = []
        self._checks: list[Check] = []
        self._deadline = time.monotonic() + args.time_limit

    def run(self) -> bool:
        """True if a promise was broken."""
        undisturbed, total_tokens = self._run_undisturbed()
        while (missing := self._args.kills - self._num_kills) > 0:
            if time.monotonic() > self._deadline:
                raise ChaosError(f"only {self._num_kills} kills within {self._args.time_limit:.0f} s")
            self._run_killed(min(missing, KILLS_PER_JOB), undisturbed, total_tokens)
        return self._report()

    @property
    def _num_kills(self) -> int:
        return sum(len(seen.kills) for seen in self._seen)

    def _run_undisturbed(self) -> tuple[Texts, int]:
        started = time.monotonic()
        lines, seen = self._run_job("undisturbed", [], 0)
        if seen.exits != [0]:
            raise ChaosError(f"the undisturbed run ended with exit code {seen.exits}, see the .log in {self._folder}")
        texts, total_tokens = texts_of(lines), durable_tokens(seen.streams)
        print(f"undisturbed: {len(texts)} rows, {total_tokens} tokens, {time.monotonic() - started:.0f} s", flush=True)
        return texts, total_tokens

    def _run_killed(self, num_kills: int, undisturbed: Texts, total_tokens: int) -> None:
        name = f"killed-{len(self._seen) + 1}"
        lines, seen = self._run_job(name, make_plans(num_kills, self._num_kills, self._rng), total_tokens)
        self._seen.append(seen)
        self._checks += check_job(seen.streams, lines, seen.admissions, undisturbed)
        unexpected = [f"{name}: exit code {code}" for code in seen.exits if code not in FINISHED]
        self._checks.append(Check("runs that ended by themselves, unfinished", unexpected))
        self._checks.append(Check("processes left behind after 10 s", left_behind(self._data_dir, 10)))
        self._print_kills(name, seen)

    def _run_job(self, name: str, plans: list[Plan], total_tokens: int) -> tuple[list[dict[str, Any]], Observation]:
        # Jobs of earlier runs may be in the same data dir.
        name = f"{name}-{self._folder.name}"
        job_file = write_job(self._folder, name, self._args.seed, self._args.max_tokens)
        seen = self._driver.run(job_file, plans, total_tokens)
        return read_lines(self._folder / output_of(name)), seen

    def _print_kills(self, name: str, seen: Observation) -> None:
        for kill in seen.kills:
            hit = judge_kill(kill, seen.streams)
            victim = "runner and server" if kill.server_too else "runner"
            age_s = (kill.time - kill.spawned) / 1000
            print(
                f"  {name}  {victim:17}  {hit.phase:8}  {age_s:5.1f} s after its start  "
                f"{hit.rows_done:2} rows done, {hit.rows_mid:2} in the middle",
                flush=True,
            )

    def _report(self) -> bool:
        hits = [judge_kill(kill, seen.streams) for seen in self._seen for kill in seen.kills]
        share = share_mid_row(hits)
        totals: dict[str, list[str]] = {}
        for check in self._checks:
            totals.setdefault(check.name, []).extend(check.offenders)
        print(f"\n{len(hits)} kills in {len(self._seen)} jobs; {share:.0%} between a row's first token and its end")
        for name, offenders in totals.items():
            print(f"{name:50} {len(offenders):5}" + (f"  FAILED: {'; '.join(offenders[:5])}" if offenders else ""))
        self._print_recomputed()
        if share < MID_ROW_SHARE:
            print(f"FAILED: at least {MID_ROW_SHARE:.0%} of the kills must fall in the middle of a row")
        return share < MID_ROW_SHARE or any(totals.values())

    def _print_recomputed(self) -> None:
        costs = [
            count_recomputed(seen.streams, seen.admissions, [kill.time for kill in seen.kills]) for seen in self._seen
        ]
        produced = sum(durable_tokens(seen.streams) for seen in self._seen)
        print(f"{'tokens in the results':50} {produced:5}")
        print(f"{'  of them read back in after a kill (prefill)':50} {sum(cost.prefilled for cost in costs):5}")
        print(f"{'  of them recomputed though they were in the log':50} {sum(cost.decoded_twice for cost in costs):5}")
        print(f"{'tokens recomputed, not yet in the log (estimate)':50} {sum(cost.unwritten for cost in costs):5}")


if __name__ == "__main__":
    sys.exit(main())
