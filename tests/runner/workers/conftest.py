"""A submitted job on a real log and workers in threads of this process, with an engine that makes tokens of nothing."""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine.loop import EngineRequest, LoopEnd
from streamrunner.engine.step import RequestStep, StepOutput
from streamrunner.engine.tokenizer import Tokenizer
from streamrunner.runner.inputs import scan_input
from streamrunner.runner.job import JobContext
from streamrunner.runner.lease import LeaseKeeper
from streamrunner.runner.spec import JobSpec
from streamrunner.runner.worker import Outcome, Worker
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog
from streamrunner.sinks.reader import read_log, read_payloads, read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamrunner.sinks.server import LogServer
    from streamrunner.sinks.wire import LogEntry

    Advance = Callable[[EngineRequest, int], RequestStep]

INFO = {"host": "h", "pid": 1, "fingerprint": {}}
MAX_TOKENS = 30
_ids = itertools.count()


def one_token(request: EngineRequest, made: int) -> RequestStep:
    """The next token: a function of seed, choice and position."""
    token = 2 + (request.params.seed or 0) % 97 + (request.choice * 31 + made * 7) % 60
    reason = "length" if made + 1 >= (request.params.max_tokens or MAX_TOKENS) else None
    return RequestStep(request.request_id, (token,), None, reason, None, None)


class SyntheticLoop:
    """One token per step for each of the first `max_num_seqs` sequences; without `go` it hangs in its step."""

    def __init__(self, advance: Advance, max_num_seqs: int, step_s: float = 0.002) -> None:
        self.outputs: queue.Queue[StepOutput | LoopEnd] = queue.Queue(64)
        self.queue_wait_ms = 0.0
        self.admitted: list[EngineRequest] = []
        self.num_unread = 0
        self.go = threading.Event()
        self.go.set()
        self._advance = advance
        self._max_num_seqs = max_num_seqs
        self.step_s = step_s
        self._live: dict[str, tuple[EngineRequest, int]] = {}
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, request: EngineRequest) -> None:
        with self._guard:
            self.admitted.append(request)
            self.num_unread += 1
            self._live[request.request_id] = (request, len(request.generated))

    def abort(self, request_id: str) -> None:
        with self._guard:
            self.num_unread += 1
            self._live.pop(request_id, None)

    def close(self) -> None:
        self._stop.set()
        self.go.set()
        self._thread.join()

    def die(self, error: BaseException) -> None:
        self.outputs.put(LoopEnd(error))

    def _run(self) -> None:
        while not self._stop.is_set():
            self.go.wait()
            with self._guard:
                self.num_unread = 0
                running = list(self._live.values())[: self._max_num_seqs]
                steps = tuple(self._step(request, made) for request, made in running)
            if steps:
                self._put(StepOutput(steps, len(steps), 0, len(steps), 0, 0, 0.1, 0, 1.0))
            time.sleep(self.step_s)

    def _put(self, output: StepOutput) -> None:
        while not self._stop.is_set():
            try:
                self.outputs.put(output, timeout=0.05)
                break
            except queue.Full:
                continue

    def _step(self, request: EngineRequest, made: int) -> RequestStep:
        step = self._advance(request, made)
        if step.finish_reason is None:
            self._live[request.request_id] = (request, made + 1)
        else:
            del self._live[request.request_id]
        return step


class Rig:
    """A submitted job and whatever works on it. advance: what the engines of its workers do."""

    def __init__(
        self,
        server: LogServer,
        tokenizer: Tokenizer,
        folder: Path,
        rows: list[dict[str, Any]],
        model: str,
        **engine: Any,
    ) -> None:
        self.advance: Advance = one_token
        self.server, self.tokenizer = server, tokenizer
        self.loops: list[SyntheticLoop] = []
        self.said: list[str] = []
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sampling = {"max_tokens": MAX_TOKENS, "ignore_eos": True}
        spec = JobSpec.model_validate(
            {"name": "t", "model": model, "input": {"path": "rows.jsonl"}, "sampling": sampling, "engine": engine}
        )
        scan = scan_input(spec, folder, folder)
        keys = JobKeys(f"job_worker{next(_ids)}")
        self.job = JobContext(keys.job_id, keys, spec, 7, folder, 1700)
        data = {
            "name": "t", "rows": scan.rows, "ranges": len(scan.ranges), "identity": {}, "seed": 7,
            "spec": spec.model_dump(mode="json", exclude_none=True),
        }  # fmt: skip
        self.log("submit").submit(data, scan.rows, [asdict(one) for one in scan.ranges])
        self.client: Any = server.client()

    def log(self, by: str) -> JobLog:
        return JobLog(self.server, self.job.keys, by, patience_s=10)

    def worker(
        self, name: str, should_stop: Callable[[], bool] = lambda: False, step_s: float = 0.002
    ) -> tuple[Worker, Any, SyntheticLoop]:
        loop = SyntheticLoop(self.advance, self.job.spec.engine.max_num_seqs, step_s)
        self.loops.append(loop)
        lease = LeaseKeeper(name, self.log(name), INFO)
        log = self.log(name)
        joined = lease.join(log)
        worker = Worker(
            self.job, log=log, client=self.server.client(), lease=lease, loop=loop, tokenizer=self.tokenizer,  # type: ignore[arg-type]
            max_model_len=512, should_stop=should_stop,
            say=self.said.append,
        )  # fmt: skip
        return worker, joined, loop

    def start(self, worker: Worker, joined: Any) -> tuple[threading.Thread, list[Any]]:
        """Run in a thread; the list gets the outcome, or what was raised."""
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(worker.run(joined))
            except Exception as error:  # noqa: BLE001 - shown by the test
                outcome.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread, outcome

    def entries(self) -> list[LogEntry]:
        return list(read_log(self.client, self.job.keys))

    def types(self) -> list[str]:
        return [entry.type for entry in read_log(self.client, self.job.keys)]

    def results(self) -> dict[int, list[str]]:
        """The texts of all completed rows; fails if a row has two endings."""
        found: dict[int, list[str]] = {}
        terminals = [one for one in read_log(self.client, self.job.keys) if one.type.startswith("request.")]
        payloads = read_payloads(self.client, self.job.keys, terminals)
        for entry in terminals:
            assert entry.data["row"] not in found
            body = json.loads(payloads[entry.id])
            found[entry.data["row"]] = [choice["text"] for choice in body.get("choices", [])]
        return found

    def has_tokens(self, worker: str) -> bool:
        return any(read_steps(self.client, self.job.keys, worker))


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


class Gate:
    """A worker's `should_stop`: while the gate is shut its thread stands still, as under SIGSTOP, between two steps."""

    def __init__(self) -> None:
        self.stop = False
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Event()

    def __call__(self) -> bool:
        if not self._open.is_set():
            self._reached.set()
            self._open.wait()
        return self.stop

    def shut(self) -> None:
        """Returns once the worker stands at it."""
        self._reached.clear()
        self._open.clear()
        assert self._reached.wait(10)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def make_rig(log_server: LogServer, tokenizer: Tokenizer, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """`make_rig(rows, max_num_seqs=8)`: a job of these rows; keywords are its engine section."""
    made: list[Rig] = []

    def make(rows: list[dict[str, Any]], model: str = "m", **engine: Any) -> Rig:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Rig(log_server, tokenizer, folder, rows, model, **engine))
        return made[-1]

    yield make
    for one in made:
        for loop in one.loops:
            loop.close()


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Seventy; every third has two choices."""
    return [{"prompt": f"row {i}", **({"n": 2} if i % 3 == 0 else {})} for i in range(70)]


@pytest.fixture
def rig(make_rig: Callable[..., Rig], rows: list[dict[str, Any]]) -> Rig:
    return make_rig(rows)


@pytest.fixture
def expected(make_rig: Callable[..., Rig], rows: list[dict[str, Any]]) -> dict[int, list[str]]:
    """The texts of an undisturbed run of the same rows."""
    other = make_rig(rows)
    worker, joined, _ = other.worker("u")
    assert worker.run(joined) is Outcome.ENDED
    return other.results()
