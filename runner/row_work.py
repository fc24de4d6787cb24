"""How much a row asks of the engine, as far as one can tell without a tokenizer.

Noted per range at submit, so that a forecast knows the rows nobody has read yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrunner.runner.rows import Row
    from streamrunner.runner.spec import SamplingSpec


# What a row without `max_tokens` is taken to be allowed: the rest of its context, which is not known here.
_UNLIMITED = 2048
# More than any engine takes, and little enough that the sum over a range is a number that JSON readers know.
_MOST = 1 << 20


class Kind(NamedTuple):
    """Rows that should behave alike: the powers of two above their prompt size and above their token limit."""

    prompt: int
    limit: int


class RowWork(NamedTuple):
    """prompt_chars: characters of the prompt before any template. choices: `n`. limit: `max_tokens` of a choice."""

    prompt_chars: int
    choices: int
    limit: int

    @property
    def kind(self) -> Kind:
        """The rows it is like."""
        return Kind(self.prompt_chars.bit_length(), self.limit.bit_length())


def row_work(row: Row, sampling: SamplingSpec) -> RowWork:
    """What this row asks, its own settings before the job's."""
    overrides = row.overrides
    limit = token_limit(overrides.get("max_tokens", sampling.max_tokens))
    return RowWork(prompt_chars(row), min(overrides.get("n", sampling.n), _MOST), min(limit, _MOST))


def token_limit(max_tokens: int | None) -> int:
    """`max_tokens` as a number."""
    return _UNLIMITED if max_tokens is None else max_tokens


def prompt_chars(row: Row) -> int:
    """Characters of a row's prompt or messages, before any template."""
    return len(row.prompt) + sum(_num_chars(message.get("content")) for message in row.messages)


def _num_chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(len(part.get("text") or "") for part in content if isinstance(part, dict))
    return 0


class WorkSum(NamedTuple):
    """Rows of one kind together; `limit` is summed over all choices."""

    rows: float
    prompt_chars: float
    choices: float
    limit: float

    @property
    def kind(self) -> Kind:
        """Of a mean row."""
        limit = self.limit / self.choices if self.choices else 0.0
        return Kind(int(self.prompt_chars / self.rows).bit_length(), int(limit).bit_length())

    def plus(self, other: WorkSum, share: float = 1.0) -> WorkSum:
        """With others too, or this share of them."""
        return WorkSum(*(mine + share * theirs for mine, theirs in zip(self, other, strict=True)))


NO_WORK = WorkSum(0.0, 0.0, 0.0, 0.0)


def sum_by_kind(rows: Iterable[RowWork]) -> list[list[int]]:
    """`[rows, prompt_chars, choices, limit]` for every kind: what a range carries in the log."""
    sums: dict[Kind, list[int]] = {}
    for one in rows:
        into = sums.setdefault(one.kind, [0, 0, 0, 0])
        into[0] += 1
        into[1] += one.prompt_chars
        into[2] += one.choices
        into[3] += one.choices * one.limit
    return list(sums.values())
