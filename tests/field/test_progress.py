"""What people report about progress bars and estimates of other runners, each tried on ours.

A bar that appears when most is done; a bar that counts choices for rows, ends beyond or below 100 %, or starts again
after a restart; one bar a worker and none for the job; silence while a model loads; a speed that falls as the list
grows; a status that stays where a dead node left it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from streamrunner.runner.fold import JobState
from streamrunner.runner.open_work import OpenWork
from streamrunner.runner.spec import SamplingSpec
from streamrunner.runner.summary import state_as_json
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.wire import LogEntry, encode_json

RUNNER = Path(sys.executable).with_name("runner")
ROWS, CHOICES = 80, 2


def limit(row: int) -> int:
    """Tokens of each answer of a row."""
    return 15 + row % 40


def show(data_dir: Path, *words: str) -> str:
    env = {**os.environ, "RUNNER_DATA_DIR": str(data_dir), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([RUNNER, *words], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Seen:
    """What a watcher was shown after each entry of the log, and each `status` that somebody asked for meanwhile."""

    def __init__(self, entries: list[dict[str, Any]], asked: list[dict[str, Any]]) -> None:
        self.entries = entries
        self.asked = asked
        self.shown: list[dict[str, Any]] = []
        self.tokens: list[int] = []
        state = JobState()
        for one in entries:
            state.apply(LogEntry(one["seq"], 0, one["type"], one["v"], one["time"], one["by"], one["data"]))
            self.shown.append(state_as_json("job", state))
            self.tokens.append(state.output_tokens)

    @property
    def completed(self) -> list[int]:
        return [one["request_counts"]["completed"] for one in self.shown]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, byte_model: Path) -> Seen:
    """A job of rows with two choices each and mixed lengths, killed on its way and gone on with."""
    folder = tmp_path_factory.mktemp("p")
    data_dir = folder / "d"
    rows = [{"prompt": "x" * (5 + i % 40), "max_tokens": limit(i)} for i in range(ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "t", "model": str(byte_model), "input": {"path": "rows.jsonl"},
        "sampling": {"n": CHOICES, "seed": 7, "ignore_eos": True},
        "engine": {"max_num_seqs": 16}, "events": {"progress_interval": "50ms"},
    }  # fmt: skip
    (folder / "job.yaml").write_text(json.dumps(spec))
    env = {**os.environ, "RUNNER_DATA_DIR": str(data_dir), "PYTHONSAFEPATH": "1"}
    command = [str(RUNNER), "submit", "job.yaml"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = subprocess.Popen(command, env=env, cwd=folder, **silent)
    asked: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    try:
        while not (asked and asked[-1]["request_counts"]["completed"] >= ROWS // 6):
            assert time.monotonic() < deadline, asked[-1:]
            assert first.poll() is None
            listed = subprocess.run([RUNNER, "status", "t", "--json"], env=env, capture_output=True, text=True)
            if listed.returncode == 0:
                asked.append(json.loads(listed.stdout))
            time.sleep(0.1)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    again = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    asked.append(json.loads(show(data_dir, "status", "t", "--json")))
    entries = [json.loads(line) for line in show(data_dir, "events", "t", "--json").splitlines()]
    return Seen([one for one in entries if "seq" in one], asked)


def test_progress_begins_with_the_first_row_and_not_when_most_is_done(seen: Seen) -> None:
    steps = [done for done in dict.fromkeys(seen.completed) if done]
    assert steps == list(range(1, ROWS + 1))
    first = next(i for i, one in enumerate(seen.shown) if one["in_flight"]["tokens"])
    assert seen.completed[first] < ROWS / 4


def test_a_row_with_two_choices_is_one_row_and_all_its_tokens(seen: Seen) -> None:
    assert seen.shown[-1]["request_counts"]["completed"] == ROWS
    expected = sum(CHOICES * limit(i) for i in range(ROWS))
    assert seen.shown[-1]["usage"]["output_tokens"] == expected
    assert seen.tokens[-1] == expected
    assert sum(one["data"]["rows"] for one in last_progress(seen)) <= ROWS


def last_progress(seen: Seen) -> list[dict[str, Any]]:
    """The last thing each worker said of itself."""
    newest = {one["by"]: one for one in seen.entries if one["type"] == "progress" and one["data"]["phase"] == "running"}
    return list(newest.values())


def test_nothing_goes_back_when_a_worker_is_killed_and_another_takes_over(seen: Seen) -> None:
    assert len({one["data"]["worker"] for one in seen.entries if one["type"] == "worker.joined"}) == 2
    assert seen.completed == sorted(seen.completed)
    assert seen.tokens == sorted(seen.tokens)


def test_it_ends_at_all_rows_and_with_no_time_left(seen: Seen) -> None:
    end = seen.shown[-1]
    assert end["request_counts"]["total"] == end["request_counts"]["completed"] == ROWS
    assert (end["status"], end["eta_s"], end["phase"]) == ("completed", 0.0, None)
    assert (seen.asked[-1]["status"], seen.asked[-1]["eta_s"], seen.asked[-1]["workers"]) == ("completed", 0.0, [])


def test_the_silence_before_the_first_token_has_a_name_for_every_watcher(seen: Seen) -> None:
    phases = [one["phase"] for one in seen.shown if one["phase"]]
    loading = [phase for phase in phases if phase.startswith("loading")]
    assert loading
    assert phases.index(loading[0]) < phases.index("running")
    # The second worker says so again: its loading is silence too.
    assert len({one["by"] for one in seen.entries if one["type"] == "progress"}) == 2


def test_a_rate_and_a_time_left_are_there_before_half_is_done_and_for_each_worker(seen: Seen) -> None:
    early = [one for one in seen.shown if one["request_counts"]["completed"] < ROWS / 2 and one["eta_s"] is not None]
    assert early
    assert all(one["output_tokens_per_s"] > 0 for one in early)
    assert all(len(one["workers"]) == 1 for one in early)


def test_whoever_asks_for_the_status_is_told_the_same(seen: Seen) -> None:
    counts = [one["request_counts"]["completed"] for one in seen.asked]
    assert counts == sorted(counts)
    running = [one for one in seen.asked if one["phase"] == "running"]
    assert running
    assert all(one["workers"][0]["output_tokens"] >= 0 for one in running)


class CountingServer:
    """A million rows in ranges of 64, half of them done; counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        work = [[64, 6400, 64, 8192]]
        self._ranges = [
            (f"{i}-0".encode(), {b"range": encode_json({"first": 64 * i, "count": 64, "work": work})})
            for i in range(15_625)
        ]

    def xrange(self, _name: str, min: str, count: int) -> list[Any]:  # noqa: A002
        self.asked.append("xrange")
        start = 0 if min == "-" else int(min.strip("(").partition("-")[0]) + 1
        return self._ranges[start : start + count]

    def get(self, _name: str) -> bytes:
        self.asked.append("get")
        return b"\xff" * 62_500


def test_a_long_list_is_read_once_and_then_only_its_bits() -> None:
    server: Any = CountingServer()
    work = OpenWork(server, JobKeys("job_1"), SamplingSpec())
    [(_, half)] = work.waiting([]).items()
    assert half.rows == 500_000
    first = len(server.asked)
    for _ in range(100):
        work.waiting([])
    # Asked a hundred times at once, it answers from memory: a long list must not slow the engine.
    assert len(server.asked) - first <= 2 * 5
    assert first == 15_625 // 1000 + 1 + 1
