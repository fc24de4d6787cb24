"""Runs one job to its end, killing it on the way as planned, and keeps what an observer of the streams saw."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from chaos_kit.checker import Admission, parse_admission
from chaos_kit.phases import Kill, Plan, has_come
from chaos_kit.processes import connect, kill_hard, now_ms, server_pid, spawn
from chaos_kit.streams import StreamReader, Streams, find_job

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

_POLL_S = 0.03
FINISHED = (0, 3)


class ChaosError(Exception):
    """The run itself cannot go on: a job that hangs, a runner that refuses to start."""


def find_runner() -> Path:
    """The `runner` command beside this interpreter, or on PATH."""
    beside = Path(sys.executable).with_name("runner")
    found = beside if beside.exists() else shutil.which("runner")
    if found is None:
        raise ChaosError("there is no `runner` command: make setup")
    return Path(found)


@dataclass
class Observation:
    """What was seen of one job. `exits` are the exit codes of the runs that were not killed."""

    reader: StreamReader | None = None
    admissions: list[Admission] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)

    @property
    def streams(self) -> Streams:
        """Everything read so far."""
        return self.reader.streams if self.reader else Streams()


class SideFile:
    """The admissions file, read on and on, so that each line's time is known from below."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._absent_at = 0

    def poll(self, spawned: int) -> list[Admission]:
        """New whole lines; whatever is new was absent at the last poll and before its process was started."""
        looked_at = now_ms()
        content = self._path.read_bytes()[self._read :] if self._path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        found = [parse_admission(line, max(self._absent_at, spawned)) for line in whole.decode().splitlines()]
        self._read += len(whole)
        self._absent_at = looked_at
        return found


class JobDriver:
    """Runs the jobs of one chaos run, one after another, in one data dir."""

    def __init__(self, runner: Path, data_dir: Path, folder: Path, rng: random.Random, job_timeout_s: float) -> None:
        self._runner = runner
        self._data_dir = data_dir
        self._folder = folder
        self._rng = rng
        self._job_timeout_s = job_timeout_s
        self._client: redis.Redis | None = None
        self._server_kills = 0
        self._kills = 0

    def run(self, job_file: Path, plans: Sequence[Plan], total_tokens: int) -> Observation:
        """Kill the job as planned, then let it end. Raises ChaosError if it does not within the time limit."""
        seen, side_file = Observation(), SideFile(self._side_file(job_file.stem))
        deadline = time.monotonic() + self._job_timeout_s
        for plan in [*plans, None]:
            code = self._run_once(job_file, plan, total_tokens, seen, side_file, deadline)
            if code is None:
                continue
            seen.exits.append(code)
            if code in FINISHED:
                break
            if len(seen.exits) > len(plans) + 3:
                raise ChaosError(f"{job_file.name} does not end: exit codes {seen.exits}, see {self._log(job_file)}")
        self._read_rest(job_file, seen)
        return seen

    def _read_rest(self, job_file: Path, seen: Observation) -> None:
        """The server goes within seconds of its last client: where this reader came too late, have it started again."""
        for _ in range(3):
            if any(event.type == "job.ended" for event in seen.streams.events):
                return
            with self._log(job_file).open("ab") as log:
                subprocess.run(
                    [self._runner, "list"], env=self._environment(job_file), stdout=log, stderr=log, check=False
                )
            self._observe(job_file.stem, seen)

    def _run_once(
        self,
        job_file: Path,
        plan: Plan | None,
        total_tokens: int,
        seen: Observation,
        side_file: SideFile,
        deadline: float,
    ) -> int | None:
        """One start of the runner; its exit code, or None if it was killed."""
        spawned, started = now_ms(), time.monotonic()
        process = self._spawn(job_file)
        while True:
            # Asked before the streams are read, so that what a run wrote last is never missed.
            code = process.poll()
            self._observe(job_file.stem, seen)
            seen.admissions += side_file.poll(spawned)
            if code is not None:
                return code
            age_s = time.monotonic() - started
            if plan is not None and has_come(plan, seen.streams, process.pid, age_s, total_tokens):
                self._kill(process, plan, spawned, seen)
                seen.admissions += side_file.poll(spawned)
                return None
            if time.monotonic() > deadline:
                kill_hard(process.pid)
                raise ChaosError(f"{job_file.name} took over {self._job_timeout_s:.0f} s, see {self._log(job_file)}")
            time.sleep(_POLL_S)

    def _spawn(self, job_file: Path) -> subprocess.Popen[bytes]:
        command = [str(self._runner), "submit", str(job_file), "--quiet"]
        return spawn(command, self._environment(job_file), self._log(job_file))

    def _environment(self, job_file: Path) -> dict[str, str]:
        own = {
            "RUNNER_DATA_DIR": str(self._data_dir),
            "RUNNER_ADMISSIONS_FILE": str(self._side_file(job_file.stem)),
            "RUNNER_TRACEBACK": "1",
        }
        return {name: value for name, value in os.environ.items() if name != "RUNNER_REDIS_URL"} | own

    def _observe(self, name: str, seen: Observation) -> None:
        """Read on, if there is a server and it knows the job by now."""
        try:
            self._client = self._client or connect(self._data_dir / "server" / "server.json")
            if self._client is None:
                return
            if seen.reader is None and (job_id := find_job(self._client, name)):
                seen.reader = StreamReader(job_id)
            if seen.reader is not None:
                seen.reader.poll(self._client)
        except redis.RedisError:
            self._client = None

    def _kill(self, process: subprocess.Popen[bytes], plan: Plan, spawned: int, seen: Observation) -> None:
        """SIGKILL the runner, and the server too in every second kill, in either order."""
        server_too = self._client is not None and 2 * self._server_kills <= self._kills
        victims = [process.pid, server_pid(self._client)] if server_too else [process.pid]
        self._rng.shuffle(victims)
        for pid in victims:
            kill_hard(pid)
        seen.kills.append(Kill(process.pid, spawned, now_ms(), plan.phase, server_too))
        process.wait()
        self._kills += 1
        if server_too:
            self._server_kills += 1
            self._client = None

    def _side_file(self, name: str) -> Path:
        return self._folder / f"{name}.admissions"

    def _log(self, job_file: Path) -> Path:
        return self._folder / f"{job_file.stem}.log"
