"""Many workers, one job: how the throughput grows with the number of workers, and what killing one of them costs.

    python benchmarks/bench_workers.py [--rows 2304] [--workers 3] [--rounds 3]

Each worker is a process with an engine that computes nothing: 64 rows at once, 20 ms of sleep a step, a token each, so
that the figures are those of the log and of how rows are shared, not of a model that has to share two cores. Rows are
of 20 to 80 tokens. Time runs from the first claim to the end of the job, by the server's clock; workers start together.

scaling  one worker, then many, in turn; the ratio of neighbours' rows a second, best and median.
kill     many workers, one is SIGKILLed when a third of the rows have ended; its lease runs out 15 s later. Rows lost,
         ended twice or with another text than in a run without a kill, and how long the killed one's rows stood still.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from streamrunner.runner.inputs import scan_input
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.log import JobLog
from streamrunner.sinks.reader import read_log, read_payloads
from tiny_model import save_byte_tokenizer
from workers_kit.process import job_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrunner.runner.job import JobContext
    from streamrunner.sinks.wire import LogEntry

ROWS_AT_ONCE, STEP_S = 64, 0.02
MIN_TOKENS, MAX_TOKENS = 20, 80


class Run(NamedTuple):
    """One finished job: its log, its texts by row, and the time from the first claim to its end."""

    entries: list[LogEntry]
    texts: dict[int, str]
    seconds: float

    @property
    def rows_s(self) -> float:
        """Rows a second."""
        return len(self.texts) / self.seconds


class Bench:
    """A folder with rows, a tokenizer and a private server.

    tells: say at once that a killed worker is dead, as a submitter on its machine does; else its lease runs out.
    """

    def __init__(self, folder: Path, num_rows: int, step_s: float = STEP_S, *, tells: bool = False) -> None:
        self._tells = tells
        self.folder = folder
        self.step_s = step_s
        self.num_rows = num_rows
        (folder / "model").mkdir()
        save_byte_tokenizer(folder / "model")
        rows = [{"prompt": f"row {i}", "max_tokens": _length(i)} for i in range(num_rows)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = {"name": "bench", "model": "m", "input": {"path": "rows.jsonl"}, "sampling": {"ignore_eos": True}}
        (folder / "job.json").write_text(json.dumps({**spec, "engine": {"max_num_seqs": ROWS_AT_ONCE}}))
        self._num_jobs = 0

    def run(self, num_workers: int, *, kills: bool = False) -> Run:
        """Run the job with so many workers that start together; with `kills` the first of them does not live long."""
        self._num_jobs += 1
        with EmbeddedServer(self.folder / "data") as server:
            job = job_of(self.folder, f"job_bench{self._num_jobs}")
            scan = scan_input(job.spec, self.folder, self.folder)
            log = JobLog(server, job.keys, "bench")
            log.submit({"name": "bench", "rows": scan.rows}, scan.rows, [asdict(one) for one in scan.ranges])
            processes = [self._start(job, f"w{number}") for number in range(num_workers)]
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            client = server.client()
            if kills:
                _kill_at(client, job, processes[0], self.num_rows // 3)
                if self._tells:
                    log.lost("w0", "its process is gone")
            for process in processes:
                process.wait()
            return _finished(client, job)

    def _start(self, job: JobContext, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "workers_kit.process", str(self.folder), job.job_id, name, str(self.step_s)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent)}
        environment.pop("PYTHONSAFEPATH", None)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def _length(row: int) -> int:
    return MIN_TOKENS + row * 37 % (MAX_TOKENS - MIN_TOKENS + 1)


def _kill_at(client: Any, job: JobContext, process: subprocess.Popen[str], num_ended: int) -> None:
    while int(client.hget(job.keys.meta, "completed") or 0) < num_ended:
        time.sleep(0.01)
    process.kill()


def _finished(client: Any, job: JobContext) -> Run:
    entries = list(read_log(client, job.keys))
    terminals = [one for one in entries if one.type.startswith("request.")]
    texts: dict[int, str] = {}
    for first in range(0, len(terminals), 500):
        page = terminals[first : first + 500]
        payloads = read_payloads(client, job.keys, page)
        texts |= {one.data["row"]: json.loads(payloads[one.id])["choices"][0]["text"] for one in page}
    began = next(one.time for one in entries if one.type == "range.claimed")
    return Run(entries, texts, (entries[-1].time - began) / 1e3)


def scaling(bench: Bench, num_workers: int, num_rounds: int) -> list[float]:
    """Rows a second of many workers over those of one, a ratio a round; both are printed."""
    ratios: list[float] = []
    for number in range(1, num_rounds + 1):
        one, many = bench.run(1), bench.run(num_workers)
        ratios.append(many.rows_s / one.rows_s)
        shares = Counter(entry.by for entry in many.entries if entry.type == "request.completed")
        splits = _num_splits(many)
        print(
            f"round {number}: 1 worker {one.rows_s:.1f} rows/s, {num_workers} workers {many.rows_s:.1f} rows/s, "
            f"{ratios[-1]:.2f} x; rows each {sorted(shares.values())}, {splits} splits"
        )
    return ratios


def _num_splits(run: Run) -> int:
    lost = {entry.data["worker"] for entry in run.entries if entry.type == "worker.lost"}
    claims = [entry for entry in run.entries if entry.type == "range.claimed"]
    return sum(one.data["from"] is not None and one.data["from"] not in lost for one in claims)


def kill(bench: Bench, num_workers: int, expected: dict[int, str]) -> list[str]:
    """Findings of a run in which one worker is killed; figures are printed."""
    run = bench.run(num_workers, kills=True)
    ended = Counter(entry.data["row"] for entry in run.entries if entry.type.startswith("request."))
    taken = [one for one in run.entries if one.type == "range.claimed" and one.data["from"] == "w0"]
    last = max(one.time for one in run.entries if one.by == "w0")
    wrong = [row for row, text in expected.items() if run.texts.get(row) != text]
    stood_s = (max(one.time for one in taken) - last) / 1e3 if taken else 0.0
    print(
        f"kill: {len(expected) - len(ended)} rows lost, {sum(n > 1 for n in ended.values())} ended twice, "
        f"{len(wrong)} with another text; {len(taken)} ranges taken over, the last after {stood_s:.1f} s; "
        f"{run.rows_s:.1f} rows/s in all"
    )
    return [*(["rows lost"] if len(ended) < len(expected) else []), *(["other texts"] if wrong else [])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; 1 if a killed worker cost a row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2304)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sr-workers-") as folder:
        bench = Bench(Path(folder), options.rows)
        ratios = scaling(bench, options.workers, options.rounds)
        median = statistics.median(ratios)
        print(
            f"scaling: {median:.2f} x (median of {len(ratios)}), {max(ratios):.2f} x (best), {options.workers} workers"
        )
        findings = kill(bench, options.workers, bench.run(options.workers).texts)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
