"""The engine in a thread of its own, with a bounded queue of steps behind it.

    add, abort ──▶ inbox ──▶ [ engine thread: step, step, step ] ──▶ outputs (bounded) ──▶ whoever makes text of it

A full queue makes the engine wait, and that time is counted; nothing else can slow it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from streamrunner.engine.errors import EngineError
from streamrunner.engine.step import RequestStep, StepOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrunner.engine.constraints import Constraints
    from streamrunner.engine.params import SamplingParams

_CLOSE_POLL_S = 0.05


class Core(Protocol):
    """The engine's contract: what the loop needs of one. `EngineCore` and `SyntheticCore` keep it."""

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        choice: int = 0,
        generated: Sequence[int] = (),
        constraints: Constraints | None = None,
    ) -> None:
        """Queue one sequence behind the tokens it already has. Raises EngineError if it can never run."""

    def abort(self, request_id: str) -> None:
        """Drop a sequence; an unknown one is no error."""

    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""

    def step(self) -> StepOutput:
        """One iteration."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence for the engine; the arguments of `EngineCore.add_request`."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    choice: int = 0
    generated: tuple[int, ...] = ()
    constraints: Constraints | None = None


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """The last item of `outputs`; `error` is what the engine died of, if it did."""

    error: BaseException | None


class EngineLoop:
    """Steps the core as long as it has work. `add`, `abort` and `close` may be called from any thread."""

    def __init__(self, core: Core, *, max_queued_steps: int = 64) -> None:
        self.outputs: queue.Queue[StepOutput | LoopEnd] = queue.Queue(max_queued_steps)
        self.queue_wait_ms = 0.0
        self._core = core
        self._inbox: deque[EngineRequest | str] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def add(self, request: EngineRequest) -> None:
        """Hand over a request; if the core refuses it, its error comes out as a step."""
        self._send(request)

    def abort(self, request_id: str) -> None:
        """Drop a request; steps already in `outputs` may still name it."""
        self._send(request_id)

    @property
    def num_unread(self) -> int:
        """Requests and aborts that the engine has not taken in; it does so between two steps."""
        return len(self._inbox)

    def close(self) -> None:
        """Stop after the current step and wait for the thread. What stands in `outputs` can still be read."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _send(self, item: EngineRequest | str) -> None:
        with self._wake:
            self._inbox.append(item)
            self._wake.notify()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while self._wait_for_work():
                self._put(self._core.step())
        except BaseException as fault:  # noqa: BLE001 - whoever reads `outputs` has to know
            error = fault
        self._put(LoopEnd(error))

    def _wait_for_work(self) -> bool:
        """Take in what arrived; False once the loop is to end."""
        with self._wake:
            while not (self._inbox or self._closing or self._core.has_unfinished()):
                self._wake.wait()
            arrived, self._inbox = self._inbox, deque()
            closing = self._closing
        refused = [refusal for item in arrived if (refusal := self._take(item)) is not None]
        if refused:
            self._put(_refusals(refused))
        return not closing

    def _take(self, item: EngineRequest | str) -> RequestStep | None:
        if isinstance(item, str):
            self._core.abort(item)
            return None
        try:
            self._core.add_request(
                item.request_id, item.prompt_token_ids, item.params,
                choice=item.choice, generated=item.generated, constraints=item.constraints,
            )  # fmt: skip
        except EngineError as error:
            return RequestStep(item.request_id, (), None, "error", None, error)
        return None

    def _put(self, item: StepOutput | LoopEnd) -> None:
        began = time.perf_counter()
        while True:
            try:
                self.outputs.put(item, timeout=_CLOSE_POLL_S)
                break
            except queue.Full:
                # Nobody reads any more once we are closing: the newest step is not worth a deadlock.
                if self._closing:
                    return
        self.queue_wait_ms += (time.perf_counter() - began) * 1e3


def _refusals(refused: list[RequestStep]) -> StepOutput:
    return StepOutput(
        outputs=tuple(refused),
        num_running=0,
        num_waiting=0,
        num_batched_tokens=0,
        num_prompt_tokens=0,
        num_cached_tokens=0,
        kv_cache_usage=0.0,
        num_preemptions=0,
        step_ms=0.0,
    )
