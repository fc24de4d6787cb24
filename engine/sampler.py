"""From logits to tokens: rules of single sequences, one draw for all, and log-probabilities for who wants them.

Log-probabilities are the model's own: before rules and temperature, as vLLM's are by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from streamrunner.engine.step import TokenLogprob
from streamrunner.engine.token_rules import apply_rules
from streamrunner.kernels.logprobs import top_logprobs
from streamrunner.kernels.sampling import NO_TOKEN, sample

if TYPE_CHECKING:
    from streamrunner.engine.sequence import Sequence

Tensor = torch.Tensor
Logprobs = tuple[TokenLogprob, ...]


class Sampled(NamedTuple):
    """One sequence's next token, None if no token can come; logprobs: that token, then the likeliest, if wanted.

    is_ruled_out: the model has finite logits, but the sequence's rules forbid all of them.
    """

    token: int | None
    logprobs: Logprobs | None
    is_ruled_out: bool = False


class ScoredToken(NamedTuple):
    """A row of logits, the token that follows there, and how many of the likeliest to report beside it."""

    row: int
    token: int
    num_top: int


def sample_tokens(logits: Tensor, sequences: list[Sequence]) -> list[Sampled]:
    """The next token of every sequence. logits: [R, V] float32, a row for each; rows with rules are changed."""
    wanted = [one.params.logprobs for one in sequences]
    ruled = [(row, one.rules) for row, one in enumerate(sequences) if one.rules is not None]
    kept = [row for row, _ in ruled if wanted[row] is not None]
    before = logits[kept] if kept else None
    if ruled:
        apply_rules(logits, ruled)
    tokens = _draw(logits, sequences)
    plain = [row for row, count in enumerate(wanted) if count is not None and sequences[row].rules is None]
    found = _logprobs(logits, plain, plain, tokens, wanted)
    if before is not None:
        found |= _logprobs(before, list(range(len(kept))), kept, tokens, wanted)
    return [
        Sampled(token, found.get(row)) if token != NO_TOKEN else _unsampled(logits[row])
        for row, token in enumerate(tokens)
    ]


def _unsampled(logits: Tensor) -> Sampled:
    return Sampled(None, None, is_ruled_out=bool((logits == float("-inf")).all()))


def score_tokens(logits: Tensor, scored: list[ScoredToken]) -> list[Logprobs]:
    """Log-probabilities of known tokens. logits: [R, V] float32; a row with NaN gives NaN."""
    if not scored:
        return []
    rows, tokens = (torch.tensor([one[place] for one in scored]) for place in (0, 1))
    counts = [one.num_top for one in scored]
    return _top(logits, rows, tokens, counts)


def _draw(logits: Tensor, sequences: list[Sequence]) -> list[int]:
    settings = [
        (one.params.temperature, max(one.params.top_k, 0), one.params.top_p, one.params.min_p) for one in sequences
    ]
    keys = [(one.seed, one.choice, len(one.token_ids)) for one in sequences]
    tokens: list[int] = sample(logits, torch.tensor(settings, dtype=torch.float32), torch.tensor(keys)).tolist()
    return tokens


def _logprobs(
    logits: Tensor, rows: list[int], places: list[int], tokens: list[int], wanted: list[int | None]
) -> dict[int, Logprobs]:
    """By place in the batch; rows: where each place's logits are."""
    scored = [
        (place, ScoredToken(row, tokens[place], wanted[place] or 0))
        for row, place in zip(rows, places, strict=True)
        if tokens[place] != NO_TOKEN
    ]
    found = score_tokens(logits, [one for _, one in scored])
    return {place: logprobs for (place, _), logprobs in zip(scored, found, strict=True)}


def _top(logits: Tensor, rows: Tensor, tokens: Tensor, counts: list[int]) -> list[Logprobs]:
    most = min(max(counts), logits.shape[1])
    columns = (part.tolist() for part in top_logprobs(logits, rows, tokens, most))
    found: list[Logprobs] = []
    for count, ids, values, rank in zip(counts, *columns, strict=True):
        ranks = [rank, *range(1, count + 1)]
        found.append(tuple(map(TokenLogprob, ids[: count + 1], values[: count + 1], ranks)))
    return found
