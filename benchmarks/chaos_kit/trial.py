"""One job on the synthetic engine, under one kind of fault, brought to its end by running the same command again."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos_kit.checker import Admission, admitted_after_their_end, count_recomputed, parse_admission
from chaos_kit.driver import FINISHED, ChaosError
from chaos_kit.phases import durable_tokens
from chaos_kit.processes import connect, kill_hard, now_ms, server_pid, spawn
from chaos_kit.streams import StreamReader, Streams, find_job

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from chaos_kit.faults import Fault

NUM_ROWS, ROWS_AT_ONCE, MAX_TOKENS, STEP_MS = 192, 32, 96, 20
_STOPPED = 75
_POLL_S = 0.02
Answers = dict[str, list[str]]


class Outcome(NamedTuple):
    """One trial's counts. recovery_ms: from each fault to the next token that a process not hit by it wrote."""

    faults: int
    rows: int
    lost: int
    doubled: int
    wrong: int
    unsound: list[str]
    tokens: int
    recomputed: int
    recovery_ms: list[int]


class Trial:
    """Keeps as many runners alive as the fault asks for until the job has ended. Raises ChaosError if it does not."""

    def __init__(self, runner: Path, folder: Path, rng: random.Random, timeout_s: float = 240.0) -> None:
        self.data_dir = folder / "data"
        self.running: list[subprocess.Popen[bytes]] = []
        self._runner = runner
        self._folder = folder
        self._rng = rng
        self._deadline = time.monotonic() + timeout_s
        self._hits: list[tuple[int, list[int]]] = []
        self._codes: list[int] = []
        self._submitters: set[int] = set()
        self._client: Any = None

    @property
    def client(self) -> Any:
        """A connection to the private server, which must be up."""
        while True:
            self._client = self._client or connect(self.data_dir / "server" / "server.json")
            if self._client is not None:
                return self._client
            self._check_time()
            time.sleep(_POLL_S)

    @property
    def server_pid(self) -> int:
        """The server's process; its connection is not kept, since it is about to go."""
        client, self._client = self.client, None
        return server_pid(client)

    def command(self, verb: str) -> None:
        """Run a verb on the job."""
        subprocess.run(
            [self._runner, verb, "last"], env=self._environment(), check=False, capture_output=True, timeout=60
        )

    def run(self, fault: Fault | None) -> Answers:
        """The texts by custom_id, when all is over."""
        write_job(self._folder)
        self._keep_running(fault)
        moments = self._moments(fault)
        while not self._over():
            self._check_time()
            if fault is not None and moments and self.running and time.monotonic() > moments[0]:
                moments.pop(0)
                began = now_ms()
                self._hits.append((began, fault.do(self, self._rng)))
                self._client = None
            self._keep_running(fault)
            time.sleep(_POLL_S)
        self._end_workers()
        return answers_of(self.lines)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The output file."""
        path = self._folder / "out.jsonl"
        return [json.loads(line) for line in path.read_bytes().split(b"\n") if line] if path.exists() else []

    def judge(self, fault: Fault, undisturbed: Mapping[str, list[str]]) -> Outcome:
        """Hold the output file and the log against a run that nobody disturbed."""
        lines, answers = self.lines, answers_of(self.lines)
        counts = Counter(line["custom_id"] for line in lines)
        streams, admissions = self._read_streams(), self._admissions()
        cost = count_recomputed(streams, admissions, [] if fault.loses_tail else [when for when, _ in self._hits])
        return Outcome(
            faults=len(self._hits),
            rows=len(undisturbed),
            lost=len(undisturbed.keys() - counts.keys()),
            doubled=sum(counts.values()) - len(counts),
            wrong=sum(answers.get(name) not in (texts, None) for name, texts in undisturbed.items()),
            unsound=self._unsound(fault, streams, admissions),
            tokens=durable_tokens(streams),
            recomputed=cost.decoded_twice + cost.unwritten,
            recovery_ms=[found for hit in self._hits if (found := _recovery_ms(streams, *hit)) is not None],
        )

    # ── the processes ───────────────────────────────────────────────────────────────────────────────────────────────

    def _moments(self, fault: Fault | None) -> list[float]:
        """When to strike: spread over the job, or within a start of the runner."""
        if fault is None:
            return []
        now = time.monotonic()
        if fault.at_edges:
            spread = [self._rng.uniform(0.1, 1.2) for _ in range(fault.times)]
            return [now + sum(spread[: index + 1]) for index in range(fault.times)]
        return [now + 2.0 + 3.0 * index + self._rng.uniform(0.0, 2.0) for index in range(fault.times)]

    def _keep_running(self, fault: Fault | None) -> None:
        for process in list(self.running):
            code = process.poll()
            if code is not None:
                self.running.remove(process)
                self._codes.append(code)
        wanted = 1 if fault is None else fault.workers
        while len(self.running) < wanted and not self._over():
            # The first submits; the others are the same command, which attaches, or workers.
            same = fault is not None and fault.workers == 2
            verb = ["submit", "job.yaml", "--quiet"] if same or not self._has_submitter() else ["worker", "--quiet"]
            self._start(verb)

    def _has_submitter(self) -> bool:
        return any(process.pid in self._submitters for process in self.running)

    def _start(self, arguments: list[str]) -> None:
        command = [str(self._runner), *arguments]
        process = spawn(command, self._environment(), self._folder / "runner.log", self._folder)
        self.running.append(process)
        if arguments[0] == "submit":
            self._submitters.add(process.pid)

    def _over(self) -> bool:
        return any(code in FINISHED for code in self._codes)

    def _end_workers(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                kill_hard(process.pid)
                raise ChaosError("a worker did not leave within 15 s of SIGTERM") from None

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            for process in self.running:
                kill_hard(process.pid)
            raise ChaosError(f"the job does not end: exit codes {self._codes}, see {self._folder}/runner.log")

    def _environment(self) -> dict[str, str]:
        own = {
            "RUNNER_DATA_DIR": str(self.data_dir),
            "RUNNER_ADMISSIONS_FILE": str(self._folder / "admissions"),
            "RUNNER_TRACEBACK": "1",
        }
        return {name: value for name, value in os.environ.items() if name != "RUNNER_REDIS_URL"} | own

    # ── the evidence ────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_streams(self) -> Streams:
        """Everything, from the start: what a server lost is not in it. The server may have gone: a verb starts it."""
        self._client = None
        self.command("status")
        job_id = find_job(self.client, "job")
        if job_id is None:
            raise ChaosError("the server knows no such job any more")
        return StreamReader(job_id).poll(self.client)

    def _admissions(self) -> list[Admission]:
        path = self._folder / "admissions"
        return [parse_admission(line, 0) for line in path.read_text().splitlines()] if path.exists() else []

    def _unsound(self, fault: Fault, streams: Streams, admissions: Sequence[Admission]) -> list[str]:
        """What else must never be: holes in the log, rows admitted twice under one claim, tracebacks, odd exits."""
        seqs = [event.seq for event in streams.events]
        found = [] if seqs == list(range(1, len(seqs) + 1)) else ["the log's seqs have a hole"]
        terminals = Counter(event.data["row"] for event in streams.terminals)
        found += [f"row {row} has {count} terminal events" for row, count in terminals.items() if count != 1]
        if not fault.loses_tail:
            found += admitted_after_their_end(streams, admissions)
        allowed = {*FINISHED, _STOPPED, -9, -15}
        found += [f"exit code {code}" for code in self._codes if code not in allowed]
        if b"Traceback" in (self._folder / "runner.log").read_bytes():
            found.append("a traceback in runner.log")
        return found + self._fsck()

    def _fsck(self) -> list[str]:
        done = subprocess.run(
            [self._runner, "fsck", "last"], env=self._environment(), check=False, capture_output=True, text=True
        )
        return [] if done.returncode == 0 else [f"fsck: {(done.stdout + done.stderr).strip()[:300]}"]


def _recovery_ms(streams: Streams, when: int, victims: list[int]) -> int | None:
    """None where the job needed nothing more: the fault came after its last token."""
    dead = {event.data["worker"] for event in streams.joins() if event.data["pid"] in victims}
    after = [delta.time for delta in streams.deltas if delta.time > when and delta.worker not in dead]
    return min(after) - when if after else None


def answers_of(lines: Sequence[Mapping[str, Any]]) -> Answers:
    """Texts by custom_id; a failed row has none."""
    return {
        line["custom_id"]: [
            choice["text"] for choice in ((line["response"] or {}).get("body") or {}).get("choices", ())
        ]
        for line in lines
    }


def median_ms(values: Sequence[int]) -> str:
    """In seconds, as the table shows it."""
    return f"{statistics.median(values) / 1000:.1f}" if values else "-"


def write_job(folder: Path) -> None:
    """Rows of mixed length, every fourth with two choices."""
    rows = [
        {"custom_id": f"row-{index:04}", "prompt": f"Say {index}.", "n": 1 + (index % 4 == 3)}
        for index in range(NUM_ROWS)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "job",
        "model": f"synthetic?step_ms={STEP_MS}",
        "input": {"path": "rows.jsonl"},
        "sampling": {"seed": 7, "max_tokens": MAX_TOKENS},
        "engine": {"max_num_seqs": ROWS_AT_ONCE},
        # All tokens stay, so that what was computed twice can be counted at the end.
        "events": {"retention": "full"},
        "outputs": [{"path": "out.jsonl"}],
    }
    (folder / "job.yaml").write_text(json.dumps(spec, indent=1))
