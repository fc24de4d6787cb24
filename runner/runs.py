"""The rows a worker has in flight: admitted to the engine, made into text step by step, and handed to the writer.

    ClaimedRow ──admit──▶ [ durable tokens first, then the engine ] ──take_step──▶ deltas ──▶ ended row ──▶ LogWriter

Owned by the worker thread alone, so nothing here is locked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamrunner.engine.errors import EngineError
from streamrunner.engine.loop import EngineLoop, EngineRequest
from streamrunner.engine.output import OutputDelta, OutputProcessor
from streamrunner.engine.step import TokenLogprob
from streamrunner.runner.admissions import AdmissionFile
from streamrunner.runner.durable import ChoiceKey, DurableChoice
from streamrunner.runner.errors import RunnerError
from streamrunner.runner.flight import ChoiceRun, RowPlace, RowRun, request_id
from streamrunner.runner.request import prepare_request
from streamrunner.runner.rows import RowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.engine.step import StepOutput
    from streamrunner.engine.tokenizer import Tokenizer
    from streamrunner.runner.feed import ClaimedRow
    from streamrunner.runner.job import JobContext
    from streamrunner.runner.meter import Meter
    from streamrunner.runner.writer import LogWriter


class Runs:
    """Rows between their admission and their terminal event. max_model_len: tokens of prompt and output together."""

    def __init__(
        self,
        job: JobContext,
        loop: EngineLoop,
        tokenizer: Tokenizer,
        max_model_len: int,
        writer: LogWriter,
        meter: Meter,
        on_completed: Callable[[RowRun], None],
    ) -> None:
        self._on_completed = on_completed
        self._job = job
        self._loop = loop
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._writer = writer
        self._meter = meter
        self._processor = OutputProcessor(tokenizer)
        self._runs: dict[int, RowRun] = {}
        self._by_request: dict[str, tuple[RowRun, int]] = {}
        self._admissions = AdmissionFile.from_env(job.job_id)

    @property
    def num_sequences(self) -> int:
        """Sequences in the engine, running or waiting there."""
        return len(self._by_request)

    @property
    def in_flight(self) -> list[RowRun]:
        """The rows, in the order of their admission."""
        return list(self._runs.values())

    def admit(self, claimed: ClaimedRow) -> None:
        """Start one row, from its durable tokens where it has some; a row that cannot run fails alone."""
        row = claimed.row
        if isinstance(row, RowError):
            self._fail(claimed, row.custom_id or f"row-{row.index}", row.index, row.code, row.message, row.param)
            return
        try:
            prepared = prepare_request(row, self._job.spec, self._job.seed, self._tokenizer, self._max_model_len)
        except (RunnerError, EngineError) as error:
            param = error.param if isinstance(error, EngineError) else None
            self._fail(claimed, row.custom_id, row.index, error.code, error.message, param)
            return
        choices = [ChoiceRun(request_id(row.index, i, claimed.claim)) for i in range(prepared.params.n)]
        run = RowRun(
            row, claimed.range, claimed.claim, claimed.attempt, list(prepared.prompt_token_ids), prepared.params,
            choices, constraints=prepared.constraints,
        )  # fmt: skip
        self._runs[row.index] = run
        self._meter.admitted(run)
        for index in range(len(choices)):
            self._start_choice(run, index, claimed.durable.get(ChoiceKey(row.index, index)))
        self._complete_if_finished(run)

    def take_step(self, step: StepOutput) -> None:
        """Make text of what the engine brought, and hand it on."""
        processed = self._processor.process(step)
        self._take_prompt_facts(step)
        for stopped in processed.aborts:
            self._loop.abort(stopped)
        for delta in processed.deltas:
            if delta.request_id in self._by_request:
                self._take_delta(delta)

    def drop(self, doomed: Callable[[RowRun], bool]) -> list[RowRun]:
        """Take rows out of the engine and out of flight, unfinished; they are somebody else's now."""
        dropped = [run for run in self._runs.values() if doomed(run)]
        for run in dropped:
            self._forget(run)
        return dropped

    def append_again(self) -> None:
        """Hand everything in flight to the writer once more, from the first token on: a new epoch begins with it."""
        for run in self._runs.values():
            run.first_n = None
            self._writer.add_deltas(run, run.whole())

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
        self._writer.fail(RowPlace(row, custom_id, claimed.attempt, claimed.range, claimed.claim), error)

    def _take_prompt_facts(self, step: StepOutput) -> None:
        for one in step.outputs:
            if one.num_cached_tokens is None and one.prompt_logprobs is None:
                continue
            run, index = self._by_request.get(one.request_id, (None, 0))
            if run is not None and one.prompt_logprobs is not None:
                run.prompt_logprobs = one.prompt_logprobs
            if run is not None and one.num_cached_tokens is not None and index == 0:
                run.num_cached_tokens = one.num_cached_tokens

    def _take_delta(self, delta: OutputDelta) -> None:
        run, index = self._by_request[delta.request_id]
        choice = run.choices[index]
        if delta.error is not None:
            self._forget(run)
            error = {"code": delta.error.code, "message": delta.error.message, "param": delta.error.param}
            self._writer.fail(run.place, error)
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
            self._meter.ended(run)
            self._on_completed(run)

    def _forget(self, run: RowRun) -> None:
        self._runs.pop(run.row.index, None)
        for choice in run.choices:
            if self._by_request.pop(choice.request_id, None) is not None:
                self._loop.abort(choice.request_id)
                self._processor.forget(choice.request_id)


def with_logprobs(replayed: OutputDelta, logprobs: list[Any]) -> OutputDelta:
    """Durable tokens with the logprobs that were recorded for them."""
    if not logprobs:
        return replayed
    kept = tuple(tuple(TokenLogprob(*one) for one in token) for token in logprobs[: len(replayed.token_ids)])
    return replace(replayed, logprobs=kept)
