"""One call for many prompts, as three threads see it: a feeder adds requests, the pump fills them, a reader takes them.

    feeder ──add──▶ live requests ──touch──▶ ready ──take──▶ reader
              ▲                      (pump)                    │
              └──────────── room, once requests are read ──────┘

The reader is never waited for. What it has not read is merged per request; when more than max_unread finished requests
wait for it, no new ones are added, and those that run go on.

Everything here happens with the dispatcher's lock held.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamrunner.engine.live_request import LiveRequest
    from streamrunner.engine.request_output import RequestOutput


class CallOptions(NamedTuple):
    """How results are handed out, and how much may be in hand at once.

    every_n: an item of a request after so many new tokens of a choice; None: only when it has finished.
    max_sequences: in the engine. max_unread: finished requests that wait for the reader.
    """

    ordered: bool
    every_n: int | None
    max_sequences: int
    max_unread: int


class Call:
    """The requests of one call. abandoned: its reader is gone; the next one who looks frees everything.

    fault: what ends the call once all that was added is read.
    """

    def __init__(self, lock: threading.Lock, options: CallOptions) -> None:
        self.readable = threading.Condition(lock)
        self.roomy = threading.Condition(lock)
        self.live: dict[str, LiveRequest] = {}
        self.fault: BaseException | None = None
        self.abandoned = False
        self.closed = False
        self.waker: Callable[[], None] | None = None
        self._options = options
        self._ready: deque[LiveRequest] = deque()
        self._by_index: dict[int, LiveRequest] = {}
        self._next_index = 0
        self._num_sequences = 0
        self._num_unread = 0
        self._fed = False

    @property
    def has_room(self) -> bool:
        """Whether another request may be added."""
        few = self._num_sequences < self._options.max_sequences
        return few and self._num_unread < self._options.max_unread

    @property
    def ended(self) -> bool:
        """Whether nothing is left to read, now and later."""
        return self.closed or (self._fed and not self.live)

    def add(self, request: LiveRequest) -> None:
        """A new request, with or without an ending already."""
        self.live[request.request_id] = request
        if self._options.ordered:
            self._by_index[request.index] = request
        self._num_sequences += sum(choice.finish_reason is None for choice in request.choices)
        self.touch(request, num_ended=0)

    def touch(self, request: LiveRequest, num_ended: int) -> None:
        """A request has something new; num_ended of its choices ended with it."""
        if num_ended:
            self._num_sequences -= num_ended
            self.roomy.notify_all()
        if request.finished:
            self._num_unread += 1
        self._offer(request)

    def finish_feeding(self, fault: BaseException | None) -> None:
        """No request will be added any more."""
        self._fed = True
        self.fault = self.fault or fault
        self._wake()

    def close(self) -> None:
        """Let go of everything; whoever waits here is told."""
        self.closed = True
        self.live, self._by_index = {}, {}
        self._ready.clear()
        self.roomy.notify_all()
        self._wake()

    def take(self) -> RequestOutput | None:
        """The next item for the reader, if there is one."""
        if not self._ready:
            return None
        request = self._ready.popleft()
        request.is_queued = False
        output = request.snapshot()
        if output.finished:
            self._retire(request)
        return output

    def _retire(self, request: LiveRequest) -> None:
        del self.live[request.request_id]
        self._num_unread -= 1
        self.roomy.notify_all()
        if self._options.ordered:
            del self._by_index[request.index]
            self._next_index += 1
            following = self._by_index.get(self._next_index)
            if following is not None:
                self._offer(following)

    def _offer(self, request: LiveRequest) -> None:
        is_turn = not self._options.ordered or request.index == self._next_index
        if is_turn and not request.is_queued and request.has_news(self._options.every_n):
            request.is_queued = True
            self._ready.append(request)
            self._wake()

    def _wake(self) -> None:
        self.readable.notify_all()
        if self.waker is not None:
            self.waker()
