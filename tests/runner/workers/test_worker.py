"""The worker loop against a real log, with an engine that makes tokens of nothing: leases lost, rows taken, commands,
stops.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine.errors import EngineError
from streamrunner.engine.step import RequestStep, TokenLogprob
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.worker import Outcome
from streamrunner.sinks.log import claimed_range
from streamrunner.sinks.reader import read_log, read_payloads

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.engine.loop import EngineRequest

INFO = {"host": "h", "pid": 1, "fingerprint": {}}
Rig = Any


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
    thread, outcome = rig.start(worker, joined)
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
    rig: Rig, gate: Any, expected: dict[int, list[str]], eventually: Callable[..., None]
) -> None:
    zombie, joined, _ = rig.worker("a", gate)
    thread, outcome = rig.start(zombie, joined)
    eventually(lambda: rig.has_tokens("a"))
    gate.shut()
    rig.log("t").lost("a", "stopped")
    heir, heirs, _ = rig.worker("b")
    assert heir.run(heirs) is Outcome.ENDED
    gate.open()
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected
    assert any("while this worker was away" in message for message in rig.said)


def test_a_zombie_of_a_job_that_still_runs_tells_the_log_and_joins_anew(
    rig: Rig, gate: Any, expected: dict[int, list[str]], eventually: Callable[..., None]
) -> None:
    zombie, joined, _ = rig.worker("a", gate)
    thread, outcome = rig.start(zombie, joined)
    eventually(lambda: rig.has_tokens("a"))
    gate.shut()
    rig.log("t").lost("a", "stopped")
    heir, heirs, engine = rig.worker("b", step_s=0.05)
    other, heirs_outcome = rig.start(heir, heirs)
    eventually(lambda: rig.has_tokens("b"))
    engine.go.clear()
    gate.open()
    eventually(lambda: "notice" in rig.types())
    engine.go.set()
    thread.join(30)
    other.join(30)
    assert outcome == heirs_outcome == [Outcome.ENDED]
    assert rig.results() == expected
    [notice] = [entry for entry in rig.entries() if entry.type == "notice"]
    assert (notice.by, notice.data["code"]) == ("a", "rows_taken_over")
    assert [entry.by for entry in rig.entries() if entry.type == "worker.joined"] == ["a", "b", "a"]
    owners: dict[str, str] = {}
    for entry in rig.entries():
        if entry.type == "range.claimed":
            owners[entry.data["range"]] = entry.by
        elif entry.type == "request.completed":
            assert entry.by == owners[entry.data["range"]], "nobody ends a row that has gone to somebody else"


def test_a_dead_workers_rows_go_on_from_their_last_token(
    rig: Rig, expected: dict[int, list[str]], eventually: Callable[..., None]
) -> None:
    stop = threading.Event()
    worker, joined, loop = rig.worker("a", stop.is_set)
    thread, outcome = rig.start(worker, joined)
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
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    rig.client.hdel(rig.job.keys.meta, "n:a", "r:a")
    loop.go.set()
    thread.join(30)
    assert outcome == [Outcome.ENDED]
    assert rig.results() == expected


def test_cancel_is_honoured_while_rows_run(rig: Rig, eventually: Callable[..., None]) -> None:
    worker, joined, loop = rig.worker("a")
    thread, outcome = rig.start(worker, joined)
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
    thread, outcome = rig.start(worker, joined)
    eventually(lambda: rig.has_tokens("a"))
    loop.go.clear()
    rig.log("t").control("c", "pause")
    loop.go.set()
    thread.join(10)
    assert outcome == [Outcome.PAUSED]


def test_a_row_that_the_engine_refuses_fails_alone(rig: Rig) -> None:
    one_token = rig.advance

    def faulty(request: EngineRequest, made: int) -> RequestStep:
        if request.request_id.startswith("3.") and made == 2:
            error = EngineError("nan_logits", "the model overflowed")
            return RequestStep(request.request_id, (), None, "error", None, error)
        return one_token(request, made)

    rig.advance = faulty
    worker, joined, _ = rig.worker("a")
    assert worker.run(joined) is Outcome.ENDED
    counts = rig.entries()[-1].data["counts"]
    assert (counts["completed"], counts["failed"]) == (69, 1)


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
    make_rig: Callable[..., Rig], tokenizer: Any, eventually: Callable[..., None]
) -> None:
    """The scores are in no step of the log: whoever goes on has them computed, though the choice itself is done."""
    [ending], [going] = tokenizer.encode("x"), tokenizer.encode("a")
    score = ((TokenLogprob(going, -0.5, 2),),)

    def advance(request: EngineRequest, made: int) -> RequestStep:
        done = made + 1 >= (request.params.max_tokens or 0)
        tokens = () if request.params.max_tokens == 0 else (ending if request.choice == 0 else going,)
        scores = score if request.choice == 0 and not made else None
        return RequestStep(request.request_id, tokens, None, "length" if done else None, None, None, 0, scores)

    row = {"prompt": "aa", "n": 2, "stop": "x", "prompt_logprobs": 0, "max_tokens": 400}
    rig = make_rig([row])
    rig.advance = advance
    stop = threading.Event()
    worker, joined, loop = rig.worker("a", stop.is_set)
    thread, _ = rig.start(worker, joined)
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
