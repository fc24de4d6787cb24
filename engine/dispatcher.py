"""Between the engine's thread and the calls: sequences in, text out to the call that each belongs to.

    Feeder ──submit──▶ EngineLoop ──StepOutput──▶ [ pump thread: OutputProcessor ] ──touch──▶ Call ──▶ its reader

One lock guards text state, owners and calls. The pump takes every step at once and never waits for a reader, so the
engine never does. A reader that is gone only leaves a mark (`Call.abandoned`), since garbage is collected in any thread
at any place; the pump frees what it left.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.engine.engine_metrics import EngineMetrics
from streamrunner.engine.errors import EngineError
from streamrunner.engine.loop import EngineLoop, EngineRequest, LoopEnd
from streamrunner.engine.output import OutputProcessor

if TYPE_CHECKING:
    from streamrunner.engine.call import Call
    from streamrunner.engine.constraints import Constraints
    from streamrunner.engine.live_request import LiveRequest
    from streamrunner.engine.output import OutputDelta
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.step import StepOutput
    from streamrunner.engine.tokenizer import Tokenizer

# How soon a reader that was garbage collected is noticed while no step comes.
_POLL_S = 0.25


class _Owner(NamedTuple):
    call: Call
    request: LiveRequest
    choice: int


class _TokenTexts(dict[int, str]):
    """Token → its text, as log-probabilities show it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        self[token_id] = self._tokenizer.token(token_id)
        return self[token_id]


class Dispatcher:
    """Owns the pump thread and the engine's loop. Methods that say so want `lock` to be held."""

    def __init__(self, loop: EngineLoop, tokenizer: Tokenizer) -> None:
        self.lock = threading.Lock()
        self.metrics = EngineMetrics()
        self._loop = loop
        self._processor = OutputProcessor(tokenizer)
        self._token_texts = _TokenTexts(tokenizer)
        self._owners: dict[str, _Owner] = {}
        self._calls: set[Call] = set()
        self._end: EngineError | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine-text", daemon=True)

    def start(self) -> None:
        """Begin to step and to read steps."""
        self._loop.start()
        self._thread.start()

    def close(self) -> None:
        """End engine and pump; open calls end with an error. Lock not held."""
        self._closing = True
        self._loop.close()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # ── with the lock held ──────────────────────────────────────────────────────────────────────────────────────────

    def check_running(self) -> None:
        """Raises EngineError (`engine_died`, `engine_closed`)."""
        if self._end is not None:
            raise self._end

    def open(self, call: Call) -> None:
        """Watch a call, so that it ends when its reader or the engine does. Raises EngineError like check_running."""
        self.check_running()
        self._calls.add(call)

    def submit(
        self,
        call: Call,
        request: LiveRequest,
        prompt_token_ids: list[int],
        params: SamplingParams,
        constraints: Constraints | None = None,
    ) -> None:
        """Send a request to the engine, choice by choice. Raises EngineError like check_running."""
        self.check_running()
        call.add(request)
        for choice in range(params.n):
            sequence_id = request.sequence_id(choice)
            self._processor.add(sequence_id, params)
            self._owners[sequence_id] = _Owner(call, request, choice)
            self._loop.add(EngineRequest(sequence_id, prompt_token_ids, params, choice, (), constraints))

    def abort(self, request_id: str) -> None:
        """End a request with what it has; unknown and finished ones are no error."""
        for call in self._calls:
            request = call.live.get(request_id)
            if request is not None and not request.finished:
                self._end_request(call, request, "abort", None)

    def drop(self, call: Call) -> None:
        """Free all that a call still has in the engine."""
        self._calls.discard(call)
        for request in call.live.values():
            self._forget(request)
        call.close()

    # ── the pump ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            while not isinstance(item := self._next_item(), LoopEnd):
                with self.lock:
                    self._drop_abandoned()
                    if item is not None:
                        self._take_step(item)
            end = item.error
        except BaseException as fault:  # noqa: BLE001 - whoever waits for results has to know
            end = fault
        with self.lock:
            self._end_all(end)

    def _next_item(self) -> StepOutput | LoopEnd | None:
        try:
            return self._loop.outputs.get(timeout=_POLL_S)
        except queue.Empty:
            return LoopEnd(None) if self._closing else None

    def _take_step(self, step: StepOutput) -> None:
        self.metrics.take(step, self._loop.queue_wait_ms)
        processed = self._processor.process(step)
        for sequence_id in processed.aborts:
            self._loop.abort(sequence_id)
        self._note_prompts(step)
        for delta in processed.deltas:
            owner = self._owners.get(delta.request_id)
            if owner is not None:
                self._take_delta(owner, delta)

    def _note_prompts(self, step: StepOutput) -> None:
        """The other choices of a prompt find what the first one computes: only that one tells about the call before."""
        for one in step.outputs:
            if one.num_cached_tokens is None and one.prompt_logprobs is None:
                continue
            owner = self._owners.get(one.request_id)
            if owner is not None and owner.choice == 0:
                owner.request.take_prompt(one, self._token_texts.__getitem__)

    def _take_delta(self, owner: _Owner, delta: OutputDelta) -> None:
        call, request, choice = owner
        if delta.error is not None:
            self._end_request(call, request, "error", delta.error)
            return
        request.take(choice, delta, self._token_texts.__getitem__)
        if delta.finish_reason is not None:
            self._processor.forget(delta.request_id)
            del self._owners[delta.request_id]
        call.touch(request, num_ended=int(delta.finish_reason is not None))

    def _end_request(self, call: Call, request: LiveRequest, reason: str, error: EngineError | None) -> None:
        num_ended = sum(choice.finish_reason is None for choice in request.choices)
        self._forget(request)
        request.end(reason, error)
        call.touch(request, num_ended)

    def _forget(self, request: LiveRequest) -> None:
        for choice in request.choices:
            sequence_id = request.sequence_id(choice.index)
            if self._owners.pop(sequence_id, None) is not None:
                self._processor.forget(sequence_id)
                self._loop.abort(sequence_id)

    def _drop_abandoned(self) -> None:
        for call in [call for call in self._calls if call.abandoned]:
            self.drop(call)

    def _end_all(self, error: BaseException | None) -> None:
        if error is None:
            self._end = EngineError("engine_closed", "the engine is closed: make a new LLM")
        else:
            self._end = EngineError("engine_died", f"the engine stopped: {type(error).__name__}: {error}")
            self._end.__cause__ = error
        for call in list(self._calls):
            call.fault = self._end
            self.drop(call)
