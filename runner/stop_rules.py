"""Rules on what rows say: a job whose outputs go wrong is paused for a look, before it has paid for all of them.

completed rows ──▶ │ . x . . x x . │  the last `window` of this worker; at `share` of them the rule fires,
                                      and begins again with an empty window
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrunner.runner.flight import ChoiceRun, RowRun
    from streamrunner.runner.spec_control import StopRule

_EXAMPLES = 5


class Fired(NamedTuple):
    """A rule that has its share: what to tell, and the newest rows that look like it."""

    message: str
    rows: list[int]


class StopGuard:
    """Looks at every completed row of one worker."""

    def __init__(self, rules: Iterable[StopRule]) -> None:
        self._windows = [_Window(rule) for rule in rules]

    def take(self, run: RowRun) -> Fired | None:
        """The rule that this row makes fire, if one does; each row is taken into account by every rule."""
        fired = [one for window in self._windows if (one := window.take(run))]
        return fired[0] if fired else None


class _Window:
    def __init__(self, rule: StopRule) -> None:
        self._rule = rule
        self._pattern = re.compile(rule.regex) if rule.regex else None
        self._hits: deque[tuple[int, bool]] = deque(maxlen=rule.window)

    def take(self, run: RowRun) -> Fired | None:
        self._hits.append((run.row.index, any(self._matches(choice) for choice in run.choices)))
        rows = [row for row, is_hit in self._hits if is_hit]
        if len(self._hits) < self._rule.min_rows or len(rows) < self._rule.share * len(self._hits):
            return None
        message = f"stop_when ({self._rule}): {len(rows)} of the last {len(self._hits)} rows look so, the job is paused"
        self._hits.clear()
        return Fired(message, rows[-_EXAMPLES:])

    def _matches(self, choice: ChoiceRun) -> bool:
        if self._pattern is not None:
            return self._pattern.search(choice.text) is not None
        if self._rule.empty:
            return not choice.text.strip()
        return choice.finish_reason == self._rule.finish_reason
