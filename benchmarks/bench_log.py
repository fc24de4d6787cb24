"""What the log costs: `make bench-log`.

    python benchmarks/bench_log.py [--only cost|ceiling] [--blocks 40] [--cache-dir DIR]

cost     one worker on the quickstart's model and the private server, which syncs every write. While it runs, what it
         appends is switched at random every few steps: nothing (text is made all the same), results only, or every
         step. Time of a step in one mode over that of its neighbours in another: medians over blocks, with a bootstrap
         interval. Whole runs in turn would drift by more than the difference.
ceiling  `runner submit` on the synthetic engine without a step time, 256 rows at once: tokens a second with every
         step in the log and text made of all of them, processor time and bytes a token on the server and on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# Python's safe path mode leaves a script's own folder out.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from log_kit.ceiling import measure_ceiling
from log_kit.switch import MODES, SwitchedWriter, TimedCore
from streamrunner.engine.convert import default_cache_dir, resolve_model
from streamrunner.engine.core import EngineCore
from streamrunner.engine.loop import EngineLoop
from streamrunner.engine.tokenizer import Tokenizer
from streamrunner.engine.weights import load_model
from streamrunner.runner.engine import engine_config
from streamrunner.runner.inputs import scan_input
from streamrunner.runner.job import JobContext
from streamrunner.runner.lease import LeaseKeeper
from streamrunner.runner.spec import JobSpec
from streamrunner.runner.worker import Worker
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog
from workload import make_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

MODEL = "smollm2-135m-instruct"
STEPS_A_BLOCK = 5
_RESAMPLES = 2000


class Ratio(NamedTuple):
    """A median ratio and its 95 % interval by bootstrap."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        low, middle, high = (f"{(value - 1) * 100:+.1f} %" for value in (self.low, self.median, self.high))
        return f"{middle} ({low} … {high})"


def main() -> int:
    """Run what was asked for and print it."""
    args = parse()
    if args.only in (None, "cost"):
        for num_seqs in (64, 4):
            measure_cost(num_seqs, args.blocks, args.cache_dir)
    if args.only in (None, "ceiling"):
        with tempfile.TemporaryDirectory() as folder:
            print(measure_ceiling(Path(folder)))
    return 0


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("cost", "ceiling"), help="one section")
    parser.add_argument("--blocks", type=int, default=40, help=f"blocks of {STEPS_A_BLOCK} steps a mode (40)")
    parser.add_argument("--cache-dir", type=Path, default=default_cache_dir(), help="where converted models are")
    return parser.parse_args()


def measure_cost(num_seqs: int, num_blocks: int, cache_dir: Path) -> None:
    """Print the step time of each mode, beside that of no events."""
    with tempfile.TemporaryDirectory() as folder:
        blocks = run_blocks(Path(folder), num_seqs, num_blocks, cache_dir)
    off = statistics.median(statistics.median(times) for times in blocks["off"])
    print(f"cost     {num_seqs} rows at once, {off * 1e3:.1f} ms a step without events, {num_blocks} blocks a mode")
    for mode in MODES[1:]:
        ratio = compare(blocks[mode], blocks["off"])
        tail = percentile(blocks[mode], 0.99) / percentile(blocks["off"], 0.99)
        print(f"         {mode:8} {ratio}; 99th percentile {(tail - 1) * 100:+.1f} %", flush=True)


def run_blocks(folder: Path, num_seqs: int, num_blocks: int, cache_dir: Path) -> dict[str, list[list[float]]]:
    """Times of steps in s, by mode and block."""
    job = make_job(folder, num_seqs)
    files = resolve_model(MODEL, cache_dir)
    config = engine_config(job.spec.engine, folder)
    tokenizer = Tokenizer.load(files.path)
    core = TimedCore(EngineCore(load_model(files.path, config), config, tokenizer.eos_token_ids))
    loop = EngineLoop(core)
    loop.start()
    stop = threading.Event()
    with EmbeddedServer(folder / "data") as server:
        worker, lease, joined = make_worker(server, job, loop, tokenizer, core.max_model_len, stop)
        thread = threading.Thread(target=worker.run, args=(joined,), daemon=True)
        thread.start()
        try:
            return collect(core, num_seqs, num_blocks)
        finally:
            stop.set()
            thread.join(30)
            lease.stop()
            loop.close()


def collect(core: TimedCore, num_seqs: int, num_blocks: int) -> dict[str, list[list[float]]]:
    """Wait until all rows decode, then switch at random until every mode has its blocks."""
    core.wait_until(lambda step: step.num_running == num_seqs and step.num_prompt_tokens == 0)
    core.take_times(STEPS_A_BLOCK)
    order = [mode for mode in MODES for _ in range(num_blocks)]
    random.Random(0).shuffle(order)
    blocks: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    for mode in order:
        SwitchedWriter.mode = mode
        # The first step still pays for what the mode before left behind.
        blocks[mode].append(core.take_times(STEPS_A_BLOCK + 1)[1:])
    SwitchedWriter.mode = "steps"
    return blocks


def make_job(folder: Path, num_seqs: int) -> JobContext:
    """Rows that go on to the end of the measurement."""
    rows = [{"prompt": prompt} for prompt in make_prompts(num_seqs)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "cost", "model": MODEL, "input": {"path": "rows.jsonl"},
        "sampling": {"temperature": 0, "max_tokens": 1500, "ignore_eos": True},
        "engine": {"max_num_seqs": num_seqs, "kv_cache_memory": "4GiB"},
    }  # fmt: skip
    return JobContext("job_cost", JobKeys("job_cost"), JobSpec.model_validate(spec), 7, folder, 0)


def make_worker(
    server: EmbeddedServer, job: JobContext, loop: EngineLoop, tokenizer: Tokenizer, max_len: int, stop: threading.Event
) -> tuple[Worker, LeaseKeeper, dict[str, Any]]:
    """A worker as `runner submit` has one, joined to a submitted job."""
    scan = scan_input(job.spec, job.base, job.base)
    log = JobLog(server, job.keys, "cost")
    log.submit({"name": "cost", "rows": scan.rows}, scan.rows, [asdict(one) for one in scan.ranges])
    lease = LeaseKeeper(
        "cost", JobLog(server, job.keys, "cost"), {"host": "here", "pid": os.getpid(), "fingerprint": {}}
    )
    joined = lease.join(log)
    worker = Worker(
        job, log=log, client=server.client(), lease=lease, loop=loop, tokenizer=tokenizer, max_model_len=max_len,
        should_stop=stop.is_set,
    )  # fmt: skip
    return worker, lease, joined


def compare(mode: Sequence[Sequence[float]], off: Sequence[Sequence[float]]) -> Ratio:
    """Median block of one mode over that of the other, resampled by blocks."""
    pick = random.Random(0)
    ours, theirs = ([statistics.median(times) for times in blocks] for blocks in (mode, off))
    found = sorted(
        statistics.median(pick.choices(ours, k=len(ours))) / statistics.median(pick.choices(theirs, k=len(theirs)))
        for _ in range(_RESAMPLES)
    )
    middle = statistics.median(ours) / statistics.median(theirs)
    return Ratio(middle, found[int(0.025 * _RESAMPLES)], found[int(0.975 * _RESAMPLES)])


def percentile(blocks: Sequence[Sequence[float]], share: float) -> float:
    """Of all steps together."""
    times = sorted(time_s for block in blocks for time_s in block)
    return times[min(len(times) - 1, int(share * len(times)))]


if __name__ == "__main__":
    sys.exit(main())
