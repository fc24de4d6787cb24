"""How fast results leave the log: folding it, and writing each kind of output.

    python benchmarks/bench_export.py [--rows 1000000] [--text 500] [--data-dir DIR]

The log is filled through the real function library, by one worker that ends 64 rows a flush (0.9 KB a row unless told),
so it is what a job of that many rows leaves. Each figure is one pass in this process, beside the private server on the
same machine. A data dir is kept: the next run with it measures the same log again.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from streamrunner.runner.export_file import FileExport
from streamrunner.runner.fold import fold
from streamrunner.runner.result_feed import ResultFeed
from streamrunner.runner.selection import Order, Selection
from streamrunner.sinks.embedded.server import EmbeddedServer
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import ClaimedRange, Flush, JobLog, Terminal, WorkerLease, claimed_range
from streamrunner.sinks.outputs.append_file import AppendFile
from streamrunner.sinks.outputs.codec import codec_of
from streamrunner.sinks.outputs.formats import CsvFormat, JsonlFormat
from streamrunner.sinks.reader import read_log

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = JobKeys("job_bench")
ROWS_PER_RANGE = 64
BEAT_EVERY = 50
OUTPUTS: list[tuple[str, Order]] = [
    ("results.jsonl", "completion"), ("ordered.jsonl", "input"), ("results.csv", "completion"),
    ("results.jsonl.gz", "completion"), ("results.jsonl.zst", "completion"),
]  # fmt: skip


class Rate(NamedTuple):
    """What was measured, in how many seconds, and how many rows a second that is."""

    what: str
    seconds: float
    rows_s: float


def fill(server: EmbeddedServer, num_rows: int, text_chars: int) -> None:
    """Append a whole job of completed rows; does nothing if it is there."""
    log = JobLog(server, KEYS, "bench", patience_s=5)
    starts = range(0, num_rows, ROWS_PER_RANGE)
    ranges = [{"first": first, "count": min(ROWS_PER_RANGE, num_rows - first)} for first in starts]
    if not log.submit({"name": "bench", "rows": num_rows, "spec": {}}, num_rows, ranges):
        return
    reply = log.join("a", "token", {"host": "h", "pid": 1, "fingerprint": {}})
    lease = WorkerLease("a", reply["epoch"], "token")
    usage = {"prompt_tokens": 40, "completion_tokens": 100, "total_tokens": 140}
    payload = _body("x" * text_chars, usage)
    for n in range(1, len(ranges) + 1):
        held = claimed_range(log.claim(lease, []))
        log.flush(lease, Flush(n, b"", "", (), _terminals(held, usage, payload)))
        if n % BEAT_EVERY == 0:
            log.beat(lease)
    log.end("completed")


def _body(text: str, usage: dict[str, int]) -> bytes:
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": None, "logprobs": None}
    head = {"id": "chatcmpl-01k0000000000000000000000000", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**head, "choices": [choice], "usage": usage}, separators=(",", ":")).encode()


def _terminals(held: ClaimedRange, usage: dict[str, int], payload: bytes) -> list[Terminal]:
    first, count = held.spec["first"], held.spec["count"]
    common: dict[str, Any] = {"attempt": 1, "range": held.id, "claim": held.claim, "finish_reasons": ["stop"]}
    return [
        Terminal(
            row, held.id, held.claim, "request.completed",
            {"row": row, "custom_id": f"request-{row}", **common, "usage": usage}, payload, 40, 100,
        )
        for row in range(first, first + count)
    ]  # fmt: skip


def measure(what: str, num_rows: int, call: Callable[[], object]) -> Rate:
    """One pass."""
    begin = time.perf_counter()
    call()
    seconds = time.perf_counter() - begin
    return Rate(what, seconds, num_rows / seconds)


def export(server: EmbeddedServer, path: Path, order: Order) -> None:
    """What an exporter does for a job that has ended: fold, then write all rows."""
    form = CsvFormat() if ".csv" in path.name else JsonlFormat()
    with AppendFile(path, "bench", form, codec_of(path)) as file:
        FileExport(file, Selection("all", order), ResultFeed(server.client(), KEYS)).settle()


def run(data_dir: Path, num_rows: int, text_chars: int, outputs: Path) -> list[Rate]:
    """Fill the log if need be, then measure."""
    with EmbeddedServer(data_dir) as server:
        rates = [measure("fill", num_rows, lambda: fill(server, num_rows, text_chars))]
        rates.append(measure("fold", num_rows, lambda: fold(read_log(server.client(), KEYS))))
        for name, order in OUTPUTS:
            rates.append(measure(f"{name} ({order})", num_rows, lambda: export(server, outputs / name, order)))  # noqa: B023 - called at once
    return rates


def peak_mib() -> float:
    """The most memory this process has had; Linux counts it in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--text", type=int, default=500, help="characters of a row's text")
    parser.add_argument("--data-dir", type=Path, help="keep the log here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sr-") as folder:
        data_dir = options.data_dir or Path(folder)
        for rate in run(data_dir, options.rows, options.text, Path(folder)):
            print(f"{rate.what:32} {rate.seconds:8.2f} s {rate.rows_s:10.0f} rows/s", flush=True)
        print(f"most memory of this process: {peak_mib():.0f} MiB")


if __name__ == "__main__":
    main()
