"""Tokens in pieces that a step entry may hold: a long row's are appended whole when another worker takes it over."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamrunner.sinks.wire import StepDelta

# Of one step entry, roughly: readers hold a page of entries a stream.
MAX_STEP_BYTES = 512 * 1024
# Shares on the wire, roughly.
_BYTES_PER_TOKEN = 12
_BYTES_PER_LOGPROB = 32


def wire_size(delta: StepDelta) -> int:
    """About how many bytes a delta takes."""
    scores = sum(len(one) for one in delta.logprobs) if delta.logprobs is not None else 0
    return len(delta.text) + _BYTES_PER_TOKEN * len(delta.token_ids) + _BYTES_PER_LOGPROB * scores


def pieces(delta: StepDelta) -> Iterator[StepDelta]:
    """The delta, in parts no larger than a step entry may be; the text goes with the last one, as text may lag."""
    size, num_tokens = wire_size(delta) - len(delta.text), len(delta.token_ids)
    per_piece = max(1, num_tokens * MAX_STEP_BYTES // size) if size > MAX_STEP_BYTES else num_tokens
    if per_piece >= num_tokens:
        yield delta
        return
    for first in range(0, num_tokens, per_piece):
        behind = min(first + per_piece, num_tokens)
        yield delta._replace(
            at=delta.at + first,
            token_ids=delta.token_ids[first:behind],
            text=delta.text if behind == num_tokens else "",
            logprobs=None if delta.logprobs is None else delta.logprobs[first:behind],
        )
