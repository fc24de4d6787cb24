"""From engine steps to text: detokenisation and stop strings, on the other side of the engine's queue.

    tokens ──▶ text so far  [ ………… released …………………… | held back ]
                                                        └ a true prefix of some stop string, nothing else

A stop string ends its sequence where it begins: tokens that came after the one that completed it are overshoot and are
dropped before anybody sees or counts them. Replaying recorded tokens gives the state that processing them live gave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.engine.detokenize import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrunner.engine.errors import EngineError
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.step import RequestStep, StepOutput, TokenLogprob
    from streamrunner.engine.tokenizer import Tokenizer

Logprobs = tuple[tuple["TokenLogprob", ...], ...]


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """New tokens and text of one sequence. Text may lag behind its tokens (a cut character, a possible stop string)."""

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    error: EngineError | None


class ProcessedStep(NamedTuple):
    """Deltas in the step's order, and the sequences that a stop string ended and the engine has to drop."""

    deltas: tuple[OutputDelta, ...]
    aborts: tuple[str, ...]


class StopMatch(NamedTuple):
    """A stop string and where it begins in the text."""

    at: int
    stop: str


class OutputProcessor:
    """Text state of all live sequences. Not thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[str, _SequenceText] = {}

    def add(self, request_id: str, params: SamplingParams) -> None:
        """Begin a sequence."""
        self._texts[request_id] = _SequenceText(self._tokenizer, params)

    def forget(self, request_id: str) -> None:
        """Drop a sequence's state; unknown ones are no error."""
        self._texts.pop(request_id, None)

    def replay(self, request_id: str, generated: Sequence[int]) -> OutputDelta:
        """Take in recorded tokens under the same rules; the delta says whether the sequence had ended with them."""
        return self._texts[request_id].take(request_id, tuple(generated), None, None, None)

    def process(self, step: StepOutput) -> ProcessedStep:
        """Make text of a step. Sequences that were forgotten, or ended before, are passed over."""
        deltas: list[OutputDelta] = []
        aborts: list[str] = []
        for one in step.outputs:
            text = self._texts.get(one.request_id)
            if text is None or text.ended:
                continue
            delta = _error_delta(one) if one.error is not None else text.take(*one[:5])
            deltas.append(delta)
            if delta.finish_reason is not None and one.finish_reason is None:
                aborts.append(one.request_id)
        return ProcessedStep(tuple(deltas), tuple(aborts))


class _SequenceText:
    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.ended = False
        self._params = params
        self._eos = frozenset(() if params.ignore_eos else tokenizer.eos_token_ids)
        self._detokenizer = Detokenizer(tokenizer)
        self._longest_stop = max(map(len, params.stop), default=0)
        self._text = ""
        self._released = 0
        self._exempt = 0  # text made before min_tokens, where no stop string counts
        self._num_tokens = 0

    def take(
        self,
        request_id: str,
        token_ids: tuple[int, ...],
        logprobs: Logprobs | None,
        finish_reason: str | None,
        stop_reason: int | None,
    ) -> OutputDelta:
        """Add tokens one by one until something ends the sequence."""
        count, reason, why = 0, None, None
        for token_id in token_ids:
            count += 1
            reason, why = self._add(token_id)
            if reason is not None:
                break
        if reason is None:
            reason, why = finish_reason, stop_reason
        self.ended = reason is not None
        if self.ended and not isinstance(why, str):
            why = self._close(why)
            reason = "stop" if isinstance(why, str) else reason
        kept = None if logprobs is None else logprobs[:count]
        return OutputDelta(request_id, token_ids[:count], self._release(), kept, reason, why, None)

    def _add(self, token_id: int) -> tuple[str | None, int | str | None]:
        self._num_tokens += 1
        may_stop = self._num_tokens > self._params.min_tokens
        if token_id in self._params.stop_token_ids and may_stop:
            return "stop", token_id
        if token_id in self._eos and may_stop:
            return "stop", None
        match = self._grow(self._detokenizer.add(token_id), may_stop=may_stop)
        if match is not None:
            self._cut(match)
            return "stop", match.stop
        max_tokens = self._params.max_tokens
        return ("length", None) if max_tokens is not None and self._num_tokens >= max_tokens else (None, None)

    def _close(self, why: int | str | None) -> int | str | None:
        """The last, undecided character; it may complete a stop string."""
        match = self._grow(self._detokenizer.flush(), may_stop=True)
        if match is None:
            return why
        self._cut(match)
        return match.stop

    def _grow(self, new: str, *, may_stop: bool) -> StopMatch | None:
        searched = max(len(self._text) - self._longest_stop + 1, self._exempt)
        self._text += new
        if not may_stop:
            self._exempt = len(self._text)
            return None
        return first_stop(self._text, self._params.stop, searched) if new else None

    def _cut(self, match: StopMatch) -> None:
        end = match.at + (len(match.stop) if self._params.include_stop_str_in_output else 0)
        self._text = self._text[:end]

    def _release(self) -> str:
        held = 0 if self.ended else held_back(self._text, self._params.stop, max(self._released, self._exempt))
        end = len(self._text) - held
        new = self._text[self._released : end]
        self._released = max(end, self._released)
        return new


def first_stop(text: str, stops: Sequence[str], start: int) -> StopMatch | None:
    """The stop string that begins first at or after `start`; of several beginning there, the longest."""
    found = [StopMatch(at, stop) for stop in stops if (at := text.find(stop, start)) >= 0]
    return min(found, key=lambda match: (match.at, -len(match.stop)), default=None)


def held_back(text: str, stops: Sequence[str], start: int) -> int:
    """How many characters at the end, from `start` on, could still become a stop string."""
    longest = max(map(len, stops), default=1) - 1
    for length in range(min(longest, len(text) - start), 0, -1):
        tail = text[len(text) - length :]
        if any(stop.startswith(tail) for stop in stops):
            return length
    return 0


def _error_delta(one: RequestStep) -> OutputDelta:
    return OutputDelta(one.request_id, (), "", None, "error", None, one.error)
