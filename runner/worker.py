"""The worker: claims rows, keeps the engine full, and writes what comes out, until the job ends or it must stop.

    feed ──rows──▶ engine thread ──StepOutput──▶ (bounded queue) ──▶ this thread ──flush──▶ log
      ▲                                                                  │
      └────────────── claims, one range ahead of the engine ─────────────┘

One thread owns rows, text and writes, so nothing here is locked. Whatever the worker does not get to write is
recomputed by the next one from the tokens that are durable.
"""

from __future__ import annotations

import enum
import queue
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamrunner.engine.errors import EngineError
from streamrunner.engine.loop import EngineLoop, EngineRequest, LoopEnd
from streamrunner.engine.output import OutputDelta, OutputProcessor
from streamrunner.runner.admissions import AdmissionFile
from streamrunner.runner.durable import ChoiceKey, DurableChoice
from streamrunner.runner.errors import ExitCode, RunnerError
from streamrunner.runner.feed import ClaimedRow, Feed
from streamrunner.runner.flight import ChoiceRun, RowRun, request_id
from streamrunner.runner.meter import Meter
from streamrunner.runner.request import prepare_request
from streamrunner.runner.rows import RowError
from streamrunner.runner.writer import LeaseGone, LogWriter
from streamrunner.sinks.log import JobLog, Reply, claimed_range

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from streamrunner.engine.step import StepOutput
    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.lease import LeaseKeeper

# How many sequences wait in the engine beyond those that run: enough that it never starves between two flushes.
_AHEAD = 16
_CLAIM_RETRY_S = 0.5
# Followers get this long to read the tokens of an ended job; its results and history stay.
_STEPS_TTL_MS = 3_600_000


class Outcome(enum.Enum):
    """Why a worker's run returned."""

    ENDED = "ended"
    STOPPED = "stopped"
    PAUSED = "paused"


class Worker:
    """Runs one job with one engine. `run` returns when the job has ended, is paused, or `should_stop` says so."""

    def __init__(
        self,
        job: JobContext,
        *,
        log: JobLog,
        client: redis.Redis,
        lease: LeaseKeeper,
        loop: EngineLoop,
        tokenizer: Tokenizer,
        max_model_len: int,
        should_stop: Callable[[], bool],
    ) -> None:
        self._job = job
        self._log = log
        self._lease = lease
        self._loop = loop
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._should_stop = should_stop
        self._processor = OutputProcessor(tokenizer)
        self._feed = Feed(job, log, client)
        self._writer = LogWriter(job, log, lease, self._row_closed, tokenizer.token)
        self._runs: dict[int, RowRun] = {}
        self._by_request: dict[str, tuple[RowRun, int]] = {}
        self._admissions = AdmissionFile.from_env(job.job_id)
        self._meter = Meter(job.spec.events.progress_interval_s)
        self._max_in_flight = job.spec.engine.max_num_seqs + _AHEAD
        self._next_claim = 0.0

    def run(self, joined: Reply) -> Outcome:
        """Work until there is a reason to stop. `joined` is the reply of the join that gave the lease.

        Raises SinkError if the log stays unreachable, RunnerError if the engine died.
        """
        self._reconcile(joined)
        while True:
            outcome = self._standing()
            if outcome is not None:
                return outcome
            self._refill()
            for step in self._next_steps():
                self._take_step(step)
            self._report()
            if self._writer.due:
                self._flush()

    def stop(self, reason: str) -> None:
        """Keep all that is done: flush the last steps and give the lease back. The log may refuse; then it expires."""
        for step in self._drain():
            self._take_step(step)
        self._flush()
        self._lease.leave(self._log, reason)

    # ── when to stop ────────────────────────────────────────────────────────────────────────────────────────────────

    def _standing(self) -> Outcome | None:
        if self._should_stop():
            return Outcome.STOPPED
        if self._lease.faulted.is_set():
            self._rejoin()
        status = self._lease.control.get("status")
        if status == "cancelling":
            return self._end("cancelled", "cancelled by request")
        if self._lease.control.get("paused"):
            return Outcome.PAUSED
        if status not in ("in_progress", "validating", None):
            return Outcome.ENDED
        if self._writer.open_rows == 0:
            return self._end("completed", "")
        return None

    def _end(self, status: str, reason: str) -> Outcome | None:
        for step in self._drain():
            self._take_step(step)
        self._flush()
        reply = self._log.end(status, reason)
        self._lease.observe(reply)
        if reply["s"] == "OPEN":
            return None
        if self._job.spec.events.retention == "live":
            self._log.expire_steps(_STEPS_TTL_MS)
        return Outcome.ENDED

    # ── rows in ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _refill(self) -> None:
        while len(self._by_request) < self._max_in_flight:
            claimed = self._feed.take()
            if claimed is not None:
                self._admit(claimed)
            elif not self._claim():
                return

    def _claim(self) -> bool:
        if time.monotonic() < self._next_claim:
            return False
        reply = self._feed.claim(self._lease.lease)
        self._lease.observe(reply)
        if reply["s"] == "OK":
            return True
        if reply["s"] in ("EXPIRED", "FENCED"):
            self._lease.faulted.set()
        self._next_claim = time.monotonic() + _CLAIM_RETRY_S
        if reply["s"] == "NONE" and not self._runs:
            # Nothing to claim and nothing in flight: every row may have its ending (a resumed job does at once).
            self._end("completed", "")
        return False

    def _admit(self, claimed: ClaimedRow) -> None:
        row = claimed.row
        if isinstance(row, RowError):
            self._fail(claimed, row.custom_id or "", row.index, row.code, row.message, row.param)
            return
        try:
            prepared = prepare_request(row, self._job.spec, self._job.seed, self._tokenizer, self._max_model_len)
        except (RunnerError, EngineError) as error:
            param = error.param if isinstance(error, EngineError) else None
            self._fail(claimed, row.custom_id, row.index, error.code, error.message, param)
            return
        choices = [ChoiceRun(request_id(row.index, i, claimed.claim)) for i in range(prepared.params.n)]
        run = RowRun(
            row, claimed.range, claimed.claim, 1, list(prepared.prompt_token_ids), prepared.params, choices,
            constraints=prepared.constraints,
        )  # fmt: skip
        self._runs[row.index] = run
        for index in range(len(choices)):
            self._start_choice(run, index, claimed.durable.get(ChoiceKey(row.index, index)))
        self._complete_if_finished(run)

    def _start_choice(self, run: RowRun, index: int, durable: DurableChoice | None) -> None:
        choice = run.choices[index]
        self._processor.add(choice.request_id, run.params)
        if durable is not None:
            # The durable prefix goes first under the new claim, and the stop rules run over it again:
            # the kill may have hit between the last token and the terminal event.
            replayed = self._processor.replay(choice.request_id, durable.token_ids)
            choice.take(with_logprobs(replayed, durable.logprobs))
            self._writer.add_deltas(run, [one for one in run.whole() if one.choice == index])
        if choice.finish_reason is not None:
            self._processor.forget(choice.request_id)
            if index == 0 and run.needs_scores:
                self._score_prompt(run)
            return
        self._by_request[choice.request_id] = (run, index)
        self._admissions.note(run, index)
        generated = tuple(choice.token_ids)
        self._loop.add(
            EngineRequest(choice.request_id, run.prompt_token_ids, run.params, index, generated, run.constraints)
        )

    def _score_prompt(self, run: RowRun) -> None:
        """For a choice that had ended before: nothing but what the model says of the prompt."""
        request = request_id(run.row.index, len(run.choices), run.claim)
        params = replace(run.params, max_tokens=0, min_tokens=0)
        run.choices[0].request_id = request
        self._processor.add(request, params)
        self._by_request[request] = (run, 0)
        self._loop.add(EngineRequest(request, run.prompt_token_ids, params))

    def _fail(self, claimed: ClaimedRow, custom_id: str, row: int, code: str, message: str, param: str | None) -> None:
        error = {"code": code, "message": message, "param": param}
        self._writer.fail(row, custom_id, claimed.range, claimed.claim, error)

    # ── steps out ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _next_steps(self) -> list[StepOutput]:
        try:
            first = self._loop.outputs.get(timeout=self._job.spec.events.flush_ms / 1000)
        except queue.Empty:
            return []
        if isinstance(first, LoopEnd):
            raise RunnerError("engine_died", f"the engine stopped: {first.error or 'closed'}", ExitCode.INTERNAL)
        return [first, *self._drain()]

    def _drain(self) -> list[StepOutput]:
        """What the engine has put out by now; its end, if it comes, is left to the next wait."""
        steps: list[StepOutput] = []
        while True:
            try:
                item = self._loop.outputs.get_nowait()
            except queue.Empty:
                return steps
            if isinstance(item, LoopEnd):
                self._loop.outputs.put(item)
                return steps
            steps.append(item)

    def _take_step(self, step: StepOutput) -> None:
        self._meter.take(step)
        processed = self._processor.process(step)
        self._take_scores(step)
        for stopped in processed.aborts:
            self._loop.abort(stopped)
        for delta in processed.deltas:
            if delta.request_id in self._by_request:
                self._take_delta(delta)

    def _take_scores(self, step: StepOutput) -> None:
        for one in step.outputs:
            if one.prompt_logprobs is not None and one.request_id in self._by_request:
                self._by_request[one.request_id][0].prompt_logprobs = one.prompt_logprobs

    def _take_delta(self, delta: OutputDelta) -> None:
        run, index = self._by_request[delta.request_id]
        choice = run.choices[index]
        if delta.error is not None:
            self._forget(run)
            error = {"code": delta.error.code, "message": delta.error.message, "param": delta.error.param}
            self._writer.fail(run.row.index, run.row.custom_id, run.range, run.claim, error)
            return
        at = len(choice.token_ids)
        if choice.finish_reason is None:
            choice.take(delta)
        if delta.token_ids or delta.text:
            self._writer.add_deltas(run, [run.delta(index, delta, at)])
        if choice.finish_reason is not None:
            del self._by_request[delta.request_id]
            self._processor.forget(delta.request_id)
            self._complete_if_finished(run)

    def _complete_if_finished(self, run: RowRun) -> None:
        if run.finished:
            self._runs.pop(run.row.index, None)
            self._writer.complete(run)

    def _forget(self, run: RowRun) -> None:
        """Take a row out of the engine and out of flight."""
        self._runs.pop(run.row.index, None)
        for choice in run.choices:
            if self._by_request.pop(choice.request_id, None) is not None:
                self._loop.abort(choice.request_id)
                self._processor.forget(choice.request_id)

    # ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _report(self) -> None:
        progress = self._meter.due(len(self._by_request))
        if progress is not None:
            self._writer.add_event("progress", progress)

    def _flush(self) -> None:
        try:
            self._writer.flush(list(self._runs.values()))
        except LeaseGone:
            if self._rejoin():
                self._writer.flush(list(self._runs.values()))

    def _row_closed(self, range_id: str, row: int, _verdict: Any) -> None:
        # CLOSED and STALE too: either way the row is no longer this worker's to finish.
        self._feed.close(range_id, row)

    def _rejoin(self) -> bool:
        """Acquire the lease anew and append all that is in flight again; False if the job has ended meanwhile."""
        reply = self._lease.join(self._log)
        if reply["s"] != "OK":
            self._lease.faulted.clear()
            return False
        held = {one["range"]: int(one["claim"]) for one in reply["held"] or ()}
        self._writer.rejoined(lambda range_id, claim: held.get(range_id) == claim)
        taken = [run for run in self._runs.values() if held.get(run.range) != run.claim]
        for run in taken:
            self._forget(run)
        if taken:
            message = (
                f"{len(taken)} rows went to another worker while this one was away; what it had for them is dropped"
            )
            self._writer.add_event("notice", {"code": "rows_taken_over", "message": message})
        self._reconcile(reply)
        for run in self._runs.values():
            run.first_n = None
            self._writer.add_deltas(run, run.whole())
        return True

    def _reconcile(self, joined: Reply) -> None:
        """Bring the ranges this worker believes to hold in line with those the log says it holds."""
        held = [claimed_range(one) for one in joined["held"] or ()]
        claims = {one.id: one.claim for one in held}
        for range_id, mine in list(self._feed.held.items()):
            if claims.get(range_id) != mine.claim:
                self._feed.drop(range_id)
        pending = self._writer.pending_rows
        for one in held:
            self._feed.adopt(one, [*one.previous, self._lease.worker], skip=[*self._runs, *pending])


def with_logprobs(replayed: OutputDelta, logprobs: list[Any]) -> OutputDelta:
    """Durable tokens with the logprobs that were recorded for them."""
    from streamrunner.engine.step import TokenLogprob

    if not logprobs:
        return replayed
    kept = tuple(tuple(TokenLogprob(*one) for one in token) for token in logprobs[: len(replayed.token_ids)])
    return replace(replayed, logprobs=kept)
