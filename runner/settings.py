"""What may change while a worker runs: limits, rules on outputs, and rows that somebody else has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrunner.runner.spec_control import LimitsSpec, StopRule
from streamrunner.runner.stop_rules import StopGuard
from streamrunner.sinks.wire import decode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis

    from streamrunner.runner.spec import JobSpec
    from streamrunner.sinks.keys import JobKeys


class LiveSettings:
    """A worker's view of the settings that count now; `hear` is called with the control seq of every reply."""

    def __init__(self, client: redis.Redis, keys: JobKeys, spec: JobSpec) -> None:
        self._client: Any = client
        self._keys = keys
        self._ctl = -1
        self._rules = spec.stop_when
        self.limits = spec.limits
        self.guard = StopGuard(spec.stop_when)

    def hear(self, ctl: int, rows: Callable[[], Sequence[int]]) -> set[int]:
        """Take in what was asked for since the last control seq; returns those of `rows` that have their ending.

        A log that does not answer is asked again at the next call.
        """
        if ctl == self._ctl:
            return set()
        from redis.exceptions import RedisError

        try:
            self._read_settings()
            closed = self._closed(rows())
        except (RedisError, OSError):
            return set()
        self._ctl = ctl
        return closed

    def _read_settings(self) -> None:
        limits, rules = self._client.hmget(self._keys.meta, "limits", "stop_when")
        if limits is not None:
            self.limits = read_limits(limits)
        if rules is not None:
            # An empty list comes as an empty object: Lua knows no difference.
            self._arm(tuple(StopRule.model_validate(rule) for rule in list(decode_json(rules) or ())))

    def _closed(self, rows: Sequence[int]) -> set[int]:
        pipe = self._client.pipeline(transaction=False)
        for row in rows:
            pipe.getbit(self._keys.done, row)
        return {row for row, bit in zip(rows, pipe.execute(), strict=True) if bit}

    def _arm(self, rules: tuple[StopRule, ...]) -> None:
        if rules != self._rules:
            self._rules, self.guard = rules, StopGuard(rules)


def read_limits(text: bytes | str) -> LimitsSpec:
    """`limits` as the log's server keeps them."""
    return LimitsSpec.model_validate(dict(decode_json(text) or {}))
