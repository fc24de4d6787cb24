"""From engine steps to text: detokenisation and stop strings, on the other side of the engine's queue.

    tokens ──▶ text so far  [ ………… released …………………… | held back ]
                                                        └ a true prefix of some stop string, nothing else

Rules, the same for tokens that come live and for recorded ones that are replayed, in whatever groups they come:
- The first stop string that is complete ends its sequence; what came after the token that completed it is overshoot
  and is dropped before anybody sees or counts it. Text is cut where the string begins (or ends, if it is to be kept).
- A match whose last character comes within the first min_tokens tokens does not count, nor does an end-of-text or stop
  token among them.
- The token that ends a sequence is part of its token_ids and never of its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from streamrunner.engine.detokenize import Detokenizer, detokenizers
from streamrunner.engine.errors import EngineError
from streamrunner.engine.stops import StopMatch, StopSearch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.step import StepOutput, TokenLogprob
    from streamrunner.engine.tokenizer import Tokenizer

Logprobs = tuple[tuple["TokenLogprob", ...], ...]


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """New tokens and text of one sequence. Text may lag behind its tokens (a cut character, a possible stop string).

    finish_reason: stop, length, abort, error or None. stop_reason: the stop string or stop token that matched.
    """

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


class OutputProcessor:
    """Text state of all live sequences. Not thread-safe. Raises EngineError (`model_unsupported`: see detokenizers)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._eos = frozenset(tokenizer.eos_token_ids)
        self._new_detokenizer = detokenizers(tokenizer)
        self._texts: dict[str, _SequenceText] = {}

    def add(self, request_id: str, params: SamplingParams) -> None:
        """Begin a sequence. Raises EngineError (`duplicate_request`)."""
        if request_id in self._texts:
            raise EngineError("duplicate_request", f"a request {request_id!r} is being read already")
        self._texts[request_id] = _SequenceText(self._new_detokenizer(), params, self._eos)

    def forget(self, request_id: str) -> None:
        """Drop a sequence's state; unknown ones are no error."""
        self._texts.pop(request_id, None)

    def replay(self, request_id: str, generated: Sequence[int]) -> OutputDelta:
        """Take in recorded tokens under the same rules; the delta says whether the sequence had ended with them."""
        return self._texts[request_id].take(request_id, tuple(generated), None, None, None, None)

    def process(self, step: StepOutput) -> ProcessedStep:
        """Make text of a step. Sequences that were forgotten, or ended before, are passed over."""
        deltas: list[OutputDelta] = []
        aborts: list[str] = []
        for one in step.outputs:
            text = self._texts.get(one.request_id)
            if text is None or text.ended:
                continue
            delta = text.take(*one[:6])
            deltas.append(delta)
            if delta.finish_reason is not None and one.finish_reason is None:
                aborts.append(one.request_id)
        return ProcessedStep(tuple(deltas), tuple(aborts))


class _End(NamedTuple):
    """How a sequence ends, and whether the token at hand still belongs to it."""

    finish_reason: str
    stop_reason: int | str | None
    keeps_token: bool = True


class _SequenceText:
    """One sequence: its detokeniser, its stop search, and the text held back (nothing without stop strings)."""

    __slots__ = ("_detokenizer", "_enders", "_held", "_new", "_num_tokens", "_params", "_search", "ended")

    def __init__(self, detokenizer: Detokenizer, params: SamplingParams, eos: frozenset[int]) -> None:
        self.ended = False
        self._params = params
        self._enders = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos)
        self._detokenizer = detokenizer
        self._search = StopSearch(params.stop) if params.stop else None
        self._held = ""
        self._new: list[str] = []
        self._num_tokens = 0

    def take(
        self,
        request_id: str,
        token_ids: tuple[int, ...],
        logprobs: Logprobs | None,
        finish_reason: str | None,
        stop_reason: int | None,
        error: EngineError | None,
    ) -> OutputDelta:
        """Add tokens one by one until something ends the sequence, be it only the engine's word."""
        kept, end = 0, None
        for token_id in token_ids:
            end = self._add(token_id)
            if end is not None:
                kept += end.keeps_token
                break
            kept += 1
        if end is None and finish_reason is not None:
            end = self._close(_End(finish_reason, stop_reason))
        self.ended = end is not None
        text, self._new = "".join(self._new), []
        reason, why, _ = end or (None, None, None)
        return OutputDelta(
            request_id, token_ids[:kept], text, logprobs and logprobs[:kept], reason, why, error if end else None
        )

    def _add(self, token_id: int) -> _End | None:
        if self._search is not None:
            # A run of byte tokens may complete a stop string once the next token shows that it is over.
            match = self._feed(self._detokenizer.settle(token_id))
            if match is not None:
                return _End("stop", match.stop, keeps_token=False)
        if token_id in self._enders and self._num_tokens >= self._params.min_tokens:
            why = token_id if token_id in self._params.stop_token_ids else None
            return self._close(_End("stop", why), keeps_token=False)
        self._num_tokens += 1
        match = self._feed(self._detokenizer.add(token_id))
        if match is not None:
            return _End("stop", match.stop)
        if self._num_tokens == self._params.max_tokens:
            return self._close(_End("length", None))
        return None

    def _close(self, end: _End, *, keeps_token: bool = True) -> _End:
        """Release everything; the last undecided characters may yet complete a stop string."""
        match = self._feed(self._detokenizer.flush())
        if match is not None:
            return _End("stop", match.stop, keeps_token)
        self._new.append(self._held)
        self._held = ""
        return end

    def _feed(self, text: str) -> StopMatch | None:
        """Release new text as far as it cannot belong to a stop string."""
        if self._search is None or not text:
            self._new.append(text)
            return None
        match = self._search.advance(text, may_stop=self._num_tokens > self._params.min_tokens)
        made = self._held + text
        if match is None:
            end = len(made) - self._search.held
        else:
            end = len(self._held) + match.end
            end -= 0 if self._params.include_stop_str_in_output else len(match.stop)
        self._new.append(made[:end])
        self._held = made[end:]
        return match
