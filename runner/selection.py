"""Which rows of a job a reader wants, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from streamrunner.runner.fold import COMPLETED, OPEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamrunner.runner.row_index import RowIndex

Order = Literal["completion", "input"]
Rows = Literal["all", "completed", "failed"]


class Selection(NamedTuple):
    """Rows with a result (`completed`), those without (`failed`: failed, cancelled or expired), or `all`.

    They come as they ended, or as they stand in the input.
    """

    rows: Rows = "all"
    order: Order = "completion"

    def wants(self, index: RowIndex, row: int) -> bool:
        """Whether an ended row is among the chosen ones."""
        return self.rows == "all" or (self.rows == "completed") == (index.state.rows[row] == COMPLETED)

    def ended_rows(self, index: RowIndex) -> NDArray[np.int64]:
        """All chosen rows that have ended, in this order; rows that share their job's ending come last where rows come
        as they ended.
        """
        entries, outcomes = np.frombuffer(index.entries, np.uint64), np.frombuffer(index.state.rows, np.uint8)
        has_own = entries > 0
        has_ended = has_own | (outcomes != OPEN) | index.state.ended
        chosen = self._chosen(outcomes) & has_ended
        if self.order == "input":
            return np.flatnonzero(chosen)
        own = np.flatnonzero(chosen & has_own)
        return np.concatenate([own[np.argsort(entries[own])], np.flatnonzero(chosen & ~has_own)])

    def _chosen(self, outcomes: NDArray[np.uint8]) -> NDArray[np.bool_]:
        is_completed: NDArray[np.bool_] = outcomes == COMPLETED
        if self.rows == "all":
            return np.ones_like(is_completed)
        return is_completed if self.rows == "completed" else ~is_completed
