"""The worker loop against a real log, with an engine that makes tokens of nothing: leases lost, rows taken, commands,
stops.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine.errors import EngineError
from streamrunner.engine.loop import EngineRequest, LoopEnd
from streamrunner.engine.step import RequestStep, StepOutput, TokenLogprob
from streamrunner.engine.tokenizer import Tokenizer
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.inputs import scan_input
from streamrunner.runner.job import JobContext
from streamrunner.runner.lease import LeaseKeeper
from streamrunner.runner.spec import JobSpec
from streamrunner.runner.worker import Outcome, Worker
from streamrunner.sinks.keys import JobKeys
from streamrunner.sinks.log import JobLog, claimed_range
from streamrunner.sinks.reader import read_log, read_payloads, read_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamrunner.sinks.server import LogServer

INFO = {"host": "h", "pid": 1, "fingerprint": {}}
MAX_TOKENS = 30
_ids = itertools.count()


class SyntheticLoop:
    """One token per sequence and step, a function of seed, choice and position; `pause` holds it."""

    def __init__(self) -> None:
        self.outputs: queue.Queue[StepOutput | LoopEnd] = queue.Queue(64)
        self.queue_wait_ms = 0.0
        self.admitted: list[EngineRequest] = []
        self.go = threading.Event()
        self.go.set()
        self._live: dict[str, tuple[EngineRequest, int]] = {}
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, request: EngineRequest) -> None:
        with self._guard:
            self.admitted.append(request)
            self._live[request.request_id] = (request, len(request.generated))

    def abort(self, request_id: str) -> None:
        with self._guard:
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
                steps = tuple(self._advance(*one) for one in list(self._live.values()))
            if steps:
                self.outputs.put(StepOutput(steps, len(steps), 0, len(steps), 0, 0, 0.1, 0, 1.0))
            time.sleep(0.002)

    def _advance(self, request: EngineRequest, made: int) -> RequestStep:
        token = 2 + (request.params.seed or 0) % 97 + (request.choice * 31 + made * 7) % 60
        done = made + 1 >= MAX_TOKENS
        if done:
            del self._live[request.request_id]
        else:
            self._live[request.request_id] = (request, made + 1)
        return RequestStep(request.request_id, (token,), None, "length" if done else None, None, None)


class Rig:
    """A submitted job and whatever works on it."""

    def __init__(self, server: LogServer, tokenizer: Tokenizer, folder: Path, rows: list[dict[str, Any]]) -> None:
        self.server, self.tokenizer = server, tokenizer
        self.loops: list[SyntheticLoop] = []
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sampling = {"max_tokens": MAX_TOKENS, "ignore_eos": True}
        spec = JobSpec.model_validate(
            {"name": "t", "model": "m", "input": {"path": "rows.jsonl"}, "sampling": sampling}
        )
        scan = scan_input(spec, folder, folder)
        keys = JobKeys(f"job_worker{next(_ids)}")
        self.job = JobContext(keys.job_id, keys, spec, 7, folder, 1700)
        data = {"name": "t", "rows": scan.rows, "spec": {}, "identity": {}, "seed": 7}
        self.log("submit").submit(data, scan.rows, [asdict(one) for one in scan.ranges])
        self.client: Any = server.client()

    def log(self, by: str) -> JobLog:
        return JobLog(self.server, self.job.keys, by, patience_s=10)

    def worker(self, name: str, should_stop: Callable[[], bool] = lambda: False) -> tuple[Worker, Any, SyntheticLoop]:
        loop = SyntheticLoop()
        self.loops.append(loop)
        lease = LeaseKeeper(name, self.log(name), INFO)
        log = self.log(name)
        joined = lease.join(log)
        worker = Worker(
            self.job, log=log, client=self.server.client(), lease=lease, loop=loop, tokenizer=self.tokenizer,  # type: ignore[arg-type]
            max_model_len=512, should_stop=should_stop,
        )  # fmt: skip
        return worker, joined, loop

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


@pytest.fixture
def rig(log_server: LogServer, tokenizer: Tokenizer, tmp_path: Path) -> Iterator[Rig]:
    rows = [{"prompt": f"row {i}", **({"n": 2} if i % 3 == 0 else {})} for i in range(70)]
    made = Rig(log_server, tokenizer, tmp_path, rows)
    yield made
    for loop in made.loops:
        loop.close()


@pytest.fixture
def expected(log_server: LogServer, tokenizer: Tokenizer, tmp_path: Path, rig: Rig) -> dict[int, list[str]]:
    """The texts of an undisturbed run of the same rows."""
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    other = Rig(log_server, tokenizer, folder, rows)
    worker, joined, loop = other.worker("u")
    assert worker.run(joined) is Outcome.ENDED
    loop.close()
    return other.results()


def in_thread(worker: Worker, joined: Any) -> tuple[threading.Thread, list[Any]]:
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(worker.run(joined))
        except Exception as error:  # noqa: BLE001 - shown by the test
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def test_every_row_ends_once_and_the_job_with_them(rig: Rig) -> None:
    worker, joined, _ = rig.worker("a")
    assert worker.run(joined) is Outcome.ENDED
    assert sorted(rig.results()) == list(range(70))
    assert [len(texts) for texts in rig.results().values()].count(2) == 24
    assert rig.types()[-1] == "job.ended"
    assert rig.client.pttl(rig.job.keys.steps("a")) > 3_000_000, "tokens go an hour after the job"


def test_a_lease_that_ran_out_costs_nothing_if_nobody_took_over(
    rig: Rig, expected: dict[int, list[str]], eventually: Callable[..., None]
) -> None:
    """A laptop that slept: it joins anew and goes on with what it has."""
    worker, joined, loop = rig.worker("a")
    thread, outcome = in_thread(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    rig.log("t").lost("a", "slept")
    loop.go.set()
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected
    assert rig.types().count("worker.joined") == 2
    assert len(loop.admitted) == 94, "no row was admitted twice"


def test_a_zombie_drops_what_was_taken_over_and_says_so(
    rig: Rig, expected: dict[int, list[str]], eventually: Callable[..., None]
) -> None:
    zombie, joined, loop = rig.worker("a")
    thread, outcome = in_thread(zombie, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    rig.log("t").lost("a", "stopped")
    heir, heirs, _ = rig.worker("b")
    assert heir.run(heirs) is Outcome.ENDED
    loop.go.set()
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected


def test_a_dead_workers_rows_go_on_from_their_last_token(
    rig: Rig, expected: dict[int, list[str]], eventually: Callable[..., None]
) -> None:
    stop = threading.Event()
    worker, joined, loop = rig.worker("a", stop.is_set)
    thread, outcome = in_thread(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    stop.set()
    thread.join(10)
    assert outcome == [Outcome.STOPPED]
    loop.close()
    worker.stop("SIGTERM")
    heir, heirs, second = rig.worker("b")
    assert heir.run(heirs) is Outcome.ENDED
    assert rig.results() == expected
    assert any(request.generated for request in second.admitted)
    assert "worker.preempted" in rig.types()


def test_a_lost_tail_is_noticed_and_its_rows_end_all_the_same(
    rig: Rig, expected: dict[int, list[str]], eventually: Callable[..., None]
) -> None:
    """A server that forgot the newest flush numbers answers GAP: join anew, append again."""
    worker, joined, loop = rig.worker("a")
    thread, outcome = in_thread(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    rig.client.hdel(rig.job.keys.meta, "n:a", "r:a")
    loop.go.set()
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected


def test_cancel_is_honoured_while_rows_run(rig: Rig, eventually: Callable[..., None]) -> None:
    worker, joined, loop = rig.worker("a")
    thread, outcome = in_thread(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    rig.log("t").control("c", "cancel")
    loop.go.set()
    thread.join(10)
    assert outcome == [Outcome.ENDED]
    assert rig.types()[-2:] == ["job.cancel_requested", "job.ended"] or "job.ended" in rig.types()[-2:]
    last = list(read_log(rig.client, rig.job.keys))[-1]
    counts = last.data["counts"]
    assert counts["completed"] + counts["cancelled"] == counts["rows"] == 70


def test_a_pause_stops_the_worker(rig: Rig, eventually: Callable[..., None]) -> None:
    worker, joined, loop = rig.worker("a")
    thread, outcome = in_thread(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    rig.log("t").control("c", "pause")
    loop.go.set()
    thread.join(10)
    assert outcome == [Outcome.PAUSED]


def test_a_row_that_the_engine_refuses_fails_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = SyntheticLoop._advance

    def faulty(self: SyntheticLoop, request: EngineRequest, made: int) -> RequestStep:
        if request.request_id.startswith("3.") and made == 2:
            self._live.pop(request.request_id, None)
            error = EngineError("nan_logits", "the model overflowed")
            return RequestStep(request.request_id, (), None, "error", None, error)
        return advance(self, request, made)

    monkeypatch.setattr(SyntheticLoop, "_advance", faulty)
    worker, joined, _ = rig.worker("a")
    assert worker.run(joined) is Outcome.ENDED
    last = list(read_log(rig.client, rig.job.keys))[-1]
    assert (last.data["counts"]["completed"], last.data["counts"]["failed"]) == (69, 1)


def test_an_engine_that_dies_is_reported(rig: Rig) -> None:
    worker, joined, loop = rig.worker("a")
    loop.die(MemoryError("no memory left"))
    with pytest.raises(RunnerError, match="no memory left") as caught:
        worker.run(joined)
    assert caught.value.code == "engine_died"


def test_a_forgotten_claim_is_worked_on_all_the_same(rig: Rig) -> None:
    """Its reply was lost and the process that made it joined anew: the range stands among those it holds."""
    log = rig.log("a")
    epoch = log.join("a", "t", INFO)["epoch"]
    from streamrunner.sinks.log import WorkerLease

    claimed = claimed_range(log.claim(WorkerLease("a", epoch, "t"), []))
    worker, joined, _ = rig.worker("a")
    assert [one["range"] for one in joined["held"]] == [claimed.id]
    assert worker.run(joined) is Outcome.ENDED
    assert sorted(rig.results()) == list(range(70))


def test_a_prompt_is_scored_also_if_its_first_choice_had_ended_before_a_kill(
    log_server: LogServer, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:  # fmt: skip
    """The scores are in no step of the log: whoever goes on has them computed, though the choice itself is done."""
    [ending], [going] = tokenizer.encode("x"), tokenizer.encode("a")
    score = ((TokenLogprob(going, -0.5, 2),),)

    def advance(self: SyntheticLoop, request: EngineRequest, made: int) -> RequestStep:
        done = made + 1 >= (request.params.max_tokens or 0)
        if done:
            self._live.pop(request.request_id, None)
        else:
            self._live[request.request_id] = (request, made + 1)
        tokens = () if request.params.max_tokens == 0 else (ending if request.choice == 0 else going,)
        scores = score if request.choice == 0 and not made else None
        return RequestStep(request.request_id, tokens, None, "length" if done else None, None, None, 0, scores)

    monkeypatch.setattr(SyntheticLoop, "_advance", advance)
    row = {"prompt": "aa", "n": 2, "stop": "x", "prompt_logprobs": 0, "max_tokens": 400}
    rig = Rig(log_server, tokenizer, tmp_path, [row])
    stop = threading.Event()
    worker, joined, loop = rig.worker("a", stop.is_set)
    thread, _ = in_thread(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    stop.set()
    thread.join(10)
    worker.stop("SIGTERM")
    heir, heirs, second = rig.worker("b")
    assert heir.run(heirs) is Outcome.ENDED
    assert sorted(
        request.params.max_tokens for request in second.admitted if request.params.max_tokens is not None
    ) == [0, 400]
    [entry] = [one for one in read_log(rig.client, rig.job.keys) if one.type == "request.completed"]
    choices = json.loads(read_payloads(rig.client, rig.job.keys, [entry])[entry.id])["choices"]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [("", "stop"), ("a" * 400, "length")]
    assert all(choice["prompt_logprobs"][1][str(going)]["logprob"] == -0.5 for choice in choices)
    for one in rig.loops:
        one.close()
